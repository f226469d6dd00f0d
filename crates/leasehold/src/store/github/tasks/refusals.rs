//! Writes that GitHub has refused to this client. Each of them is sent again only after a pause: it costs
//! requests, and the service most likely refuses it again.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Mutex;
use std::time::Duration;

use crate::store::BootInstant;
use crate::store::support::mutex::lock;

/// Refused writes, and the time until which each of them is not sent again.
pub(super) struct Refusals<K> {
    pause: Duration,
    refused: Mutex<HashMap<K, BootInstant>>,
}

/// Maximum number of writes that are remembered. Forgetting one only costs requests.
const MAX_REFUSALS: usize = 2000;

impl<K: Eq + Hash> Refusals<K> {
    /// Creates an empty list of writes that are sent again after `pause`.
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, refused: Mutex::default() }
    }

    /// Whether this write was refused, and its pause is not over.
    pub(super) fn contains(&self, write: &K) -> bool {
        lock(&self.refused).get(write).is_some_and(|until| BootInstant::now() < *until)
    }

    pub(super) fn insert(&self, write: K) {
        let (mut refused, now) = (lock(&self.refused), BootInstant::now());
        refused.retain(|_, until| now < *until);
        if refused.len() >= MAX_REFUSALS {
            refused.clear();
        }
        refused.insert(write, now.plus(self.pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_write_is_sent_again_after_its_pause() {
        let refusals = Refusals::new(Duration::from_mins(10));
        refusals.insert(1);
        assert!(refusals.contains(&1) && !refusals.contains(&2));
        let refusals = Refusals::new(Duration::ZERO);
        refusals.insert(1);
        assert!(!refusals.contains(&1));
    }

    #[test]
    fn the_number_of_remembered_writes_is_limited() {
        let refusals = Refusals::new(Duration::from_mins(10));
        for write in 0..=MAX_REFUSALS {
            refusals.insert(write);
        }
        assert!(refusals.contains(&MAX_REFUSALS) && !refusals.contains(&0));
    }
}
