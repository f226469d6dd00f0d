//! Sample: the result of one measurement.

use hdrhistogram::Histogram;

use crate::measure::{Window, now};
use crate::stats::float;

/// Rate, or durations, or both.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Tasks per second.
    pub(super) rate: Option<f64>,
    /// Durations in nanoseconds.
    pub(super) times: Option<Histogram<u64>>,
}

impl Sample {
    /// Returns the rate of this number of tasks since `begun`.
    pub(super) fn since(begun: u64, tasks: u64) -> Self {
        let rate = float(tasks) / (float(now() - begun) / 1e9);
        Self { rate: Some(rate), times: None }
    }

    /// Returns the sample of calls that ended within the window, each with `batch` tasks.
    pub(super) fn of_calls(times: Histogram<u64>, batch: u32, window: Window) -> Self {
        let tasks = times.len() * u64::from(batch);
        Self { rate: Some(float(tasks) / (float(window.nanos()) / 1e9)), times: Some(times) }
    }

    pub(super) fn quantile(&self, quantile: f64) -> Option<f64> {
        let times = self.times.as_ref().filter(|times| !times.is_empty())?;
        Some(float(times.value_at_quantile(quantile)))
    }
}
