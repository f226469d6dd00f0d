//! Counts in fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// For one call of a store, in µs.
pub(super) const CALL: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];
/// For waiting until a lock is had.
pub(super) const WAIT: &[u64] = &[
    100,
    500,
    1_000,
    5_000,
    10_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
];
/// For holding one.
pub(super) const HOLD: &[u64] = &[
    1_000,
    10_000,
    100_000,
    1_000_000,
    5_000_000,
    15_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    14_400_000_000,
    86_400_000_000,
];

/// Durations counted in fixed buckets, by any number of threads.
#[derive(Debug)]
pub struct Histogram {
    /// In µs, each included in its bucket.
    bounds: &'static [u64],
    /// One more than there are bounds: the last is for what is above all of them.
    counts: Box<[AtomicU64]>,
    sum_micros: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// The upper bound of each bucket, in seconds; the last is infinite.
    pub bounds: Vec<f64>,
    /// How many fell into each bucket.
    pub counts: Vec<u64>,
    /// All together, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// With these upper bounds, in µs, which rise.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_micros: AtomicU64::new(0) }
    }

    /// Counts one.
    pub fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.bounds.iter().position(|bound| micros <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn read(&self) -> Buckets {
        let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        let bounds = self.bounds.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        Buckets {
            bounds: bounds.collect(),
            counts: self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect(),
            sum: seconds(self.sum_micros.load(Ordering::Relaxed)),
        }
    }
}

impl Buckets {
    /// How many there are in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The mean, in seconds; 0 if there is none.
    pub fn mean(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a mean of more than 2^53 need not be exact")]
        let count = self.count() as f64;
        if count > 0.0 { self.sum / count } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_bound_is_below_it() {
        let histogram = Histogram::new(&[10, 100]);
        for micros in [0, 10, 11, 100, 101, u64::MAX / 2] {
            histogram.add(Duration::from_micros(micros));
        }
        let read = histogram.read();
        assert_eq!(read.counts, [2, 2, 2]);
        assert_eq!(read.bounds, [0.000_01, 0.000_1, f64::INFINITY]);
        assert_eq!(read.count(), 6);
    }

    #[test]
    fn bounds_rise() {
        for bounds in [CALL, WAIT, HOLD] {
            assert!(bounds.is_sorted());
        }
    }
}
