//! Who listens for what from afar. Only hints: whoever is forgotten here polls.

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

/// A client that has said nothing for so long is gone. One that still listens polls again at once.
const SILENT: Duration = Duration::from_secs(10);
/// Clients that are gone are looked for this often.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// The number of waiters, queues and notices that all clients together can listen for. The others poll.
const MOST_WATCHED: usize = 50_000;
/// The number of clients that are remembered between two polls.
const MOST_CLIENTS: usize = 10_000;
/// Whoever has begun to listen so shortly ago may not be in a list that was on its way.
const YOUNG: Duration = Duration::from_secs(2);

/// The clients, each with what it listens for.
pub(super) struct Sessions {
    clients: Arc<Clients>,
    /// One permit for each thing that is listened for.
    room: Arc<Semaphore>,
}

type Clients = Mutex<HashMap<Uuid, Arc<Session>>>;

/// One client.
pub(super) struct Session {
    heard: Arc<Heard>,
    state: Mutex<State>,
    room: Arc<Semaphore>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { clients: Arc::default(), room: Arc::new(Semaphore::new(MOST_WATCHED)) }
    }
}

struct State {
    /// The newest poll.
    number: u64,
    seen: BootInstant,
    leases: HashMap<LeaseId, Watch>,
    queues: HashMap<QueueName, Watch>,
    notices: HashMap<Recipient, Watch>,
}

/// What there is to tell.
#[derive(Default)]
struct Heard {
    leases: Mutex<BTreeSet<LeaseId>>,
    queues: Mutex<BTreeSet<QueueName>>,
    notices: Mutex<BTreeSet<Recipient>>,
    news: Notify,
}

/// Listens in the background until it is dropped.
struct Watch {
    since: BootInstant,
    _listening: Listening,
    _room: OwnedSemaphorePermit,
}

