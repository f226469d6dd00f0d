//! Opening of the first connection: an attempt that fails, or gets no answer, is repeated within a fixed
//! time. A caller that waits for longer repeats the whole.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::sleep;

use crate::error::{Error, Result};
use crate::store::support::backoff::{ExponentialBackoff, jittered};

/// Maximum time until the first connection is open, as for every call of a store.
pub(crate) const FIRST_CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_ATTEMPTS: u32 = 3;
const PACE: Pace = Pace {
    timeout: FIRST_CONNECTION_TIMEOUT,
    overlap_after: Duration::from_secs(2),
    backoff: ExponentialBackoff::new(Duration::from_millis(100), Duration::from_millis(400)),
};

struct Pace {
    timeout: Duration,
    /// Time without an answer after which the next attempt begins. The earlier one goes on: the engine may
    /// be slow, or the request of one connection may be lost.
    overlap_after: Duration,
    /// Delays after failed attempts.
    backoff: ExponentialBackoff,
}

/// Runs `attempt` until it succeeds, up to [`MAX_ATTEMPTS`] times within [`FIRST_CONNECTION_TIMEOUT`].
/// Returns an error at once if a retry cannot help. `timed_out` is the error if no attempt had an answer.
pub(crate) async fn open<T, F: Future<Output = Result<T>>>(
    attempt: impl Fn() -> F,
    timed_out: impl FnOnce() -> Error,
) -> Result<T> {
    open_at(PACE, attempt, timed_out).await
}

async fn open_at<T, F: Future<Output = Result<T>>>(
    Pace { timeout, overlap_after, mut backoff }: Pace,
    attempt: impl Fn() -> F,
    timed_out: impl FnOnce() -> Error,
) -> Result<T> {
    let mut running = FuturesUnordered::from_iter([attempt()]);
    let (mut started, mut failed) = (1, None);
    let mut next = pin!(sleep(overlap_after));
    let mut end = pin!(sleep(timeout));
    loop {
        tokio::select! {
            biased;
            Some(opened) = running.next() => match opened {
                Err(error) if error.is_retryable() && error.retry_after().is_none() => {
                    if started == MAX_ATTEMPTS && running.is_empty() {
                        return Err(error);
                    }
                    tracing::debug!(%error, "the store cannot be opened; retrying");
                    next.set(sleep(jittered(backoff.next_delay())));
                    failed = Some(error);
                }
                opened => return opened,
            },
            () = &mut next, if started < MAX_ATTEMPTS => {
                started += 1;
                running.push(attempt());
                next.set(sleep(overlap_after));
            }
            () = &mut end => return Err(failed.unwrap_or_else(timed_out)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::error::StoreErrorKind;
    use crate::store::{BootInstant, RefusedUntil};

    /// Short delays, and a timeout that no test reaches.
    const QUICK: Pace = Pace {
        timeout: Duration::from_mins(1),
        overlap_after: Duration::from_millis(20),
        backoff: ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)),
    };

    fn error(kind: StoreErrorKind) -> Error {
        Error::store(kind, "failed", "")
    }

    /// Runs attempts of which the first `failures` fail with this error; returns the result and their number.
    async fn opened(failures: u32, error: impl Fn() -> Error) -> (Result<u32>, u32) {
        let attempts = AtomicU32::new(0);
        let attempt = || {
            let number = attempts.fetch_add(1, Ordering::Relaxed) + 1;
            std::future::ready(if number > failures { Ok(number) } else { Err(error()) })
        };
        let opened = open_at(QUICK, attempt, || unreachable!("every attempt is answered")).await;
        (opened, attempts.into_inner())
    }

    #[tokio::test]
    async fn a_failed_attempt_is_repeated_twice_at_most() {
        let unavailable = || error(StoreErrorKind::Unavailable);
        assert!(matches!(opened(0, unavailable).await, (Ok(1), 1)));
        assert!(matches!(opened(2, unavailable).await, (Ok(3), 3)));
        assert!(matches!(opened(9, unavailable).await, (Err(_), 3)));
    }

    #[tokio::test]
    async fn an_error_that_a_retry_cannot_change_is_returned_at_once() {
        assert!(matches!(opened(9, || error(StoreErrorKind::NotPermitted)).await, (Err(_), 1)));
        let until = BootInstant::now().plus(Duration::from_mins(1));
        let refused = || {
            error(StoreErrorKind::Unavailable).because(RefusedUntil { until, said: "slow down".to_owned() })
        };
        assert!(matches!(opened(9, refused).await, (Err(_), 1)));
    }

    #[tokio::test]
    async fn an_attempt_without_an_answer_goes_on_beside_the_next() {
        for answered in [0, 1] {
            let (attempts, second_begins) = (AtomicU32::new(0), Notify::new());
            // One attempt succeeds when the second one has begun; the others get no answer.
            let attempt = async || {
                let number = attempts.fetch_add(1, Ordering::Relaxed);
                if number == 1 {
                    second_begins.notify_one();
                }
                if number != answered {
                    pending::<()>().await;
                }
                second_begins.notified().await;
                Ok(number)
            };
            let opened = open_at(QUICK, attempt, || unreachable!("one is answered")).await;
            assert_eq!(opened.unwrap(), answered);
        }
    }

    #[tokio::test]
    async fn without_any_answer_it_ends_in_time() {
        let pace = Pace { timeout: Duration::from_millis(100), ..QUICK };
        let silent = open_at(pace, pending::<Result<()>>, || error(StoreErrorKind::Unavailable));
        assert!(tokio::time::timeout(Duration::from_secs(30), silent).await.expect("it ends").is_err());
    }
}
