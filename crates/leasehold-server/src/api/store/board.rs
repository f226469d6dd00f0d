//! Who listens for what from afar. Only hints: whoever is forgotten here polls.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::Moment;
use leasehold::model::{LeaseId, QueueName};
use leasehold::store::protocol::{Listen, Woken};
use leasehold::store::{Store, Wake};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// A client that has said nothing for so long is gone.
const SILENT: Duration = Duration::from_mins(1);
/// Whoever has begun to listen so shortly ago may not be in a list that was on its way.
const YOUNG: Duration = Duration::from_secs(2);

/// The clients, each with what it listens for.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<Uuid, Arc<Session>>>);

/// One client.
pub(super) struct Session {
    heard: Arc<Heard>,
    state: Mutex<State>,
}

struct State {
    /// The newest poll.
    number: u64,
    seen: Moment,
    leases: HashMap<LeaseId, Watch>,
    queues: HashMap<QueueName, Watch>,
}

/// What there is to tell.
#[derive(Default)]
struct Heard {
    leases: Mutex<BTreeSet<LeaseId>>,
    queues: Mutex<BTreeSet<QueueName>>,
    news: Notify,
}

/// Listens in the background until it is dropped.
struct Watch {
    since: Moment,
    listening: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Sessions {
    /// The session of this client.
    pub(super) fn of(&self, client: Uuid) -> Arc<Session> {
        let now = Moment::now();
        let mut sessions = locked(&self.0);
        if !sessions.contains_key(&client) {
            sessions.retain(|_, session| {
                // A poll that waits has one too.
                Arc::strong_count(session) > 1 || now.after(locked(&session.state).seen) < SILENT
            });
        }
        let session = sessions.entry(client).or_insert_with(|| Arc::new(Session::new(now)));
        locked(&session.state).seen = now;
        session.clone()
    }
}

impl Session {
    fn new(now: Moment) -> Self {
        let state = State { number: 0, seen: now, leases: HashMap::new(), queues: HashMap::new() };
        Self { heard: Arc::default(), state: Mutex::new(state) }
    }

    /// Listens for this waiter from now on.
    pub(super) fn await_turn(&self, store: &Arc<dyn Store>, lease: LeaseId) {
        let mut state = locked(&self.state);
        state.leases.entry(lease).or_insert_with(|| watch_lease(&self.heard, store, lease));
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
        keep(&mut state.leases, list.leases, |lease| watch_lease(&self.heard, store, *lease));
        if store.tasks().is_some() {
            keep(&mut state.queues, list.queues, |queue| watch_queue(&self.heard, store, queue));
        }
        drop(state);
        self.heard.news.notify_waiters(); // So that an older poll ends.
        true
    }
}

/// Begins to watch what is new, and ends what is not wanted any more.
fn keep<K: Hash + Eq>(watched: &mut HashMap<K, Watch>, wanted: Vec<K>, begin: impl Fn(&K) -> Watch) {
    let now = Moment::now();
    let mut before = std::mem::take(watched);
    for key in wanted {
        let watch = before.remove(&key).unwrap_or_else(|| begin(&key));
        watched.insert(key, watch);
    }
    watched.extend(before.into_iter().filter(|(_, watch)| now.after(watch.since) < YOUNG));
}

fn watch_lease(heard: &Arc<Heard>, store: &Arc<dyn Store>, lease: LeaseId) -> Watch {
    let mut changes = store.locks().changes(&lease);
    let heard = heard.clone();
    Watch::of(async move {
        loop {
            if !matches!(changes.next(Duration::MAX).await, Wake::Poll) {
                locked(&heard.leases).insert(lease);
                heard.news.notify_waiters();
            }
        }
    })
}

fn watch_queue(heard: &Arc<Heard>, store: &Arc<dyn Store>, queue: &QueueName) -> Watch {
    let arrivals = store.tasks().map(|tasks| tasks.arrivals(std::slice::from_ref(queue)));
    let (heard, queue) = (heard.clone(), queue.clone());
    Watch::of(async move {
        let Some(mut arrivals) = arrivals else { return };
        loop {
            arrivals.rung().await;
            locked(&heard.queues).insert(queue.clone());
            heard.news.notify_waiters();
        }
    })
}

impl Watch {
    fn of(listening: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { since: Moment::now(), listening: tokio::spawn(listening) }
    }
}

impl Heard {
    fn take(&self) -> Woken {
        let leases = std::mem::take(&mut *locked(&self.leases));
        let queues = std::mem::take(&mut *locked(&self.queues));
        Woken { leases: leases.into_iter().collect(), queues: queues.into_iter().collect() }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
