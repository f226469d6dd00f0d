//! What to do while somebody else has the lock.

use std::time::Duration;

/// What to do while somebody else has the lock.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Strategy {
    /// Give up at once.
    #[default]
    FailFast,
    /// Ask again after a while, and after a longer while. No place in the queue: others may be faster.
    Retry(Backoff),
    /// Stand in the fair queue, for so long at most, or for ever. A store without a queue is asked again and again
    /// with growing pauses instead, and whoever asks at the right time is first.
    Wait(Option<Duration>),
}

/// Growing pauses between tries.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    /// The first pause; each one after it is twice as long.
    pub first: Duration,
    /// No pause is longer.
    pub longest: Duration,
    /// So many more tries after the first.
    pub tries: u32,
}

/// 1, 2, 4, 8 and 16 seconds.
impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(16), tries: 5 }
    }
}

impl Backoff {
    /// The pause before try number `again` (counted from 0), a quarter longer or shorter by chance, so that those who
    /// lost together do not come back together. None when the tries are used up.
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
