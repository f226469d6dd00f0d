//! Notifications for workers that wait for tasks. A notification is a hint that tasks may have
//! arrived; a worker that finds none waits again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::QueueName;

/// Workers that wait for tasks, by queue, on one store of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Doorbell(Arc<Mutex<BTreeMap<QueueName, Vec<Arc<Notify>>>>>);

impl Doorbell {
    /// Subscribes to notifications for these queues. Each wait also ends after `poll`.
    pub(crate) fn listen(&self, queues: &[QueueName], poll: Duration) -> QueueSubscription {
        let bell = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        for queue in queues {
            waiting.entry(queue.clone()).or_default().push(bell.clone());
        }
        QueueSubscription { bell, door: self.clone(), queues: queues.to_vec(), poll, notified: None }
    }

    /// Notifies up to `tasks` workers that tasks may have arrived in this queue, the longest waiting
    /// first.
    pub(crate) fn ring(&self, queue: &QueueName, tasks: usize) {
        if let Some(bells) = self.waiting().get_mut(queue) {
            let served = tasks.min(bells.len());
            for bell in &bells[..served] {
                bell.notify_one();
            }
            // The next notification goes to the workers that were not notified this time.
            bells.rotate_left(served);
        }
    }

    /// Notifies all workers of all queues.
    pub(crate) fn ring_all(&self) {
        for bell in self.waiting().values().flatten() {
            bell.notify_one();
        }
    }

    /// Returns the queues that have subscribers.
    #[cfg(any(feature = "sqlite", feature = "http"))]
    pub(crate) fn heard(&self) -> Vec<QueueName> {
        self.waiting().keys().cloned().collect()
    }

    /// Whether there are any subscribers.
    #[cfg(any(test, feature = "sqlite", feature = "postgres", feature = "redis"))]
    pub(crate) fn is_heard(&self) -> bool {
        !self.waiting().is_empty()
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<QueueName, Vec<Arc<Notify>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifications for one worker. Must be kept only while the worker could take a task: a notification
/// goes to few workers. An unused notification is passed on when the subscription is dropped.
#[derive(Debug)]
pub struct QueueSubscription {
    bell: Arc<Notify>,
    door: Doorbell,
    queues: Vec<QueueName>,
    poll: Duration,
    /// Whether notifications from other processes currently arrive, and the poll interval while they
    /// do.
    notified: Option<(Arc<AtomicBool>, Duration)>,
}

impl QueueSubscription {
    /// Returns the subscription with the poll interval `poll` while `notified` is set.
    #[cfg(any(test, feature = "redis"))]
    pub(crate) fn notified_by(mut self, notified: &Arc<AtomicBool>, poll: Duration) -> Self {
        self.notified = Some((notified.clone(), poll));
        self
    }

    /// Waits until tasks may have arrived since the last call, at most for the poll interval and for
    /// `at_most`.
    pub async fn next(&mut self, at_most: Option<Duration>) {
        let poll = self.interval();
        let patience = at_most.map_or(poll, |at_most| at_most.min(poll));
        let _ = tokio::time::timeout(patience, self.bell.notified()).await;
    }

    /// Returns the time until the next poll. Randomly up to 30 % shorter, so that workers that
    /// started together do not poll at the same time for ever.
    fn interval(&self) -> Duration {
        let is_notified = |(notified, _): &&(Arc<AtomicBool>, Duration)| notified.load(Ordering::Relaxed);
        let poll = self.notified.as_ref().filter(is_notified).map_or(self.poll, |(_, poll)| *poll);
        poll.mul_f64(0.7 + 0.3 * fastrand::f64())
    }

    /// Waits until a notification since the last call arrives, without a timeout.
    pub async fn rung(&mut self) {
        self.bell.notified().await;
    }
}

impl Drop for QueueSubscription {
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
        // The queue of the notification is not known; a superfluous notification costs one
        // superfluous poll.
        if self.was_rung() {
            for queue in &self.queues {
                self.door.ring(queue, 1);
            }
        }
    }
}

impl QueueSubscription {
    /// Takes an unused notification; returns whether there was one.
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
