//! One long poll for the wake-ups of all waiters and workers of this store. Wake-ups are hints:
//! polling compensates for lost ones.

use std::pin::Pin;
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use hyper::body::Bytes;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::connection::Connection;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{LeaseId, QueueName};
use crate::store::backoff::{ExponentialBackoff, jittered};
use crate::store::protocol::{Listen, MAX_LISTENED, MAX_POLL_SECONDS, Notifications};
use crate::store::wake::{QueueNotifier, Registry, WaiterSlot};
use crate::store::{OnNotice, QueueSubscription, Recipient, Subscription, WaiterSubscription};

/// Timeout of a long poll, after which it is considered lost.
const POLL_TIMEOUT: Duration = Duration::from_secs(MAX_POLL_SECONDS + 5);
/// Delays after failed polls.
const RETRY_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(1), Duration::from_secs(5));
/// Time in flight after which the server has probably accepted a poll.
const ACCEPTED_AFTER: Duration = Duration::from_millis(250);
/// Maximum number of concurrent polls: one that waits, and one with a changed list, which makes the
/// server end the first.
const MAX_POLLS: usize = 2;

/// Receives the wake-ups for the subscriptions of this store. The list of subscriptions is sent
/// again whenever it changes.
#[derive(Debug)]
pub(super) struct Subscriber {
    subscriptions: Arc<Subscriptions>,
    connection: Arc<Connection>,
    runtime: Handle,
    poll: Duration,
    started: Once,
}

#[derive(Default)]
struct Subscriptions {
    waiters: Registry<LeaseId, WaiterSlot>,
    notices: Registry<Recipient, OnNotice>,
    queues: QueueNotifier,
    changed: Notify,
}

/// Subscriptions to send: waiters, queues and notices.
type SubscriptionList = (Vec<LeaseId>, Vec<QueueName>, Vec<Recipient>);

impl Subscriber {
    pub(super) fn new(connection: Arc<Connection>, runtime: Handle, poll: Duration) -> Self {
        Self { subscriptions: Arc::default(), connection, runtime, poll, started: Once::new() }
    }

    /// Subscribes a waiter to the wake-ups for its ticket.
    pub(super) fn subscribe_waiter(&self, waiter: LeaseId) -> WaiterSubscription {
        let subscription = WaiterSubscription::detached(&self.subscriptions.waiters, waiter, self.poll);
        self.list_changed();
        subscription
    }

    pub(super) fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        let subscription = self.subscriptions.queues.listen(queues, self.poll);
        self.list_changed();
        subscription
    }

    /// Subscribes to the notices for a lease or a worker of this process.
    pub(super) fn subscribe(&self, to: Recipient, on_notice: OnNotice) -> Subscription {
        let registration = self.subscriptions.notices.register(to, on_notice);
        self.list_changed();
        Subscription::new(registration)
    }

    /// Notifies a worker of this process that a task may have arrived.
    pub(super) fn notify_queue(&self, queue: &QueueName) {
        self.subscriptions.queues.notify(queue, 1);
    }

    /// Sends the changed list; starts the polls with the first subscription. A shorter list is not
    /// worth a new poll: the next poll sends it.
    fn list_changed(&self) {
        let (subscriptions, connection) = (&self.subscriptions, &self.connection);
        self.started.call_once(|| {
            self.runtime.spawn(run_polls(Arc::downgrade(subscriptions), connection.clone()));
        });
        self.subscriptions.changed.notify_one();
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.subscriptions.changed.notify_one(); // The poll task then ends because the store is closed.
    }
}

impl Subscriptions {
    fn list(&self) -> SubscriptionList {
        let (mut leases, mut notices) = (self.waiters.keys(MAX_LISTENED), self.notices.keys(MAX_LISTENED));
        let mut queues = self.queues.subscribed_queues();
        queues.truncate(MAX_LISTENED);
        leases.sort_unstable();
        notices.sort_unstable();
        (leases, queues, notices)
    }

    /// Wakes all waiters: the server may have sent wake-ups in a reply that was lost, or has been restarted.
    fn wake_all_waiters(&self) {
        self.waiters.all().iter().for_each(|slot| slot.notify_with_all());
    }

