//! Strategies for a lock that is held by another holder.

use std::time::Duration;

/// Strategy of an acquire for a lock that is held by another holder.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Strategy {
    /// Fails at once.
    #[default]
    FailFast,
    /// Tries again after growing pauses, without a place in the queue: other callers may be faster.
    Retry(Backoff),
    /// Waits in the fair queue for at most this long, or forever with `None`. A store without a
    /// queue is polled with growing pauses instead, and the first caller to poll a free lock acquires it.
    Wait(Option<Duration>),
}

/// Growing pauses between attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    /// First pause; each further one is twice as long.
    pub first: Duration,
    /// Maximum pause.
    pub longest: Duration,
    /// Maximum number of attempts after the first one.
    pub tries: u32,
}

/// Pauses of 1, 2, 4, 8 and 16 seconds.
impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(16), tries: 5 }
    }
}

impl Backoff {
    /// Returns the pause before retry number `again` (counted from 0), with a random jitter of ±25
    /// %, so that callers that failed together do not return together. Returns `None` when the
    /// attempts are used up.
    pub fn pause(&self, again: u32) -> Option<Duration> {
        let plain = self.first.saturating_mul(1 << again.min(20)).min(self.longest);
        (again < self.tries).then(|| plain.mul_f64(0.75 + 0.5 * fastrand::f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end() {
        let backoff = Backoff::default();
        for (again, seconds) in [1.0, 2.0, 4.0, 8.0, 16.0].into_iter().enumerate() {
            let pause = backoff.pause(u32::try_from(again).unwrap()).unwrap().as_secs_f64();
            assert!((0.75 * seconds..=1.25 * seconds).contains(&pause), "try {again}: {pause} s");
        }
        assert_eq!(backoff.pause(5), None);
        let endless = Backoff { tries: u32::MAX, ..backoff };
        assert!(endless.pause(4_000_000).unwrap() <= Duration::from_secs(20));
    }
}
