//! Opening of the store, with retries if it cannot be reached yet: a caller that waits for a lock
//! also waits for its store.

use std::time::Duration;

use leasehold::{Backoff, BootInstant, Error, Leasehold, StoreErrorKind};

use crate::config::logs_renewals;
use crate::run::Patience;

/// Delays between two attempts.
const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2), tries: u32::MAX };

/// Minimum time for an attempt, even if it ends after the deadline.
const LAST_TRY: Duration = Duration::from_secs(1);

/// Timeout of a command, counted from its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    patience: Patience,
    started: BootInstant,
}

impl Deadline {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, started: BootInstant::now() }
    }

    /// Returns the remaining time.
    pub(crate) fn left(self) -> Patience {
        match self.patience {
            Patience::For(time) => Patience::For(self.started.plus(time).after(BootInstant::now())),
            other => other,
        }
    }

    /// Returns the delay after an attempt that failed with this error; `None` if there is no
    /// further attempt.
    pub(crate) fn pause(self, error: &Error, again: u32) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        // A store that refuses requests until a certain time is not tried before that time.
        let refused = error.retry_after().unwrap_or_default();
        let pause = PAUSES.pause(again)?.max(refused);
        match self.left() {
            Patience::FailFast => None,
            Patience::For(left) => (refused < left).then_some(pause.min(left)),
            Patience::Forever => Some(pause),
        }
    }
}

/// Opens the store; renewals are recorded in the history if the settings require that.
pub(crate) async fn open(url: &str) -> Result<Leasehold, Error> {
    let leasehold = Leasehold::connect(url).await?;
    // An error in the settings has been reported before.
    Ok(if logs_renewals().unwrap_or(false) { leasehold.logging_renewals() } else { leasehold })
}

/// Opens the store. If the store cannot be reached, retries until the deadline; `say` receives the
/// first error.
pub(crate) async fn connect(
    url: &str,
    deadline: Deadline,
    say: impl Fn(&Error) + Send,
) -> Result<Leasehold, Error> {
    for again in 0.. {
        let opening = open(url);
        let opened = match deadline.left() {
            Patience::For(left) => {
                let opened = tokio::time::timeout(left.max(LAST_TRY), opening).await;
                opened.unwrap_or_else(|_| Err(no_answer()))
            }
            _ => opening.await,
        };
        match opened {
            Ok(leasehold) => return Ok(leasehold),
            Err(error) => {
                let Some(pause) = deadline.pause(&error, again) else { return Err(error) };
                if again == 0 {
                    say(&error);
                }
                tokio::time::sleep(pause).await;
            }
        }
    }
    unreachable!("the tries have no end")
}

/// Returns the error for a store that did not respond in time.
pub(crate) fn no_answer() -> Error {
    let message = "the store did not answer in time".to_owned();
    let hint = "see whether it is up, or wait longer".to_owned();
    Error::Store { trouble: StoreErrorKind::Unavailable, message, hint, source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(trouble: StoreErrorKind) -> Error {
        Error::Store { trouble, message: String::new(), hint: String::new(), source: None }
    }

    #[test]
    fn only_who_waits_tries_again_and_only_what_may_succeed() {
        let away = store(StoreErrorKind::Unavailable);
        assert_eq!(Deadline::new(Patience::FailFast).pause(&away, 0), None);
        assert!(Deadline::new(Patience::Forever).pause(&away, 1_000_000).is_some());
        assert_eq!(Deadline::new(Patience::For(Duration::ZERO)).pause(&away, 0), None);
        let short = Duration::from_millis(40);
        let pause = Deadline::new(Patience::For(short)).pause(&away, 0).unwrap();
        assert!(pause <= short, "{pause:?}");
        let refused = store(StoreErrorKind::NotPermitted);
        assert_eq!(Deadline::new(Patience::Forever).pause(&refused, 0), None);
    }
}
