//! Figures by minute: what is stored of one hour, and how the figures of several servers are merged.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Figures of one minute. Counters of several servers are added. Gauges describe the whole store, so the
/// larger one is kept.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Minute {
    /// Minute since the epoch; not stored, it follows from the place in the hour.
    #[serde(skip)]
    pub(crate) number: u64,
    /// Acquired locks.
    #[serde(rename = "a", skip_serializing_if = "is_zero")]
    pub(crate) acquisitions: u64,
    /// Requests that found the lock held.
    #[serde(rename = "c", skip_serializing_if = "is_zero")]
    pub(crate) conflicts: u64,
    /// Leases that ended without their holder.
    #[serde(rename = "r", skip_serializing_if = "is_zero")]
    pub(crate) recovered: u64,
    /// Requests that failed with an error of the store.
    #[serde(rename = "e", skip_serializing_if = "is_zero")]
    pub(crate) failures: u64,
    /// Task leases that were granted.
    #[serde(rename = "l", skip_serializing_if = "is_zero")]
    pub(crate) task_leases: u64,
    /// Task leases that expired.
    #[serde(rename = "x", skip_serializing_if = "is_zero")]
    pub(crate) task_expiries: u64,
    /// Grants by the time that their requests waited, in the buckets of the histogram.
    #[serde(rename = "w", skip_serializing_if = "Vec::is_empty")]
    pub(crate) waits: Vec<u64>,
    /// Held locks.
    #[serde(rename = "h", skip_serializing_if = "is_zero")]
    pub(crate) held: u64,
    /// Waiters for locks.
    #[serde(rename = "q", skip_serializing_if = "is_zero")]
    pub(crate) waiting: u64,
    /// Tasks by state, over all queues.
    #[serde(rename = "t", skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tasks: BTreeMap<String, u64>,
}

/// Figures of one hour: the content of one document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hour {
    /// Hour since the epoch. The document of an hour is used again two days later.
    #[serde(rename = "hour")]
    pub(crate) number: u64,
    /// Upper bounds of the buckets in seconds.
    #[serde(default)]
    pub(crate) bounds: Vec<f64>,
    /// Figures by minute of the hour.
    pub(crate) minutes: BTreeMap<u8, Minute>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Minute {
    /// Whether there is nothing worth storing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self { number: self.number, ..Self::default() }
    }

    /// Adds the figures of another server for the same minute.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.acquisitions += other.acquisitions;
        self.conflicts += other.conflicts;
        self.recovered += other.recovered;
        self.failures += other.failures;
        self.task_leases += other.task_leases;
        self.task_expiries += other.task_expiries;
        self.waits.resize(self.waits.len().max(other.waits.len()), 0);
        self.waits.iter_mut().zip(&other.waits).for_each(|(sum, count)| *sum += count);
        self.held = self.held.max(other.held);
        self.waiting = self.waiting.max(other.waiting);
        for (state, count) in &other.tasks {
            let most = self.tasks.entry(state.clone()).or_default();
            *most = (*most).max(*count);
        }
    }
}

impl Hour {
    /// Adds the figures of a minute. Figures of another hour in the same document are older than a day
    /// and are discarded, and so are waits in other buckets.
    pub(crate) fn add(&mut self, minute: &Minute, bounds: &[f64]) {
        let hour = minute.number / 60;
        if self.number != hour {
            *self = Self { number: hour, ..Self::default() };
        }
        if self.bounds != bounds {
            bounds.clone_into(&mut self.bounds);
            self.minutes.values_mut().for_each(|minute| minute.waits.clear());
        }
        let place = u8::try_from(minute.number % 60).unwrap_or_default();
        self.minutes.entry(place).or_default().merge(minute);
    }

    /// Returns the minutes with figures, oldest first.
    pub(crate) fn into_minutes(self) -> impl Iterator<Item = Minute> {
        let hour = self.number;
        let at = move |place: u8| hour * 60 + u64::from(place);
        self.minutes.into_iter().map(move |(place, minute)| Minute { number: at(place), ..minute })
    }
}

/// Returns the upper bound of the bucket in which this share of the waits lies, in seconds.
pub(crate) fn quantile(waits: &[u64], bounds: &[f64], share: f64) -> Option<f64> {
    let total: u64 = waits.iter().sum();
    if total == 0 {
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "counts of one minute")]
    let wanted = total as f64 * share;
    let mut sum = 0;
    for (number, count) in waits.iter().enumerate() {
        sum += count;
        #[expect(clippy::cast_precision_loss, reason = "counts of one minute")]
        let reached = sum as f64 >= wanted;
        if reached {
            return bounds.get(number).or(bounds.last()).copied();
        }
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(minute: u64) -> Minute {
        let tasks = [("pending".to_owned(), 4)].into();
        Minute { number: minute, acquisitions: 3, held: 2, waits: vec![1, 2], tasks, ..Minute::default() }
    }

    #[test]
    fn counters_are_added_and_gauges_are_not() {
        let mut hour = Hour::default();
        hour.add(&minute(605), &[0.1, 1.0]);
        hour.add(&minute(605), &[0.1, 1.0]);
        let sum = &hour.minutes[&5];
        assert_eq!((sum.acquisitions, sum.held, sum.tasks["pending"]), (6, 2, 4));
        assert_eq!(sum.waits, [2, 4]);
        assert_eq!(hour.clone().into_minutes().next().unwrap().number, 605);
        let text = serde_json::to_string(&hour).unwrap();
        assert_eq!(serde_json::from_str::<Hour>(&text).unwrap(), hour);
        // The document is used again for a later hour.
        hour.add(&minute(605 + 48 * 60), &[0.1, 1.0]);
        assert_eq!((hour.number, hour.minutes.len(), hour.minutes[&5].acquisitions), (58, 1, 3));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_bucket() {
        let bounds = [0.001, 0.01, 0.1];
        assert_eq!(quantile(&[98, 1, 1, 0], &bounds, 0.5), Some(0.001));
        assert_eq!(quantile(&[98, 1, 1, 0], &bounds, 0.99), Some(0.01));
        assert_eq!(quantile(&[0, 0, 0, 5], &bounds, 0.5), Some(0.1));
        assert_eq!(quantile(&[], &bounds, 0.5), None);
    }

    #[test]
    fn an_hour_of_figures_is_small() {
        let mut hour = Hour::default();
        for number in 0..60 {
            let mut full = minute(number);
            full.waits = vec![1_000; 20];
            full.tasks = ["scheduled", "blocked", "pending", "running", "succeeded", "failed", "aborted"]
                .map(|state| (state.to_owned(), 1_000_000))
                .into();
            hour.add(&full, &[0.5; 20]);
        }
        assert!(serde_json::to_string(&hour).unwrap().len() < 20_000);
    }
}
