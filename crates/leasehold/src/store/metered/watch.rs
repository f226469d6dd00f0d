//! Bounded memory of requests and leases: when a request was first sent, and which lease holds a
//! lock.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::{Lease, LeaseId, LockName, Mode, Slots, Timestamp};
use crate::store::BootInstant;

const MOST_ASKED: usize = 10_000;
const MOST_HELD: usize = 1_000;
const MOST_DOUBTS: usize = 1_000;
const SHARDS: usize = 16;

/// Bounded memory of requests and leases.
#[derive(Debug)]
pub(super) struct Watch {
    asked: Mutex<Asked>,
    /// Number of requests in `asked`: while it is zero, lookups need not lock the map.
    asking: AtomicUsize,
    held: [Mutex<HashMap<LockName, Known>>; SHARDS],
    hasher: RandomState,
    /// Offset of the store's clock from this machine's boot clock, as last seen, in µs.
    ahead: AtomicI64,
    doubts: Mutex<Vec<Doubt>>,
}

/// How a request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// Without a ticket; the caller may retry.
    Once,
    /// With a ticket in the queue; repetitions refresh the ticket.
    InQueue,
}

/// First attempts of the requests that were not granted at once, oldest first.
#[derive(Debug, Default)]
struct Asked {
    since: HashMap<LeaseId, (BootInstant, Asking)>,
    order: VecDeque<LeaseId>,
}

/// Lease that was granted through this store.
#[derive(Debug, Clone, Copy)]
struct Known {
    lease_id: LeaseId,
    expires_at: Timestamp,
}

/// Possible takeover: a lease was granted while another one was, as far as this process knows, not
/// released. The other one may have been released by another process: the history shows it.
#[derive(Debug, Clone)]
pub(super) struct Doubt {
    pub(super) lock: LockName,
    pub(super) lease_id: LeaseId,
    /// Time at which the new lease was granted. If it took this one over, the takeover is dated
    /// between `from` and `until`: an engine that needs several requests for a grant dates its first
    /// and its last step.
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// Resolution of the clocks that date leases in whole seconds.
const SECOND: Duration = Duration::from_secs(1);

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            asked: Mutex::default(),
            asking: AtomicUsize::new(0),
            held: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            ahead: AtomicI64::new(0),
            doubts: Mutex::default(),
        }
    }

    /// Records a request that was not granted. Returns how it was sent first, if this is not the
    /// first time.
    pub(super) fn asks(&self, request: LeaseId, since: BootInstant, how: Asking) -> Option<Asking> {
        let mut asked = lock(&self.asked);
        if let Some((_, how)) = asked.since.get(&request) {
            return Some(*how);
        }
        if asked.since.len() >= MOST_ASKED
            && let Some(oldest) = asked.order.pop_front()
        {
            asked.since.remove(&oldest);
        }
        asked.since.insert(request, (since, how));
        asked.order.push_back(request);
        if asked.order.len() > 2 * MOST_ASKED {
            let Asked { since, order } = &mut *asked;
            order.retain(|request| since.contains_key(request));
        }
        self.asking.store(asked.since.len(), Ordering::Relaxed);
        None
    }

    /// Removes a request that has ended. Returns when and how it was sent first.
    pub(super) fn served(&self, request: LeaseId) -> Option<(BootInstant, Asking)> {
        if self.asking.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut asked = lock(&self.asked);
        let since = asked.since.remove(&request);
        self.asking.store(asked.since.len(), Ordering::Relaxed);
        since
    }

    /// Returns how a request that was not granted was sent first.
    pub(super) fn asking(&self, request: LeaseId) -> Option<Asking> {
        if self.asking.load(Ordering::Relaxed) == 0 {
            return None;
        }
        lock(&self.asked).since.get(&request).map(|(_, how)| *how)
    }

    /// Records a lease that was granted or renewed by a call that began at `began`. Returns whether
    /// the lease is new to this process.
    pub(super) fn holds(&self, name: &LockName, lease: &Lease, began: BootInstant) -> bool {
        let now = i64::try_from(BootInstant::now().as_micros()).unwrap_or(i64::MAX);
        let theirs = i64::try_from(lease.renewed_at.as_micros()).unwrap_or(i64::MAX);
        self.ahead.store(theirs.saturating_sub(now), Ordering::Relaxed);
        let alone = lease.ask.mode == Mode::Exclusive && lease.ask.slots == Slots::default();
        if !alone {
            // A repeated grant of the same lease has a later `renewed_at`.
            return lease.renewed_at == lease.acquired_at;
        }
        let known = Known { lease_id: lease.ask.lease_id, expires_at: lease.expires_at };
        let mut held = self.shard(name);
        let before = match held.get_mut(name) {
            Some(there) => Some(std::mem::replace(there, known)),
            None => {
                if held.len() < MOST_HELD {
                    held.insert(name.clone(), known);
                }
                None
            }
        };
        drop(held);
        match before {
            Some(before) if before.lease_id == known.lease_id => false,
            Some(before) => {
                let (from, until) = (lease.acquired_at, lease.renewed_at);
                let doubt = Doubt { lock: name.clone(), lease_id: before.lease_id, from, until };
                let mut doubts = lock(&self.doubts);
                if doubts.len() < MOST_DOUBTS {
                    doubts.push(doubt);
                }
                true
            }
            // Granted by this very call, however many steps that took; an older lease was counted by
            // the process that acquired it.
            None => {
                let took = BootInstant::now().after(began) + SECOND;
                lease.renewals == 0 && lease.renewed_at.since(lease.acquired_at) <= took
            }
        }
    }

    /// Removes a lease that has ended.
    pub(super) fn ended(&self, name: &LockName, lease: LeaseId) {
        let mut held = self.shard(name);
        if held.get(name).is_some_and(|known| known.lease_id == lease) {
            held.remove(name);
        }
    }

    /// Removes expired leases after a sweep, which has counted them.
    pub(super) fn swept(&self) {
        let now = self.store_time();
        for shard in &self.held {
            lock(shard).retain(|_, known| now < known.expires_at);
        }
    }

    /// Returns the time since `time` on the store's clock, as far as this process knows that clock.
    pub(super) fn since(&self, time: Timestamp) -> Duration {
        self.store_time().since(time)
    }

    /// Returns the possible takeovers to look up.
    pub(super) fn take_doubts(&self) -> Vec<Doubt> {
        std::mem::take(&mut *lock(&self.doubts))
    }

    fn store_time(&self) -> Timestamp {
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(BootInstant::now().as_micros().saturating_add_signed(ahead))
    }

    fn shard(&self, name: &LockName) -> MutexGuard<'_, HashMap<LockName, Known>> {
        let hash = self.hasher.hash_one(name);
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
        let shard = (hash % SHARDS as u64) as usize;
        lock(&self.held[shard])
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
