//! Outcome of a delivery, for the metrics; detection of repeated deliveries; and the log of rejected
//! deliveries, which an unauthenticated sender must not be able to fill.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::Ttl;
use leasehold::store::{DocumentStore, NewDocument, PutIf, RESERVED_PREFIX};
use leasehold::{BootInstant, Error, Result, StartResult, StoreErrorKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

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

/// Time for which the id of a delivery is remembered.
const RETENTION: Ttl = Ttl::from_secs(30 * 24 * 3600);

/// Remembered deliveries of a store.
pub(crate) struct Deliveries<'a> {
    docs: &'a dyn DocumentStore,
}

/// Stored record of a delivery.
#[derive(Serialize, Deserialize)]
struct Record {
    key: String,
}

impl<'a> Deliveries<'a> {
    pub(crate) fn of(docs: &'a dyn DocumentStore) -> Self {
        Self { docs }
    }

    /// Stores a delivery with its key and returns the effective key: this key, or the key of the
    /// first arrival.
    pub(crate) async fn key(&self, trigger: &str, delivery: &str, key: &str) -> Result<String> {
        self.first_key(&document_key("delivery", trigger, delivery.as_bytes()), key, RETENTION).await
    }

    /// Like [`Deliveries::key`], by the signed body, which is remembered for `retention`.
    pub(crate) async fn key_of_body(
        &self,
        trigger: &str,
        body: &[u8],
        key: &str,
        retention: Ttl,
    ) -> Result<String> {
        self.first_key(&document_key("signed", trigger, body), key, retention).await
    }

    async fn first_key(&self, path: &str, key: &str, retention: Ttl) -> Result<String> {
        let record = Record { key: key.to_owned() };
        let body = serde_json::to_string(&record).expect("a delivery record is serializable");
        let document = NewDocument::new(body).keep(retention);
        match self.docs.put_if(path, None, document).await? {
            PutIf::Conflict(Some(doc)) => {
                serde_json::from_str::<Record>(&doc.body).map(|first| first.key).map_err(|_| broken())
            }
            // The delivery is new, or its record expired during the call.
            PutIf::Written(_) | PutIf::Conflict(None) => Ok(record.key),
        }
    }
}

/// Returns the document key. Uses a hash because ids have any length and any characters, and bodies
/// are large.
fn document_key(kind: &str, trigger: &str, content: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [trigger.as_bytes(), content] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{RESERVED_PREFIX}server/{kind}/{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

fn broken() -> Error {
    let message = "invalid record of a remembered delivery".to_owned();
    Error::Store { kind: StoreErrorKind::Broken, message, hint: String::new(), source: None }
}

#[cfg(test)]
mod tests {
    use leasehold::Leasehold;

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

    #[tokio::test]
    async fn a_delivery_keeps_the_key_that_it_came_with_first() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let store = leasehold.store();
        let deliveries = Deliveries::of(store.documents().unwrap());
        assert_eq!(deliveries.key("orders", "evt_1", "a").await.unwrap(), "a");
        assert_eq!(deliveries.key("orders", "evt_1", "b").await.unwrap(), "a");
        assert_eq!(deliveries.key("orders", "evt_2", "b").await.unwrap(), "b");
        assert_eq!(deliveries.key("others", "evt_1", "c").await.unwrap(), "c");
    }

    #[tokio::test]
    async fn a_delivery_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        for (key, known) in [("a", "a"), ("b", "a")] {
            let leasehold = Leasehold::connect(&url).await.unwrap();
            let store = leasehold.store();
            let deliveries = Deliveries::of(store.documents().unwrap());
            assert_eq!(deliveries.key("orders", "evt_1", key).await.unwrap(), known);
            leasehold.close().await;
        }
    }

    #[tokio::test]
    async fn a_signed_body_keeps_the_key_that_it_came_with_first() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let store = leasehold.store();
        let deliveries = Deliveries::of(store.documents().unwrap());
        let key = async |trigger, body: &str, key| {
            deliveries.key_of_body(trigger, body.as_bytes(), key, Ttl::from_secs(60)).await.unwrap()
        };
        assert_eq!(key("push", "{}", "a").await, "a");
        assert_eq!(key("push", "{}", "b").await, "a");
        assert_eq!(key("push", "{ }", "b").await, "b");
        assert_eq!(key("other", "{}", "c").await, "c");
        // A body is not an id, even if it has the same bytes.
        assert_eq!(deliveries.key("push", "{}", "d").await.unwrap(), "d");
    }

    #[test]
    fn each_delivery_has_its_own_document_key() {
        assert_ne!(document_key("x", "a", b"bc"), document_key("x", "ab", b"c"));
        assert_ne!(document_key("x", "a", b"b"), document_key("y", "a", b"b"));
        assert!(document_key("x", "y", "é\n".repeat(10_000).as_bytes()).len() < 100);
    }
}
