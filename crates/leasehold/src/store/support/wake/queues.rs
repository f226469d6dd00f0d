//! Notifications for workers that wait for tasks. A notification is a hint that tasks may have
//! arrived; a worker that finds none waits again.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::QueueName;
use crate::store::support::sync::atomic::{AtomicBool, Ordering};
use crate::store::support::sync::{Mutex, MutexGuard, timeout};

/// Workers that wait for tasks, by queue, on one store of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct QueueNotifier(Arc<Mutex<BTreeMap<QueueName, Vec<Arc<Notify>>>>>);

impl QueueNotifier {
    /// Subscribes to notifications for these queues. Each wait also ends after `poll`.
    pub(crate) fn listen(&self, queues: &[QueueName], poll: Duration) -> QueueSubscription {
        let notify = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        for queue in queues {
            waiting.entry(queue.clone()).or_default().push(notify.clone());
        }
        QueueSubscription { notify, notifier: self.clone(), queues: queues.to_vec(), poll, remote: None }
    }

    /// Notifies up to `tasks` workers that tasks may have arrived in this queue, the longest waiting
    /// first.
    pub(crate) fn notify(&self, queue: &QueueName, tasks: usize) {
        if let Some(subscribers) = self.waiting().get_mut(queue) {
            let count = tasks.min(subscribers.len());
            for notify in &subscribers[..count] {
                notify.notify_one();
            }
            // The next notification goes to the workers that were not notified this time.
            subscribers.rotate_left(count);
        }
    }

    /// Notifies all workers of all queues.
    pub(crate) fn notify_all(&self) {
        for notify in self.waiting().values().flatten() {
            notify.notify_one();
        }
    }

    #[cfg(any(feature = "sqlite", feature = "http"))]
    pub(crate) fn subscribed_queues(&self) -> Vec<QueueName> {
        self.waiting().keys().cloned().collect()
    }

    /// Whether there are any subscribers.
    #[cfg(any(test, feature = "sqlite", feature = "postgres", feature = "redis"))]
    pub(crate) fn has_subscribers(&self) -> bool {
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
    notify: Arc<Notify>,
    notifier: QueueNotifier,
    queues: Vec<QueueName>,
    poll: Duration,
    /// Whether notifications from other processes currently arrive, and the poll interval while they
    /// do.
    remote: Option<(Arc<AtomicBool>, Duration)>,
}

impl QueueSubscription {
    /// Returns the subscription with the poll interval `poll` while `notified` is set.
    #[cfg(any(test, feature = "postgres", feature = "redis"))]
    pub(crate) fn notified_by(mut self, notified: &Arc<AtomicBool>, poll: Duration) -> Self {
        self.remote = Some((notified.clone(), poll));
        self
    }

    /// Waits until tasks may have arrived since the last call, at most for the poll interval and for
    /// `at_most`.
    pub async fn next(&mut self, at_most: Option<Duration>) {
        let poll = self.interval();
        let wait = at_most.map_or(poll, |at_most| at_most.min(poll));
        let _ = timeout(wait, self.notify.notified()).await;
    }

    /// Returns the time until the next poll. Randomly up to 30 % shorter, so that workers that
    /// started together do not poll at the same time for ever.
    fn interval(&self) -> Duration {
        let is_notified = |(notified, _): &&(Arc<AtomicBool>, Duration)| notified.load(Ordering::Relaxed);
        let poll = self.remote.as_ref().filter(is_notified).map_or(self.poll, |(_, poll)| *poll);
        poll.mul_f64(0.7 + 0.3 * fastrand::f64())
    }

    /// Waits until a notification since the last call arrives, without a timeout.
    pub async fn notified(&mut self) {
        self.notify.notified().await;
    }
}

impl Drop for QueueSubscription {
    fn drop(&mut self) {
        let mut waiting = self.notifier.waiting();
        for queue in &self.queues {
            if let Some(subscribers) = waiting.get_mut(queue) {
                subscribers.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
                if subscribers.is_empty() {
                    waiting.remove(queue);
                }
            }
        }
        drop(waiting);
        // The queue of the notification is not known; a superfluous notification costs one
        // superfluous poll.
        if self.take_notification() {
            for queue in &self.queues {
                self.notifier.notify(queue, 1);
            }
        }
    }
}

impl QueueSubscription {
    /// Takes an unused notification; returns whether there was one.
    fn take_notification(&self) -> bool {
        let notified = std::pin::pin!(self.notify.notified());
        notified.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_workers_poll_seldom_while_they_are_notified_and_at_different_times() {
        let (notifier, queues) = (QueueNotifier::default(), [QueueName::new("mail").unwrap()]);
        let remote = Arc::new(AtomicBool::new(true));
        let subscription = notifier.listen(&queues, Duration::from_millis(250));
        let subscription = subscription.notified_by(&remote, Duration::from_secs(1));
        let polls = |within: std::ops::RangeInclusive<u64>| {
            let polls: std::collections::BTreeSet<_> = (0..100).map(|_| subscription.interval()).collect();
            let millis = |poll: &Duration| u64::try_from(poll.as_millis()).unwrap();
            assert!(polls.iter().map(millis).all(|poll| within.contains(&poll)), "{polls:?}");
            assert!(polls.len() > 50, "the intervals differ");
        };
        polls(700..=1000);
        remote.store(false, Ordering::Relaxed);
        polls(175..=250);
    }

    #[tokio::test]
    async fn an_unused_notification_goes_to_the_next_worker() {
        let (notifier, queue) = (QueueNotifier::default(), QueueName::new("mail").unwrap());
        let queues = [queue.clone()];
        let gone = notifier.listen(&queues, Duration::from_mins(1));
        let next = notifier.listen(&queues, Duration::from_mins(1));
        notifier.notify(&queue, 1);
        assert!(!next.take_notification());
        drop(gone);
        assert!(next.take_notification());
        drop(next);
        assert!(!notifier.has_subscribers());
    }
}
