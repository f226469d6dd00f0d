//! Counters of webhook deliveries by trigger and outcome. Triggers come from `leasehold.toml`, so
//! the number of series is bounded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::webhooks::{Outcome, RejectLog, RejectReason};

/// Reason of a rejection without a trigger.
const UNKNOWN: &str = "unknown_trigger";

/// Deliveries since the start.
#[derive(Default)]
pub(crate) struct WebhookCounts {
    triggers: RwLock<BTreeMap<Arc<str>, Arc<Counts>>>,
    unknown: AtomicU64,
    log: RejectLog,
}

/// Deliveries for one trigger.
#[derive(Default)]
pub(super) struct Counts {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    rejections: [AtomicU64; RejectReason::ALL.len()],
}

impl WebhookCounts {
    /// Counts a delivery for a trigger, which must be one of the settings.
    pub(crate) fn add(&self, trigger: &str, outcome: Outcome) {
        self.of(trigger).outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a rejected delivery and logs it, unless another rejection was logged shortly before.
    pub(crate) fn reject(&self, trigger: &str, reason: RejectReason) {
        self.log.write(Some(trigger), reason.as_str());
        self.add(trigger, Outcome::Rejected);
        self.of(trigger).rejections[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a delivery for a trigger that does not exist.
    pub(crate) fn reject_unknown(&self) {
        self.log.write(None, UNKNOWN);
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of deliveries for triggers that do not exist, and the reason label for them.
    pub(super) fn unknown(&self) -> (&'static str, u64) {
        (UNKNOWN, self.unknown.load(Ordering::Relaxed))
    }

    /// Returns the counters of all triggers.
    pub(super) fn all(&self) -> Vec<(Arc<str>, Arc<Counts>)> {
        let triggers = self.triggers.read().unwrap_or_else(PoisonError::into_inner);
        triggers.iter().map(|(trigger, counts)| (trigger.clone(), counts.clone())).collect()
    }

    fn of(&self, trigger: &str) -> Arc<Counts> {
        if let Some(counts) = self.triggers.read().unwrap_or_else(PoisonError::into_inner).get(trigger) {
            return counts.clone();
        }
        let mut triggers = self.triggers.write().unwrap_or_else(PoisonError::into_inner);
        triggers.entry(trigger.into()).or_default().clone()
    }
}

impl Counts {
    /// Returns the counts by outcome; zero counts are omitted.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        occurred(Outcome::ALL.map(Outcome::as_str), &self.outcomes)
    }

    /// Returns the counts by reason of the rejection; zero counts are omitted.
    pub(super) fn rejections(&self) -> impl Iterator<Item = (&'static str, u64)> {
        occurred(RejectReason::ALL.map(RejectReason::as_str), &self.rejections)
    }
}

fn occurred<const N: usize>(
    labels: [&'static str; N],
    counts: &[AtomicU64; N],
) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    labels.into_iter().zip(counts).filter(|(_, count)| *count > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_and_each_reason_has_its_own_count() {
        let counts = WebhookCounts::default();
        for (times, reason) in (1..).zip(RejectReason::ALL) {
            (0..times).for_each(|_| counts.reject("push", reason));
        }
        for (times, outcome) in (1..).zip(Outcome::ALL) {
            (0..times).for_each(|_| counts.add("pay", outcome));
        }
        let all = counts.all();
        let labels: Vec<_> = all.iter().map(|(trigger, _)| &**trigger).collect();
        assert_eq!(labels, ["pay", "push"]);
        let outcomes: Vec<_> = all[0].1.outcomes().collect();
        assert_eq!(outcomes, (1..).zip(Outcome::ALL).map(|(n, o)| (o.as_str(), n)).collect::<Vec<_>>());
        let rejections: Vec<_> = all[1].1.rejections().collect();
        assert_eq!(
            rejections,
            (1..).zip(RejectReason::ALL).map(|(n, r)| (r.as_str(), n)).collect::<Vec<_>>()
        );
    }
}
