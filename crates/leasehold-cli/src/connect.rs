//! Opening of the store, with retries if it cannot be reached yet: a caller that waits for a lock
//! also waits for its store.

use std::time::Duration;

use leasehold::{Backoff, BootInstant, Error, Leasehold, StoreErrorKind};

use crate::config::logs_renewals;
use crate::run::WaitTimeout;

/// Delays between two attempts.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(2);
/// Minimum time for an attempt, even if it ends after the deadline.
const MIN_ATTEMPT: Duration = Duration::from_secs(1);

/// Timeout of a command, counted from its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    timeout: WaitTimeout,
    started: BootInstant,
}

impl Deadline {
    pub(crate) fn new(timeout: WaitTimeout) -> Self {
        Self { timeout, started: BootInstant::now() }
    }

    pub(crate) fn remaining(self) -> WaitTimeout {
        match self.timeout {
            WaitTimeout::For(time) => WaitTimeout::For(self.started.plus(time).after(BootInstant::now())),
            other => other,
        }
    }

    /// Returns the delay after an attempt that failed with this error; `None` if there is no further attempt.
    pub(crate) fn retry_delay(self, error: &Error, again: u32) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        // A store that refuses requests until a certain time is not tried before that time.
        let refused = error.retry_after().unwrap_or_default();
        let delays = Backoff::default().initial_delay(FIRST_DELAY).max_delay(MAX_DELAY).max_retries(u32::MAX);
        let pause = delays.delay(again)?.max(refused);
        match self.remaining() {
            WaitTimeout::FailFast => None,
            WaitTimeout::For(left) => (refused < left).then_some(pause.min(left)),
            WaitTimeout::Forever => Some(pause),
        }
    }
}

/// Opens the store; renewals are recorded in the history if the settings require that.
pub(crate) async fn open(url: &str) -> Result<Leasehold, Error> {
    let leasehold = Leasehold::connect(url).await?;
    // An error in the settings has been reported before.
    Ok(if logs_renewals().unwrap_or(false) { leasehold.logging_renewals() } else { leasehold })
}

/// Opens the store. If the store cannot be reached, retries until the deadline; `on_first_error`
/// receives the first error.
pub(crate) async fn connect(
    url: &str,
    deadline: Deadline,
    on_first_error: impl Fn(&Error) + Send,
) -> Result<Leasehold, Error> {
    for again in 0.. {
        let opening = open(url);
        let opened = match deadline.remaining() {
            WaitTimeout::For(left) => {
                let opened = tokio::time::timeout(left.max(MIN_ATTEMPT), opening).await;
                opened.unwrap_or_else(|_| Err(timeout_error("respond")))
            }
            _ => opening.await,
        };
        match opened {
            Ok(leasehold) => return Ok(leasehold),
            Err(error) => {
                let Some(pause) = deadline.retry_delay(&error, again) else { return Err(error) };
                if again == 0 {
                    on_first_error(&error);
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
    unreachable!("the attempts do not end")
}

/// Returns the error for a store that did not do this in time.
pub(crate) fn timeout_error(what: &str) -> Error {
    let message = format!("the store did not {what} in time");
    Error::store(StoreErrorKind::Unavailable, message, "check whether the store is running, or wait longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(kind: StoreErrorKind) -> Error {
        Error::store(kind, "", "")
    }

    #[test]
    fn only_a_waiting_caller_retries_and_only_retryable_errors() {
        let unreachable_store = store(StoreErrorKind::Unavailable);
        assert_eq!(Deadline::new(WaitTimeout::FailFast).retry_delay(&unreachable_store, 0), None);
        assert!(Deadline::new(WaitTimeout::Forever).retry_delay(&unreachable_store, 1_000_000).is_some());
        assert_eq!(Deadline::new(WaitTimeout::For(Duration::ZERO)).retry_delay(&unreachable_store, 0), None);
        let short = Duration::from_millis(40);
        let pause = Deadline::new(WaitTimeout::For(short)).retry_delay(&unreachable_store, 0).unwrap();
        assert!(pause <= short, "{pause:?}");
        let refused = store(StoreErrorKind::NotPermitted);
        assert_eq!(Deadline::new(WaitTimeout::Forever).retry_delay(&refused, 0), None);
    }
}
