//! Opening the store, also one that cannot be reached yet: a caller that waits for a lock waits for its store too.

use std::time::Duration;

use leasehold::{Backoff, Error, Leasehold, Moment, Trouble};

use crate::config::logs_renewals;
use crate::run::Patience;

/// The pauses between two tries.
const PAUSES: Backoff =
    Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(2), tries: u32::MAX };

/// A try may take so long after the deadline.
const LAST_TRY: Duration = Duration::from_secs(1);

/// How long a command goes on, from when it began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    patience: Patience,
    started: Moment,
}

impl Deadline {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, started: Moment::now() }
    }

    /// What is left of it.
    pub(crate) fn left(self) -> Patience {
        match self.patience {
            Patience::For(time) => Patience::For(self.started.plus(time).after(Moment::now())),
            other => other,
        }
    }

    /// The pause after a try that failed with this error; none if there is not to be another.
    pub(crate) fn pause(self, error: &Error, again: u32) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        // A store that refuses requests until a certain time is not tried before that.
        let refused = error.retry_after().unwrap_or_default();
        let pause = PAUSES.pause(again)?.max(refused);
        match self.left() {
            Patience::FailFast => None,
            Patience::For(left) => (refused < left).then_some(pause.min(left)),
            Patience::Forever => Some(pause),
        }
    }
}

/// Opens the store, with renewals written into the history if the settings say so.
pub(crate) async fn open(url: &str) -> Result<Leasehold, Error> {
    let leasehold = Leasehold::connect(url).await?;
    // A mistake in the settings has been told before.
    Ok(if logs_renewals().unwrap_or(false) { leasehold.logging_renewals() } else { leasehold })
}

/// Opens the store. One that cannot be reached is tried again until the deadline; `say` is told the first time.
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

/// The error of a store that was silent for too long.
pub(crate) fn no_answer() -> Error {
    let message = "the store did not answer in time".to_owned();
    let hint = "see whether it is up, or wait longer".to_owned();
    Error::Store { trouble: Trouble::Unavailable, message, hint, source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(trouble: Trouble) -> Error {
        Error::Store { trouble, message: String::new(), hint: String::new(), source: None }
    }

    #[test]
    fn only_who_waits_tries_again_and_only_what_may_succeed() {
        let away = store(Trouble::Unavailable);
        assert_eq!(Deadline::new(Patience::FailFast).pause(&away, 0), None);
        assert!(Deadline::new(Patience::Forever).pause(&away, 1_000_000).is_some());
        assert_eq!(Deadline::new(Patience::For(Duration::ZERO)).pause(&away, 0), None);
        let short = Duration::from_millis(40);
        let pause = Deadline::new(Patience::For(short)).pause(&away, 0).unwrap();
        assert!(pause <= short, "{pause:?}");
        let refused = store(Trouble::NotPermitted);
        assert_eq!(Deadline::new(Patience::Forever).pause(&refused, 0), None);
    }
}
