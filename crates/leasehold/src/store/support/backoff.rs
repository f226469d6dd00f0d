//! Delays between retries.

use std::time::Duration;

/// Delays that double from an initial one up to a maximum, until a success resets them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExponentialBackoff {
    initial: Duration,
    max: Duration,
    /// Number of delays since the last success.
    retries: u32,
}

impl ExponentialBackoff {
    pub(crate) const fn new(initial: Duration, max: Duration) -> Self {
        Self { initial, max, retries: 0 }
    }

    /// Returns the delay before the next retry, without jitter.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = self.delay(self.retries);
        self.retries = self.retries.saturating_add(1);
        delay
    }

    /// Begins again with the initial delay, after a success.
    pub(crate) const fn reset(&mut self) {
        self.retries = 0;
    }

    /// Returns the delay before retry number `retry`, counted from 0, without jitter.
    pub(crate) fn delay(&self, retry: u32) -> Duration {
        self.initial.saturating_mul(1 << retry.min(20)).min(self.max)
    }
}

/// Returns the delay with a random jitter of ±25 %, so that callers that failed together do not return
/// together.
pub(crate) fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(0.75 + 0.5 * fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_to_the_maximum_and_begin_again() {
        let mut backoff = ExponentialBackoff::new(Duration::from_millis(50), Duration::from_millis(300));
        let mut delays = || [0; 5].map(|_| backoff.next_delay().as_millis());
        assert_eq!(delays(), [50, 100, 200, 300, 300]);
        assert_eq!(delays(), [300; 5]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), Duration::from_millis(50));
        assert_eq!(backoff.delay(u32::MAX), Duration::from_millis(300));
    }

    #[test]
    fn jitter_is_at_most_a_quarter() {
        for _ in 0..100 {
            let millis = jittered(Duration::from_secs(1)).as_millis();
            assert!((750..=1250).contains(&millis), "{millis}");
        }
    }
}
