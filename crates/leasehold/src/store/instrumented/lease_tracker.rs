//! Bounded memory: when a request was first sent, and which lease holds a lock.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::model::{Lease, LeaseId, LockName, Mode, Slots, Timestamp};
use crate::store::BootInstant;
use crate::store::support::mutex::lock;

const MAX_REQUESTS: usize = 10_000;
const MAX_HELD: usize = 1_000;
const MAX_TAKEOVERS: usize = 1_000;
const SHARDS: usize = 16;

/// Bounded memory of requests and leases.
#[derive(Debug, Default)]
pub(super) struct LeaseTracker {
    requests: Mutex<FirstAttempts>,
    /// Number of requests in `requests`: while it is zero, lookups need not lock the map.
    request_count: AtomicUsize,
    held: [Mutex<HashMap<LockName, Known>>; SHARDS],
    hasher: RandomState,
    /// Offset of the store's clock from this machine's boot clock, as last seen, in µs.
    clock_offset: AtomicI64,
    takeovers: Mutex<Vec<PossibleTakeover>>,
}

/// How a request was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptKind {
    /// Without a ticket; the caller may retry.
    Once,
    /// With a ticket in the queue; repetitions refresh the ticket.
    Queued,
}

/// First attempts of the requests that were not granted at once, oldest first.
#[derive(Debug, Default)]
struct FirstAttempts {
    since: HashMap<LeaseId, (BootInstant, AttemptKind)>,
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
pub(super) struct PossibleTakeover {
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

impl LeaseTracker {
    /// Records a request that was not granted. Returns how it was sent before, if it was.
    pub(super) fn not_granted(
        &self,
        request: LeaseId,
        since: BootInstant,
        how: AttemptKind,
    ) -> Option<AttemptKind> {
        let mut requests = lock(&self.requests);
        if let Some((_, how)) = requests.since.get(&request) {
            return Some(*how);
        }
        if requests.since.len() >= MAX_REQUESTS
            && let Some(oldest) = requests.order.pop_front()
        {
            requests.since.remove(&oldest);
        }
        requests.since.insert(request, (since, how));
        requests.order.push_back(request);
        if requests.order.len() > 2 * MAX_REQUESTS {
            let FirstAttempts { since, order } = &mut *requests;
            order.retain(|request| since.contains_key(request));
        }
        self.request_count.store(requests.since.len(), Ordering::Relaxed);
        None
    }

    /// Removes a request that has ended. Returns when and how it was sent first.
    pub(super) fn request_ended(&self, request: LeaseId) -> Option<(BootInstant, AttemptKind)> {
        if self.request_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut requests = lock(&self.requests);
        let since = requests.since.remove(&request);
        self.request_count.store(requests.since.len(), Ordering::Relaxed);
        since
    }

    /// Returns how a request that was not granted was sent first.
    pub(super) fn attempt_kind(&self, request: LeaseId) -> Option<AttemptKind> {
        if self.request_count.load(Ordering::Relaxed) == 0 {
            return None;
        }
        lock(&self.requests).since.get(&request).map(|(_, how)| *how)
    }

    /// Records a lease that was granted or renewed by a call that began at `began`. Returns whether
    /// the lease is new to this process.
    pub(super) fn lease_seen(&self, name: &LockName, lease: &Lease, began: BootInstant) -> bool {
        let now = i64::try_from(BootInstant::now().as_micros()).unwrap_or(i64::MAX);
        let theirs = i64::try_from(lease.renewed_at.as_micros()).unwrap_or(i64::MAX);
        self.clock_offset.store(theirs.saturating_sub(now), Ordering::Relaxed);
        let exclusive = lease.request.mode == Mode::Exclusive && lease.request.slots == Slots::default();
        if !exclusive {
            // A repeated grant of the same lease has a later `renewed_at`.
            return lease.renewed_at == lease.acquired_at;
        }
        let known = Known { lease_id: lease.request.lease_id, expires_at: lease.expires_at };
        let mut held = self.shard(name);
        let before = match held.get_mut(name) {
            Some(there) => Some(std::mem::replace(there, known)),
            None => {
                if held.len() < MAX_HELD {
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
                let takeover =
                    PossibleTakeover { lock: name.clone(), lease_id: before.lease_id, from, until };
                let mut takeovers = lock(&self.takeovers);
                if takeovers.len() < MAX_TAKEOVERS {
                    takeovers.push(takeover);
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
    pub(super) fn lease_ended(&self, name: &LockName, lease: LeaseId) {
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

    pub(super) fn take_possible_takeovers(&self) -> Vec<PossibleTakeover> {
        std::mem::take(&mut *lock(&self.takeovers))
    }

    fn store_time(&self) -> Timestamp {
        let clock_offset = self.clock_offset.load(Ordering::Relaxed);
        Timestamp::from_micros(BootInstant::now().as_micros().saturating_add_signed(clock_offset))
    }

    fn shard(&self, name: &LockName) -> MutexGuard<'_, HashMap<LockName, Known>> {
        let hash = self.hasher.hash_one(name);
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
        let shard = (hash % SHARDS as u64) as usize;
        lock(&self.held[shard])
    }
}