    fn deliver(&self, woken: &Notifications) {
        woken.leases.iter().flat_map(|lease| self.waiters.get(lease)).for_each(|slot| slot.notify());
        for queue in &woken.queues {
            // The number of tasks is not known: all workers that wait for the queue poll.
            self.queues.notify(queue, usize::MAX);
        }
        for recipient in &woken.notices {
            self.notices.notify(recipient);
        }
    }
}

impl std::fmt::Debug for Subscriptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscriptions").finish_non_exhaustive()
    }
}

/// Outage of long polls, from the first that fails until the server accepts one again.
#[derive(Default)]
struct Outage {
    /// Whether wake-ups may have been lost for which no waiter was woken yet.
    is_open: bool,
    /// Grows until a poll succeeds.
    backoff: Option<ExponentialBackoff>,
    /// Ends when the next poll may be sent.
    delay: Option<Pin<Box<Sleep>>>,
    /// Ends when a poll has been in flight for so long that the server has probably accepted it.
    accepted: Option<Pin<Box<Sleep>>>,
}

impl Outage {
    /// Records a failed poll, and delays the next one.
    fn poll_failed(&mut self) {
        self.is_open = true;
        self.accepted = None;
        let delay = jittered(self.backoff.get_or_insert(RETRY_BACKOFF).next_delay());
        self.delay = Some(Box::pin(tokio::time::sleep(delay)));
    }

    fn poll_sent(&mut self) {
        if self.is_open && self.accepted.is_none() {
            self.accepted = Some(Box::pin(tokio::time::sleep(ACCEPTED_AFTER)));
        }
    }

    fn may_poll(&self) -> bool {
        self.delay.is_none()
    }

    /// Resolves when the next poll may be sent, or when the server has probably accepted the first one after
    /// failed ones. Returns whether the server has: then wake-ups may have been lost until now.
    async fn next(&mut self) -> bool {
        if let Some(delay) = &mut self.delay {
            delay.await;
            self.delay = None;
            return false;
        }
        match &mut self.accepted {
            Some(accepted) => accepted.await,
            None => std::future::pending().await,
        }
        self.accepted = None;
        std::mem::take(&mut self.is_open)
    }

    /// Records a poll that succeeded. Returns whether wake-ups may have been lost before.
    fn poll_succeeded(&mut self) -> bool {
        self.backoff = None;
        self.accepted = None;
        std::mem::take(&mut self.is_open)
    }
}

/// Polls while the store is open and has subscriptions.
async fn run_polls(subscriptions: Weak<Subscriptions>, connection: Arc<Connection>) {
    let mut polls = JoinSet::new();
    let mut number = 0;
    let mut sent = None;
    let mut outage = Outage::default();
    while let Some(open) = subscriptions.upgrade() {
        let wanted = open.list();
        let is_empty = wanted == SubscriptionList::default();
        let has_changed = sent.as_ref() != Some(&wanted);
        let is_wanted = !is_empty && (has_changed || polls.is_empty());
        if is_wanted && polls.len() < MAX_POLLS && outage.may_poll() {
            number += 1;
            let (leases, queues, notices) = wanted.clone();
            let list = Listen { client: connection.client_id, number, leases, queues, notices };
            polls.spawn(poll(connection.clone(), list));
            sent = Some(wanted);
            outage.poll_sent();
            continue;
        }
        tokio::select! {
            Some(done) = polls.join_next(), if !polls.is_empty() => match done {
                Ok(Ok(woken)) => {
                    open.deliver(&woken);
                    if outage.poll_succeeded() {
                        open.wake_all_waiters();
                    }
                }
                Ok(Err(error)) => {
                    tracing::debug!(%error, "long poll for wake-ups failed; waiters poll meanwhile");
                    outage.poll_failed();
                    // The list of the failed poll has to be sent again.
                    sent = None;
                }
                Err(_) => return,
            },
            server_listens = outage.next() => {
                if server_listens {
                    open.wake_all_waiters();
                }
            }
            () = open.changed.notified() => drop(open),
        }
    }
}

async fn poll(connection: Arc<Connection>, list: Listen) -> Result<Notifications> {
    let broken = |error| {
        let message = "invalid wake-up message from the server";
        Error::store(StoreErrorKind::Broken, message, "please report this").because(error)
    };
    let body = Bytes::from(serde_json::to_vec(&(list,)).map_err(broken)?);
    let reply = connection.send_once("notifications", Some(body), POLL_TIMEOUT).await?;
    serde_json::from_slice(&reply).map_err(broken)
}
