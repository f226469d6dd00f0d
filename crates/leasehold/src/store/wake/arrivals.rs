//! Waking workers that wait for tasks. A wake-up is a hint that something may have arrived; whoever finds nothing
//! waits again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::QueueName;

/// Who waits for tasks of which queue, on one store of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Doorbell(Arc<Mutex<BTreeMap<QueueName, Vec<Arc<Notify>>>>>);

impl Doorbell {
    /// Wake-ups for these queues, which also end after `poll`.
    pub(crate) fn listen(&self, queues: &[QueueName], poll: Duration) -> Arrivals {
        let bell = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        for queue in queues {
            waiting.entry(queue.clone()).or_default().push(bell.clone());
        }
        Arrivals { bell, door: self.clone(), queues: queues.to_vec(), poll, notified: None }
    }

    /// Something may have arrived in this queue: wakes up to so many who wait, the longest waiting first.
    pub(crate) fn ring(&self, queue: &QueueName, tasks: usize) {
        if let Some(bells) = self.waiting().get_mut(queue) {
            let served = tasks.min(bells.len());
            for bell in &bells[..served] {
                bell.notify_one();
            }
            // The next to come is for those who were not served this time.
            bells.rotate_left(served);
        }
    }

    /// Something may have arrived anywhere.
    pub(crate) fn ring_all(&self) {
        for bell in self.waiting().values().flatten() {
            bell.notify_one();
        }
    }

    /// The queues that somebody listens for.
    #[cfg(any(feature = "sqlite", feature = "http"))]
    pub(crate) fn heard(&self) -> Vec<QueueName> {
        self.waiting().keys().cloned().collect()
    }

    /// Whether anybody listens.
    #[cfg(any(test, feature = "sqlite", feature = "postgres", feature = "redis"))]
    pub(crate) fn is_heard(&self) -> bool {
        !self.waiting().is_empty()
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<QueueName, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wake-ups for one worker. To be kept only as long as the worker could take a task: a wake-up goes to few. One that was
/// not used is passed on when this is dropped.
#[derive(Debug)]
pub struct Arrivals {
    bell: Arc<Notify>,
    door: Doorbell,
    queues: Vec<QueueName>,
    poll: Duration,
    /// Whether notifications reach this process now, and how often to look while they do.
    notified: Option<(Arc<AtomicBool>, Duration)>,
}

impl Arrivals {
    /// The same, which looks every `poll` only while `notified` is set.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn notified_by(mut self, notified: &Arc<AtomicBool>, poll: Duration) -> Self {
        self.notified = Some((notified.clone(), poll));
        self
    }

    /// Waits until something may have arrived since the last time, for as long as the engine polls, or for `at_most`.
    pub async fn next(&mut self, at_most: Option<Duration>) {
        let poll = self.interval();
        let patience = at_most.map_or(poll, |at_most| at_most.min(poll));
        let _ = tokio::time::timeout(patience, self.bell.notified()).await;
    }

    /// The time until the next look. Up to 30 % shorter by chance: workers that started together do not look together for
    /// ever.
    fn interval(&self) -> Duration {
        let is_notified = |(notified, _): &&(Arc<AtomicBool>, Duration)| notified.load(Ordering::Relaxed);
        let poll = self.notified.as_ref().filter(is_notified).map_or(self.poll, |(_, poll)| *poll);
        poll.mul_f64(0.7 + 0.3 * fastrand::f64())
    }

    /// Waits until somebody says that something may have arrived since the last time, however long that takes.
    pub async fn rung(&mut self) {
        self.bell.notified().await;
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        let mut waiting = self.door.waiting();
        for queue in &self.queues {
            if let Some(bells) = waiting.get_mut(queue) {
                bells.retain(|bell| !Arc::ptr_eq(bell, &self.bell));
                if bells.is_empty() {
                    waiting.remove(queue);
                }
            }
        }
        drop(waiting);
        // Which queue it was for is not known; a wake-up too many is only a look too many.
        if self.was_rung() {
            for queue in &self.queues {
                self.door.ring(queue, 1);
            }
        }
    }
}

impl Arrivals {
    /// Whether there is a wake-up that nobody has waited for yet; takes it.
    fn was_rung(&self) -> bool {
        let rung = std::pin::pin!(self.bell.notified());
        rung.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_workers_look_seldom_while_they_are_notified_and_drift_apart() {
        let (door, queues) = (Doorbell::default(), [QueueName::new("mail").unwrap()]);
        let notified = Arc::new(AtomicBool::new(true));
        let arrivals = door.listen(&queues, Duration::from_millis(250));
        let arrivals = arrivals.notified_by(&notified, Duration::from_secs(1));
        let looks = |within: std::ops::RangeInclusive<u64>| {
            let looks: std::collections::BTreeSet<_> = (0..100).map(|_| arrivals.interval()).collect();
            let millis = |look: &Duration| u64::try_from(look.as_millis()).unwrap();
            assert!(looks.iter().map(millis).all(|look| within.contains(&look)), "{looks:?}");
            assert!(looks.len() > 50, "those that began together look at other times");
        };
        looks(700..=1000);
        notified.store(false, Ordering::Relaxed);
        looks(175..=250);
    }

    #[tokio::test]
    async fn a_wake_up_that_was_not_used_goes_to_the_next() {
        let (door, queue) = (Doorbell::default(), QueueName::new("mail").unwrap());
        let queues = [queue.clone()];
        let gone = door.listen(&queues, Duration::from_mins(1));
        let next = door.listen(&queues, Duration::from_mins(1));
        door.ring(&queue, 1);
        assert!(!next.was_rung());
        drop(gone);
        assert!(next.was_rung());
        drop(next);
        assert!(!door.is_heard());
    }
}
