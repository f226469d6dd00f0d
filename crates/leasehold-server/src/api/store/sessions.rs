//! Subscriptions of remote clients to notifications. Notifications are hints: a client without a
//! subscription still polls.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::BootInstant;
use leasehold::model::{LeaseId, QueueName};
use leasehold::store::protocol::{Listen, Woken};
use leasehold::store::{Recipient, Store, Subscription, Wakeup};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// Time without a poll after which a session is removed. A connected client polls again at once.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which idle sessions are removed.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of subscriptions to waiters, queues and notices over all clients. Beyond it,
/// clients poll.
const MAX_SUBSCRIPTIONS: usize = 50_000;
/// Maximum number of sessions that are kept between two polls.
const MAX_SESSIONS: usize = 10_000;
/// Time for which a new subscription is kept although a poll does not list it: that poll may have
/// been in flight when the subscription was made.
const NEW_SUBSCRIPTION_GRACE: Duration = Duration::from_secs(2);

/// Sessions of all clients.
pub(super) struct Sessions {
    clients: Arc<Clients>,
    /// One permit per subscription.
    permits: Arc<Semaphore>,
}

type Clients = Mutex<HashMap<Uuid, Arc<Session>>>;

/// Session of one client.
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
    leases: Mutex<BTreeSet<LeaseId>>,
    queues: Mutex<BTreeSet<QueueName>>,
    notices: Mutex<BTreeSet<Recipient>>,
    changed: Notify,
}

/// Subscription that adds to the pending notifications until it is dropped.
struct ActiveSubscription {
    since: BootInstant,
    _handle: SubscriptionHandle,
    _permit: OwnedSemaphorePermit,
}

/// Handle of a subscription: a background task, or a callback in the store.
enum SubscriptionHandle {
    Task(#[expect(dead_code, reason = "dropping it ends the task")] AbortOnDropHandle<()>),
    Callback(#[expect(dead_code, reason = "dropping it removes the callback")] Subscription),
}

impl Sessions {
    /// Returns the session of this client and creates it if necessary.
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

/// Removes idle sessions until none is left.
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
        let state = State {
            number: 0,
            last_seen: now,
            leases: HashMap::new(),
            queues: HashMap::new(),
            notices: HashMap::new(),
        };
        Self { pending: Arc::default(), state: Mutex::new(state), permits }
    }

    /// Subscribes to the notifications of this waiter.
    pub(super) fn subscribe_waiter(&self, store: &Arc<dyn Store>, lease: LeaseId) {
        let mut state = locked(&self.state);
        if !state.leases.contains_key(&lease)
            && let Some(permit) = self.permit()
        {
            state.leases.insert(lease, subscribe_lease(&self.pending, store, lease, permit));
        }
    }

    fn permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Waits for the next notification of the listed subscriptions. Returns at once if a newer poll
    /// exists.
    pub(super) async fn poll(&self, store: &Arc<dyn Store>, list: Listen, timeout: Duration) -> Woken {
        let number = list.number;
        if !self.update_subscriptions(store, list) {
            return Woken::default();
        }
        let waiting = async {
            loop {
                let changed = self.pending.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if locked(&self.state).number != number {
                    return Woken::default();
                }
                let woken = self.pending.take();
                if woken != Woken::default() {
                    return woken;
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
        sync_subscriptions(&mut state.leases, list.leases, |lease| {
            Some(subscribe_lease(&self.pending, store, *lease, self.permit()?))
        });
        if store.tasks().is_some() {
            sync_subscriptions(&mut state.queues, list.queues, |queue| {
                Some(subscribe_queue(&self.pending, store, queue, self.permit()?))
            });
        }
        sync_subscriptions(&mut state.notices, list.notices, |to| {
            Some(subscribe_notices(&self.pending, store, *to, self.permit()?))
        });
        drop(state);
        self.pending.changed.notify_waiters(); // Ends an older poll.
        true
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

fn subscribe_lease(
    pending: &Arc<PendingNotifications>,
    store: &Arc<dyn Store>,
    lease: LeaseId,
    permit: OwnedSemaphorePermit,
) -> ActiveSubscription {
    let mut changes = store.locks().changes(None, &lease);
    let pending = pending.clone();
    ActiveSubscription::spawn(
        async move {
            loop {
                if !matches!(changes.next(Duration::MAX).await, Wakeup::Poll) {
                    locked(&pending.leases).insert(lease);
                    pending.changed.notify_waiters();
                }
            }
        },
        permit,
    )
}

fn subscribe_queue(
    pending: &Arc<PendingNotifications>,
    store: &Arc<dyn Store>,
    queue: &QueueName,
    permit: OwnedSemaphorePermit,
) -> ActiveSubscription {
    let arrivals = store.tasks().map(|tasks| tasks.subscribe_queues(std::slice::from_ref(queue)));
    let (pending, queue) = (pending.clone(), queue.clone());
    ActiveSubscription::spawn(
        async move {
            let Some(mut arrivals) = arrivals else { return };
            loop {
                arrivals.notified().await;
                locked(&pending.queues).insert(queue.clone());
                pending.changed.notify_waiters();
            }
        },
        permit,
    )
}

fn subscribe_notices(
    pending: &Arc<PendingNotifications>,
    store: &Arc<dyn Store>,
    to: Recipient,
    permit: OwnedSemaphorePermit,
) -> ActiveSubscription {
    let pending = pending.clone();
    let subscription = store.subscribe(
        to,
        Arc::new(move || {
            locked(&pending.notices).insert(to);
            pending.changed.notify_waiters();
        }),
    );
    ActiveSubscription {
        since: BootInstant::now(),
        _handle: SubscriptionHandle::Callback(subscription),
        _permit: permit,
    }
}

impl ActiveSubscription {
    fn spawn(future: impl Future<Output = ()> + Send + 'static, permit: OwnedSemaphorePermit) -> Self {
        let task = AbortOnDropHandle::new(tokio::spawn(future));
        Self { since: BootInstant::now(), _handle: SubscriptionHandle::Task(task), _permit: permit }
    }
}

impl PendingNotifications {
    fn take(&self) -> Woken {
        let leases = std::mem::take(&mut *locked(&self.leases));
        let queues = std::mem::take(&mut *locked(&self.queues));
        let notices = std::mem::take(&mut *locked(&self.notices));
        Woken {
            leases: leases.into_iter().collect(),
            queues: queues.into_iter().collect(),
            notices: notices.into_iter().collect(),
        }
    }
}

/// Locks a mutex and ignores poisoning.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