/// How it listens: by a task of its own, or by a subscription.
enum Listening {
    Task(#[expect(dead_code, reason = "it is ended when dropped")] AbortOnDropHandle<()>),
    Subscription(#[expect(dead_code, reason = "it is ended when dropped")] Subscription),
}

impl Sessions {
    /// The session of this client.
    pub(super) fn of(&self, client: Uuid) -> Arc<Session> {
        let now = BootInstant::now();
        let mut clients = locked(&self.clients);
        if let Some(session) = clients.get(&client) {
            locked(&session.state).seen = now;
            return session.clone();
        }
        let session = Arc::new(Session::new(now, self.room.clone()));
        if clients.is_empty() {
            tokio::spawn(tidy(self.clients.clone()));
        }
        if clients.len() < MOST_CLIENTS {
            clients.insert(client, session.clone());
        }
        session
    }
}

/// Forgets clients that are gone, until none is left.
async fn tidy(clients: Arc<Clients>) {
    loop {
        tokio::time::sleep(TIDY_EVERY).await;
        let now = BootInstant::now();
        let mut clients = locked(&clients);
        clients.retain(|_, session| {
            // A poll that waits has one too.
            Arc::strong_count(session) > 1 || now.after(locked(&session.state).seen) < SILENT
        });
        if clients.is_empty() {
            return;
        }
    }
}

impl Session {
    fn new(now: BootInstant, room: Arc<Semaphore>) -> Self {
        let state = State {
            number: 0,
            seen: now,
            leases: HashMap::new(),
            queues: HashMap::new(),
            notices: HashMap::new(),
        };
        Self { heard: Arc::default(), state: Mutex::new(state), room }
    }

    /// Listens for this waiter from now on.
    pub(super) fn await_turn(&self, store: &Arc<dyn Store>, lease: LeaseId) {
        let mut state = locked(&self.state);
        if !state.leases.contains_key(&lease)
            && let Some(room) = self.room()
        {
            state.leases.insert(lease, watch_lease(&self.heard, store, lease, room));
        }
    }

    fn room(&self) -> Option<OwnedSemaphorePermit> {
        self.room.clone().try_acquire_owned().ok()
    }

    /// Waits for the next wake-up of those in the list. Ends at once if a newer poll is there.
    pub(super) async fn poll(&self, store: &Arc<dyn Store>, list: Listen, longest: Duration) -> Woken {
        let number = list.number;
        if !self.take_over(store, list) {
            return Woken::default();
        }
        let waiting = async {
            loop {
                let news = self.heard.news.notified();
                tokio::pin!(news);
                news.as_mut().enable();
                if locked(&self.state).number != number {
                    return Woken::default();
                }
                let woken = self.heard.take();
                if woken != Woken::default() {
                    return woken;
                }
                news.await;
            }
        };
        tokio::time::timeout(longest, waiting).await.unwrap_or_default()
    }

    /// Makes this list the one that counts; false if a newer one does.
    fn take_over(&self, store: &Arc<dyn Store>, list: Listen) -> bool {
        let mut state = locked(&self.state);
        if list.number <= state.number {
            return false;
        }
        state.number = list.number;
        keep(&mut state.leases, list.leases, |lease| {
            Some(watch_lease(&self.heard, store, *lease, self.room()?))
        });
        if store.tasks().is_some() {
            keep(&mut state.queues, list.queues, |queue| {
                Some(watch_queue(&self.heard, store, queue, self.room()?))
            });
        }
        keep(&mut state.notices, list.notices, |to| {
            Some(watch_notices(&self.heard, store, *to, self.room()?))
        });
        drop(state);
        self.heard.news.notify_waiters(); // So that an older poll ends.
        true
    }
}

/// Begins to watch what is new, as far as there is room, and ends what is not wanted any more.
fn keep<K: Hash + Eq>(watched: &mut HashMap<K, Watch>, wanted: Vec<K>, begin: impl Fn(&K) -> Option<Watch>) {
    let now = BootInstant::now();
    let mut before = std::mem::take(watched);
    for key in wanted {
        if watched.contains_key(&key) {
            continue;
        }
        if let Some(watch) = before.remove(&key).or_else(|| begin(&key)) {
            watched.insert(key, watch);
        }
    }
    watched.extend(before.into_iter().filter(|(_, watch)| now.after(watch.since) < YOUNG));
}

fn watch_lease(
    heard: &Arc<Heard>,
    store: &Arc<dyn Store>,
    lease: LeaseId,
    room: OwnedSemaphorePermit,
) -> Watch {
    let mut changes = store.locks().changes(None, &lease);
    let heard = heard.clone();
    Watch::of(
        async move {
            loop {
                if !matches!(changes.next(Duration::MAX).await, Wakeup::Poll) {
                    locked(&heard.leases).insert(lease);
                    heard.news.notify_waiters();
                }
            }
        },
        room,
    )
}

fn watch_queue(
    heard: &Arc<Heard>,
    store: &Arc<dyn Store>,
    queue: &QueueName,
    room: OwnedSemaphorePermit,
) -> Watch {
    let arrivals = store.tasks().map(|tasks| tasks.arrivals(std::slice::from_ref(queue)));
    let (heard, queue) = (heard.clone(), queue.clone());
    Watch::of(
        async move {
            let Some(mut arrivals) = arrivals else { return };
            loop {
                arrivals.rung().await;
                locked(&heard.queues).insert(queue.clone());
                heard.news.notify_waiters();
            }
        },
        room,
    )
}

fn watch_notices(
    heard: &Arc<Heard>,
    store: &Arc<dyn Store>,
    to: Recipient,
    room: OwnedSemaphorePermit,
) -> Watch {
    let heard = heard.clone();
    let subscription = store.subscribe(
        to,
        Arc::new(move || {
            locked(&heard.notices).insert(to);
            heard.news.notify_waiters();
        }),
    );
    Watch { since: BootInstant::now(), _listening: Listening::Subscription(subscription), _room: room }
}

impl Watch {
    fn of(listening: impl Future<Output = ()> + Send + 'static, room: OwnedSemaphorePermit) -> Self {
        let task = AbortOnDropHandle::new(tokio::spawn(listening));
        Self { since: BootInstant::now(), _listening: Listening::Task(task), _room: room }
    }
}

impl Heard {
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
