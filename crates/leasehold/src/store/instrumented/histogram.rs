//! Histograms with fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A second and a minute in µs.
const S: u64 = 1_000_000;
const M: u64 = 60 * S;
/// Bounds for the duration of one store call, in µs.
pub(super) const CALL: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 10_000_000,
];
/// Bounds for the time until a lock is acquired, in µs.
pub(super) const WAIT: &[u64] =
    &[100, 500, 1000, 5000, 10_000, 50_000, 100_000, 500_000, S, 5 * S, 10 * S, 30 * S, M, 5 * M, 30 * M];
/// Bounds for the time for which a lock is held, in µs.
pub(super) const HOLD: &[u64] =
    &[1000, 10_000, 100_000, S, 5 * S, 15 * S, M, 5 * M, 15 * M, 60 * M, 240 * M, 1440 * M];

/// Histogram of durations with fixed buckets, for any number of threads.
#[derive(Debug)]
pub struct Histogram {
    /// Inclusive upper bounds of the buckets, in µs.
    bounds: &'static [u64],
    /// Counts, one more than there are bounds: the last is for durations above all bounds.
    counts: Box<[AtomicU64]>,
    sum_micros: AtomicU64,
}

/// Values of a histogram at one instant.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Buckets {
    /// Upper bound of each bucket, in seconds; the last is infinite.
    pub bounds: Vec<f64>,
    /// Number of durations in each bucket.
    pub counts: Vec<u64>,
    /// Sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Creates a histogram with these upper bounds, in µs, which must rise.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_micros: AtomicU64::new(0) }
    }

    /// Adds one duration.
    pub fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = self.bounds.iter().position(|bound| micros <= *bound).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the current values.
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
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the mean, in seconds; 0 if the histogram is empty.
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
