//! Temporary state of the store protocol: the order of calls, and the subscriptions of remote clients to
//! notifications. None of it is needed after a restart: the new clock rejects requests that were sent to
//! the server before the restart. Notifications are hints: a client without a subscription still polls.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::{LeaseId, LockName, QueueName};
use leasehold::store::in_order::{InOrder, Keep, KeptState};
use leasehold::store::protocol::{CallId, Listen, Notifications, Tick};
use leasehold::store::{Recipient, Store, Subscription, Wakeup};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::problem::Problem;
use crate::sync::locked;

pub(crate) struct ProtocolState {
    instance: Uuid,
    started: BootInstant,
    pub(super) lease_order: LeaseOrder,
    pub(super) sessions: Sessions,
}

impl ProtocolState {
    pub(crate) fn new() -> Self {
        let (lease_order, sessions) = Default::default();
        Self { instance: Uuid::new_v4(), started: BootInstant::now(), lease_order, sessions }
    }

    pub(super) fn tick(&self) -> Tick {
        let micros = BootInstant::now().after(self.started).as_micros();
        Tick { instance: self.instance, micros: u64::try_from(micros).unwrap_or(u64::MAX) }
    }
}

/// Time for which a superseding call is remembered. Longer than any request can be in flight: the
/// clock in a request rejects it before.
const RETENTION: Duration = Duration::from_mins(2);

/// Serializes the calls of each caller for each lease of a lock. The caller is part of the key: every reader
/// sees the ids of leases, and must not be able to delay the renewals of their holders.
pub(super) type LeaseOrder = InOrder<(String, LockName, LeaseId), SupersedingCalls>;

/// Last superseding call of each client for one lease id: its number and its arrival time.
#[derive(Debug, Default)]
pub(super) struct SupersedingCalls(Vec<(Uuid, u64, BootInstant)>);

impl SupersedingCalls {
    /// Rejects a call that its client has superseded by a later one, because it received no response.
    pub(super) fn must_be_the_last(&mut self, call: CallId) -> Result<(), Problem> {
        if self.0.iter().any(|(client, last, _)| *client == call.client && call.number < *last) {
            return Err(Problem::new("LATE", "the client has superseded this request by a later one"));
        }
        if call.supersedes {
            self.0.retain(|(client, ..)| *client != call.client);
            self.0.push((call.client, call.number, BootInstant::now()));
        }
        Ok(())
    }
}

impl KeptState for SupersedingCalls {
    fn keep(&mut self) -> Keep {
        let now = BootInstant::now();
        self.0.retain(|(.., since)| now.after(*since) < RETENTION);
        if self.0.is_empty() { Keep::No } else { Keep::Yes }
    }
}

/// Time without a poll after which a session is removed. A connected client polls again at once.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
const CLEANUP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of subscriptions to waiters, queues and notices over all clients. Beyond it,
/// clients poll.
const MAX_SUBSCRIPTIONS: usize = 50_000;
/// Maximum number of sessions that are kept between two polls.
const MAX_SESSIONS: usize = 10_000;
/// Time for which a new subscription is kept although a poll does not list it: that poll may have
/// been in flight when the subscription was made.
const NEW_SUBSCRIPTION_GRACE: Duration = Duration::from_secs(2);

pub(super) struct Sessions {
    clients: Arc<Clients>,
    /// One permit per subscription.
    permits: Arc<Semaphore>,
}

type Clients = Mutex<HashMap<Uuid, Arc<Session>>>;

pub(super) struct Session {
    pending: Arc<PendingNotifications>,
    state: Mutex<State>,
    permits: Arc<Semaphore>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { clients: Arc::default(), permits: Arc::new(Semaphore::new(MAX_SUBSCRIPTIONS)) }
    }
}

