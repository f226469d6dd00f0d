//! Mutexes that ignore poisoning, counts of what is in progress at the same time, and limits of log
//! messages.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::BootInstant;

/// Locks a mutex and ignores poisoning.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of requests or connections in progress, per key.
pub(crate) type Counts<K> = Arc<Mutex<HashMap<K, usize>>>;

/// One request or connection in progress; dropping it decrements the count of its key.
pub(crate) struct InProgress<K: Hash + Eq> {
    counts: Counts<K>,
    key: K,
}

impl<K: Hash + Eq + Clone> InProgress<K> {
    /// Counts one more, or returns `None` if the key has reached the maximum.
    pub(crate) fn enter(counts: &Counts<K>, key: K, max: usize) -> Option<Self> {
        let mut all = locked(counts);
        let count = all.entry(key.clone()).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(Self { counts: counts.clone(), key })
    }
}

impl<K: Hash + Eq> Drop for InProgress<K> {
    fn drop(&mut self) {
        let mut all = locked(&self.counts);
        if let Some(count) = all.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.key);
            }
        }
    }
}

/// Minimum interval between log messages that any unauthenticated client can cause.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Limits log messages to one per second; the others are only counted.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<(Option<BootInstant>, u64)>);

impl LogLimit {
    /// Returns the number of messages suppressed since the last one if this one is to be logged, otherwise
    /// `None`.
    pub(crate) fn admit(&self, now: BootInstant) -> Option<u64> {
        let (logged_at, suppressed) = &mut *locked(&self.0);
        if logged_at.is_some_and(|at| now.after(at) < LOG_INTERVAL) {
            *suppressed += 1;
            return None;
        }
        *logged_at = Some(now);
        Some(std::mem::take(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_per_second_is_logged() {
        let log = LogLimit::default();
        let at = |millis: u64| log.admit(BootInstant::from_micros(5_000_000 + millis * 1000));
        assert_eq!(at(0), Some(0));
        assert_eq!((at(1), at(500), at(999)), (None, None, None));
        assert_eq!(at(1000), Some(3));
        assert_eq!(at(1999), None);
        assert_eq!(at(9000), Some(1));
        assert_eq!(at(10_000), Some(0));
    }
}
