//! Strategies for a lock that is held by another holder.

use std::time::Duration;

use crate::store::backoff::{ExponentialBackoff, jittered};

/// Strategy of an acquire for a lock that is held by another holder.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Fails at once.
    #[default]
    FailFast,
    /// Tries again after growing delays, without a ticket in the queue: other callers may be faster.
    Retry(Backoff),
    /// Waits in the fair queue for at most this long, or forever with `None`. A store without a
    /// queue is polled with growing delays instead, and the first caller to poll a free lock
    /// acquires it.
    Wait(Option<Duration>),
}

/// Growing delays between attempts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Backoff {
    /// First delay; each further one is twice as long.
    pub initial_delay: Duration,
    /// Maximum delay.
    pub max_delay: Duration,
    /// Maximum number of attempts after the first one.
    pub max_retries: u32,
}

/// Delays of 1, 2, 4, 8 and 16 seconds.
impl Default for Backoff {
    fn default() -> Self {
        Self { initial_delay: Duration::from_secs(1), max_delay: Duration::from_secs(16), max_retries: 5 }
    }
}

setters!(Backoff {
    /// Sets the first delay; each further one is twice as long.
    initial_delay: Duration,
    /// Sets the maximum delay.
    max_delay: Duration,
    /// Sets the maximum number of attempts after the first one.
    max_retries: u32,
});

impl Backoff {
    /// Returns the delay before retry number `retry` (counted from 0), with a random jitter of ±25
    /// %, so that callers that failed together do not return together. Returns `None` when the
    /// attempts are used up.
    pub fn delay(&self, retry: u32) -> Option<Duration> {
        let delays = ExponentialBackoff::new(self.initial_delay, self.max_delay);
        (retry < self.max_retries).then(|| jittered(delays.delay(retry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_end() {
        let backoff = Backoff::default();
        for (retry, seconds) in [1.0, 2.0, 4.0, 8.0, 16.0].into_iter().enumerate() {
            let delay = backoff.delay(u32::try_from(retry).unwrap()).unwrap().as_secs_f64();
            assert!((0.75 * seconds..=1.25 * seconds).contains(&delay), "retry {retry}: {delay} s");
        }
        assert_eq!(backoff.delay(5), None);
        let endless = Backoff { max_retries: u32::MAX, ..backoff };
        assert!(endless.delay(4_000_000).unwrap() <= Duration::from_secs(20));
    }
}