struct State {
    /// Number of the newest poll.
    number: u64,
    last_seen: BootInstant,
    leases: HashMap<LeaseId, ActiveSubscription>,
    queues: HashMap<QueueName, ActiveSubscription>,
    notices: HashMap<Recipient, ActiveSubscription>,
}

/// Notifications that the client has not received yet.
#[derive(Default)]
struct PendingNotifications {
    received: Mutex<NotificationSets>,
    changed: Notify,
}

#[derive(Default)]
struct NotificationSets {
    leases: BTreeSet<LeaseId>,
    queues: BTreeSet<QueueName>,
    notices: BTreeSet<Recipient>,
}

/// Subscription that adds to the pending notifications until it is dropped.
struct ActiveSubscription {
    since: BootInstant,
    _handle: Subscription,
    _permit: OwnedSemaphorePermit,
}

impl Sessions {
    pub(super) fn of(&self, client: Uuid) -> Arc<Session> {
        let now = BootInstant::now();
        let mut clients = locked(&self.clients);
        if let Some(session) = clients.get(&client) {
            locked(&session.state).last_seen = now;
            return session.clone();
        }
        let session = Arc::new(Session::new(now, self.permits.clone()));
        if clients.is_empty() {
            tokio::spawn(remove_idle_sessions(self.clients.clone()));
        }
        if clients.len() < MAX_SESSIONS {
            clients.insert(client, session.clone());
        }
        session
    }
}

async fn remove_idle_sessions(clients: Arc<Clients>) {
    loop {
        tokio::time::sleep(CLEANUP_INTERVAL).await;
        let now = BootInstant::now();
        let mut clients = locked(&clients);
        clients.retain(|_, session| {
            // A waiting poll holds a second reference.
            Arc::strong_count(session) > 1 || now.after(locked(&session.state).last_seen) < SESSION_TIMEOUT
        });
        if clients.is_empty() {
            return;
        }
    }
}

impl Session {
    fn new(now: BootInstant, permits: Arc<Semaphore>) -> Self {
        let (leases, queues, notices) = Default::default();
        let state = State { number: 0, last_seen: now, leases, queues, notices };
        Self { pending: Arc::default(), state: Mutex::new(state), permits }
    }

    pub(super) fn subscribe_waiter(&self, store: &Arc<dyn Store>, lease: LeaseId) {
        let mut state = locked(&self.state);
        if !state.leases.contains_key(&lease)
            && let Some(subscription) = self.subscribe_lease(store, lease)
        {
            state.leases.insert(lease, subscription);
        }
    }

    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Waits for the next notification of the listed subscriptions. Returns at once if a newer poll
    /// exists.
    pub(super) async fn poll(
        &self,
        store: &Arc<dyn Store>,
        list: Listen,
        timeout: Duration,
    ) -> Notifications {
        let number = list.number;
        if !self.update_subscriptions(store, list) {
            return Notifications::default();
        }
        let waiting = async {
            loop {
                let changed = self.pending.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if locked(&self.state).number != number {
                    return Notifications::default();
                }
                let notifications = self.pending.take();
                if notifications != Notifications::default() {
                    return notifications;
                }
                changed.await;
            }
        };
        tokio::time::timeout(timeout, waiting).await.unwrap_or_default()
    }

    /// Replaces the subscriptions by this list. Returns `false` if a newer poll has done so.
    fn update_subscriptions(&self, store: &Arc<dyn Store>, list: Listen) -> bool {
        let mut state = locked(&self.state);
        if list.number <= state.number {
            return false;
        }
        state.number = list.number;
        sync_subscriptions(&mut state.leases, list.leases, |lease| self.subscribe_lease(store, *lease));
        sync_subscriptions(&mut state.queues, list.queues, |queue| self.subscribe_queue(store, queue));
        sync_subscriptions(&mut state.notices, list.notices, |to| self.subscribe_notices(store, *to));
        drop(state);
        self.pending.changed.notify_waiters(); // Ends an older poll.
        true
    }

