//! Outcome of a delivery, for the metrics, and the log of rejected deliveries, which an
//! unauthenticated sender must not be able to fill.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{BootInstant, StartResult};

use super::signature::SignatureError;

/// Minimum interval between log messages about rejected deliveries; the others are only counted.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Outcome of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Started,
    Queued,
    Duplicate,
    Skipped,
    Filtered,
    Locked,
    Rejected,
    Failed,
}

impl Outcome {
    pub(crate) const ALL: [Self; 8] = [
        Self::Started,
        Self::Queued,
        Self::Duplicate,
        Self::Skipped,
        Self::Filtered,
        Self::Locked,
        Self::Rejected,
        Self::Failed,
    ];

    pub(crate) const fn of(start: &StartResult) -> Self {
        match start {
            StartResult::Started(_) => Self::Started,
            StartResult::Queued(_) => Self::Queued,
            StartResult::Duplicate(_) => Self::Duplicate,
            StartResult::Skipped { .. } => Self::Skipped,
        }
    }

    /// Returns the value of the label `outcome`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Queued => "queued",
            Self::Duplicate => "duplicate",
            Self::Skipped => "skipped",
            Self::Filtered => "filtered",
            Self::Locked => "locked",
            Self::Rejected => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Reason why a delivery was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RejectReason {
    MissingSignature,
    MalformedSignature,
    WrongSignature,
    TooOld,
    NoToken,
    NotJson,
    Invalid,
    KeyReused,
}

impl RejectReason {
    pub(crate) const ALL: [Self; 8] = [
        Self::MissingSignature,
        Self::MalformedSignature,
        Self::WrongSignature,
        Self::TooOld,
        Self::NoToken,
        Self::NotJson,
        Self::Invalid,
        Self::KeyReused,
    ];

    /// Returns the value of the label `reason`.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::MissingSignature => "missing_signature",
            Self::MalformedSignature => "malformed_signature",
            Self::WrongSignature => "wrong_signature",
            Self::TooOld => "too_old",
            Self::NoToken => "no_token",
            Self::NotJson => "not_json",
            Self::Invalid => "invalid",
            Self::KeyReused => "key_reused",
        }
    }
}

impl From<SignatureError> for RejectReason {
    fn from(error: SignatureError) -> Self {
        match error {
            SignatureError::Missing(_) => Self::MissingSignature,
            SignatureError::Malformed(_) => Self::MalformedSignature,
            SignatureError::Untimely => Self::TooOld,
            SignatureError::Wrong => Self::WrongSignature,
        }
    }
}

/// Log of rejected deliveries: at most one line per second, independent of the number of deliveries.
#[derive(Debug, Default)]
pub(crate) struct RejectLog(Mutex<Window>);

#[derive(Debug, Default)]
struct Window {
    logged_at: Option<BootInstant>,
    suppressed: u64,
}

impl RejectLog {
    /// Logs a rejected delivery for this trigger; `None` is a trigger that does not exist.
    pub(crate) fn write(&self, trigger: Option<&str>, reason: &str) {
        if let Some(suppressed) = self.admit(BootInstant::now()) {
            // The id of an unknown trigger is untrusted input, so it is not logged.
            let trigger = trigger.unwrap_or("unknown");
            tracing::warn!(trigger, reason, suppressed, "webhook refused");
        }
    }

    /// Returns the number of rejections suppressed since the last log message if this one is to be
    /// logged, otherwise `None`.
    fn admit(&self, now: BootInstant) -> Option<u64> {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if window.logged_at.is_some_and(|at| now.after(at) < LOG_INTERVAL) {
            window.suppressed += 1;
            return None;
        }
        window.logged_at = Some(now);
        Some(std::mem::take(&mut window.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rejection_per_second_is_logged() {
        let log = RejectLog::default();
        let at = |millis: u64| log.admit(BootInstant::from_micros(5_000_000 + millis * 1000));
        assert_eq!(at(0), Some(0));
        assert_eq!((at(1), at(500), at(999)), (None, None, None));
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(1999), None);
        assert_eq!(at(9000), Some(1));
        assert_eq!(at(10_000), Some(0));
    }

    #[test]
    fn labels_are_unique() {
        let mut labels: Vec<_> = Outcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
        labels.extend(RejectReason::ALL.iter().map(|reason| reason.as_str()));
        let count = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), count);
    }
}