    fn subscribe_lease(&self, store: &Arc<dyn Store>, lease: LeaseId) -> Option<ActiveSubscription> {
        let (permit, pending) = (self.permit()?, self.pending.clone());
        let mut changes = store.locks().subscribe_waiter(None, &lease);
        let forward = async move {
            loop {
                if !matches!(changes.next(Duration::MAX).await, Wakeup::Poll) {
                    pending.add(|sets| sets.leases.insert(lease));
                }
            }
        };
        Some(ActiveSubscription::new(spawn(forward), permit))
    }

    fn subscribe_queue(&self, store: &Arc<dyn Store>, queue: &QueueName) -> Option<ActiveSubscription> {
        let tasks = store.tasks()?;
        let (permit, pending, queue) = (self.permit()?, self.pending.clone(), queue.clone());
        let mut arrivals = tasks.subscribe_queues(std::slice::from_ref(&queue));
        let forward = async move {
            loop {
                arrivals.notified().await;
                pending.add(|sets| sets.queues.insert(queue.clone()));
            }
        };
        Some(ActiveSubscription::new(spawn(forward), permit))
    }

    fn subscribe_notices(&self, store: &Arc<dyn Store>, to: Recipient) -> Option<ActiveSubscription> {
        let (permit, pending) = (self.permit()?, self.pending.clone());
        let callback = Arc::new(move || pending.add(|sets| sets.notices.insert(to)));
        Some(ActiveSubscription::new(store.subscribe(to, callback), permit))
    }
}

/// Adds the requested subscriptions as far as permits are available, and drops the others.
fn sync_subscriptions<K: Hash + Eq>(
    active: &mut HashMap<K, ActiveSubscription>,
    requested: Vec<K>,
    subscribe: impl Fn(&K) -> Option<ActiveSubscription>,
) {
    let now = BootInstant::now();
    let mut before = std::mem::take(active);
    for key in requested {
        if active.contains_key(&key) {
            continue;
        }
        if let Some(subscription) = before.remove(&key).or_else(|| subscribe(&key)) {
            active.insert(key, subscription);
        }
    }
    active.extend(
        before.into_iter().filter(|(_, subscription)| now.after(subscription.since) < NEW_SUBSCRIPTION_GRACE),
    );
}

impl ActiveSubscription {
    fn new(handle: Subscription, permit: OwnedSemaphorePermit) -> Self {
        Self { since: BootInstant::now(), _handle: handle, _permit: permit }
    }
}

/// Runs a task that ends when the subscription is dropped.
fn spawn(task: impl Future<Output = ()> + Send + 'static) -> Subscription {
    Subscription::new(AbortOnDropHandle::new(tokio::spawn(task)))
}

impl PendingNotifications {
    fn add(&self, insert: impl FnOnce(&mut NotificationSets) -> bool) {
        insert(&mut locked(&self.received));
        self.changed.notify_waiters();
    }

    fn take(&self) -> Notifications {
        let NotificationSets { leases, queues, notices } = std::mem::take(&mut *locked(&self.received));
        Notifications {
            leases: leases.into_iter().collect(),
            queues: queues.into_iter().collect(),
            notices: notices.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_superseded_call_is_rejected_however_late_it_arrives() {
        let (order, lease) = (LeaseOrder::default(), LeaseId::from_uuid(Uuid::from_u128(1)));
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let call = async |client, number, supersedes| {
            let key = ("ada".to_owned(), LockName::new("l").unwrap(), lease);
            order.enter(key).await.must_be_the_last(CallId { client, number, supersedes })
        };
        assert!(call(one, 5, false).await.is_ok());
        assert!(call(one, 7, true).await.is_ok());
        assert_eq!(call(one, 6, false).await.unwrap_err().code(), "LATE");
        assert!(call(one, 8, false).await.is_ok());
        assert!(call(other, 1, false).await.is_ok(), "each client has its own numbers");
    }
}
