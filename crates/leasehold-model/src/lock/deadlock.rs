//! Deadlocks: the wait-for graph of leases and tickets, and its rings.
//!
//! A ticket waits for the leases that leave no capacity for its request, and for the tickets before it.
//! A lease waits for the requests that were made *within* it: its holder does not release it before they
//! are granted. Nothing but such a declaration proves that a holder waits: two requests of one process,
//! or of one holder name, may belong to work that is independent.
//!
//! The search is optimistic, so that nothing is reported that could still end: every holder that is not
//! known to wait is assumed to release its leases, and every ticket that then fits is assumed to be
//! granted and released in turn. What remains waits for itself.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::record::fits;
use crate::shell::{option, run_command};
use crate::{
    Holder, Lease, LeaseId, LeaseRef, LeaseStatus, LockName, LockRecord, LockRequest, Metadata, Ticket,
    Timestamp, Token,
};

/// Metadata key under which a request names the leases that it was made within.
const WITHIN: &str = "within";
/// Metadata key under which a server writes the name of the API token that made a request.
const OWNER: &str = "token";
/// Maximum number of leases that a request names; the rest is omitted.
const MAX_WITHIN: usize = 64;

/// Ring of waits: none of them can end unless one of its waiters gives up or one of its leases ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// Waits of the ring, each for the next one, and the last for the first.
    pub waits: Vec<RingWait>,
}

/// Wait of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingWait {
    /// Lock that is waited for.
    pub lock: LockName,
    /// Holder that waits.
    pub waiter: Holder,
    /// Public name of the lease that the ticket would become.
    pub lease: LeaseRef,
    /// Time at which the request was queued.
    pub since: Timestamp,
    /// Lease that the request was made within, and that the previous wait of the ring waits for. `None`
    /// if the previous wait is in the queue of the same lock, behind this one.
    pub holds: Option<RingLease>,
}

/// Lease of a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingLease {
    /// Lock that is held.
    pub lock: LockName,
    /// Holder of the lease.
    pub holder: Holder,
    /// Public name of the lease.
    pub lease: LeaseRef,
    /// Token of the lease, which a forced release must specify.
    pub token: Token,
    /// Time of the grant.
    pub since: Timestamp,
}

impl Metadata {
    /// Declares that a request is made within these leases: their holder does not release them before the
    /// request is granted or given up. Leases for which there is no space are omitted: then a deadlock
    /// may not be found.
    pub fn set_within(&mut self, leases: impl IntoIterator<Item = LeaseRef>) {
        let mut names: Vec<String> =
            leases.into_iter().take(MAX_WITHIN).map(|lease| lease.to_string()).collect();
        while !names.is_empty() && self.set(WITHIN, names.join(" ")).is_err() {
            names.truncate(names.len() / 2);
        }
    }
}

impl LockRequest {
    /// Returns the leases that the request was made within, as far as they are declared.
    pub fn within(&self) -> impl Iterator<Item = LeaseRef> {
        let names = self.metadata.get(WITHIN).unwrap_or_default();
        names.split(' ').take(MAX_WITHIN).filter_map(|name| LeaseRef::try_from(name.to_owned()).ok())
    }
}

/// Returns the locks that must be read a second time: those with a ticket that seems to wait for itself.
/// `records` are all locks with waiters; they need not have been read at one point of time. `is_over` says
/// whether a lease has ended before its time, because its process has exited.
pub fn suspected_locks(
    records: &[LockRecord],
    now: Timestamp,
    is_over: impl Fn(&Lease) -> bool,
) -> Vec<LockName> {
    let graph = Graph::new(records, now, is_over, |_| true);
    graph
        .locks
        .iter()
        .filter(|lock| lock.first_stuck < lock.tickets.len())
        .map(|lock| lock.name.clone())
        .collect()
}

/// Returns the deadlocks among locks that were read twice: `second` was read after the last of `first`.
///
/// A lease or a ticket counts only if both readings contain it, under the same token or with the same
/// arrival. It then existed all the time between the two readings, and so did all others: they are
/// a state that the store had at one point of time, although the locks were read one after the other.
pub fn deadlocks(
    first: &[LockRecord],
    second: &[LockRecord],
    now: Timestamp,
    is_over: impl Fn(&Lease) -> bool,
) -> Vec<Deadlock> {
    let mut seen = HashSet::new();
    for record in first {
        seen.extend(record.holders.iter().map(|lease| Entry::of_lease(&record.name, lease)));
        seen.extend(record.waiters.iter().map(|ticket| Entry::of_ticket(&record.name, ticket)));
    }
    Graph::new(second, now, is_over, |entry| seen.contains(entry)).rings()
}

/// Identity of one grant or of one arrival in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    lock: LockName,
    id: LeaseId,
    /// Token of the lease, or time of the arrival.
    number: (bool, u64),
}

impl Entry {
    fn of_lease(lock: &LockName, lease: &Lease) -> Self {
        Self { lock: lock.clone(), id: lease.request.lease_id, number: (true, lease.token.get()) }
    }

    fn of_ticket(lock: &LockName, ticket: &Ticket) -> Self {
        Self { lock: lock.clone(), id: ticket.request.lease_id, number: (false, ticket.since.as_micros()) }
    }
}

/// Position of a lease or a ticket: the lock, and the place in its list.
type Place = (usize, usize);

struct Graph<'a> {
    locks: Vec<Lock<'a>>,
    /// Tickets that were made within a lease.
    inner: HashMap<Place, Vec<Place>>,
}

struct Lock<'a> {
    name: &'a LockName,
    leases: Vec<&'a Lease>,
    /// Whether the lease waits for itself, as far as is known.
    stuck: Vec<bool>,
    tickets: Vec<&'a Ticket>,
    /// Number of tickets that can be granted. Tickets are granted in order, so all others are stuck.
    first_stuck: usize,
}

impl<'a> Graph<'a> {
    fn new(
        records: &'a [LockRecord],
        now: Timestamp,
        is_over: impl Fn(&Lease) -> bool,
        counts: impl Fn(&Entry) -> bool,
    ) -> Self {
        let mut locks = Vec::new();
        for record in records {
            // A retained lease ends by itself.
            let waits = |lease: &&Lease| lease.status != LeaseStatus::Released && !is_over(lease);
            let leases = record.live(now).filter(waits);
            let leases: Vec<_> =
                leases.filter(|lease| counts(&Entry::of_lease(&record.name, lease))).collect();
            let tickets =
                record.waiting(now).filter(|ticket| counts(&Entry::of_ticket(&record.name, ticket)));
            let (stuck, tickets) = (vec![false; leases.len()], tickets.collect());
            locks.push(Lock { name: &record.name, leases, stuck, tickets, first_stuck: 0 });
        }
        let inner = inner(&locks);
        for (lock, lease) in inner.keys() {
            locks[*lock].stuck[*lease] = true;
        }
        let mut graph = Self { locks, inner };
        graph.reduce();
        graph
    }

    /// Frees every ticket that can be granted and every lease that can be released, until nothing changes.
    fn reduce(&mut self) {
        // Number of stuck tickets within each lease, and the leases that a ticket was made within.
        let mut left: HashMap<Place, usize> =
            self.inner.iter().map(|(lease, tickets)| (*lease, tickets.len())).collect();
        let mut outer: HashMap<Place, Vec<Place>> = HashMap::new();
        for (lease, tickets) in &self.inner {
            for ticket in tickets {
                outer.entry(*ticket).or_default().push(*lease);
            }
        }
        let mut due: Vec<usize> = (0..self.locks.len()).collect();
        while let Some(at) = due.pop() {
            while let Some(freed) = self.locks[at].free_next() {
                for lease in outer.get(&(at, freed)).into_iter().flatten() {
                    let left = left.get_mut(lease).expect("the lease has an inner ticket");
                    *left -= 1;
                    if *left == 0 {
                        self.locks[lease.0].stuck[lease.1] = false;
                        due.push(lease.0);
                    }
                }
            }
        }
    }

    /// Returns every ring once. Each stuck ticket waits for one that is stuck, too, so that following the
    /// waits from any of them ends in a ring.
    fn rings(&self) -> Vec<Deadlock> {
        let (mut rings, mut visited) = (Vec::new(), HashSet::new());
        for (at, lock) in self.locks.iter().enumerate() {
            for ticket in lock.first_stuck..lock.tickets.len() {
                let (mut path, mut next) = (Vec::<(Place, Option<Place>)>::new(), ((at, ticket), None));
                while visited.insert(next.0) {
                    path.push(next);
                    next = self.next(next.0);
                }
                if let Some(start) = path.iter().position(|(ticket, _)| *ticket == next.0) {
                    // The first wait was reached from the last one.
                    path[start].1 = next.1;
                    rings.push(self.deadlock(&path[start..]));
                }
            }
        }
        rings.sort_by(|a, b| a.order().cmp(&b.order()));
        rings
    }

    /// Returns the stuck ticket that a stuck ticket waits for, and the lease through which it does.
    fn next(&self, (at, ticket): Place) -> (Place, Option<Place>) {
        let lock = &self.locks[at];
        let request = &lock.tickets[ticket].request;
        if ticket > lock.first_stuck && lock.has_room_for(request) {
            return ((at, ticket - 1), None);
        }
        let stuck = || (0..lock.leases.len()).filter(|lease| lock.stuck[*lease]);
        let other_mode = stuck().find(|lease| lock.leases[*lease].request.mode != request.mode);
        let lease =
            (at, other_mode.or_else(|| stuck().next()).expect("a stuck lease blocks the first ticket"));
        let is_stuck = |(lock, ticket): &&Place| *ticket >= self.locks[*lock].first_stuck;
        let inner = self.inner[&lease].iter().find(is_stuck).expect("a stuck lease has a stuck ticket");
        (*inner, Some(lease))
    }

    fn deadlock(&self, ring: &[(Place, Option<Place>)]) -> Deadlock {
        let waits = ring.iter().map(|((at, ticket), lease)| {
            let lock = &self.locks[*at];
            let ticket = lock.tickets[*ticket];
            RingWait {
                lock: lock.name.clone(),
                waiter: ticket.request.holder.clone(),
                lease: LeaseRef::of(&ticket.request.lease_id),
                since: ticket.since,
                holds: lease.map(|(at, lease)| {
                    let (name, lease) = (self.locks[at].name.clone(), self.locks[at].leases[lease]);
                    RingLease {
                        lock: name,
                        holder: lease.request.holder.clone(),
                        lease: LeaseRef::of(&lease.request.lease_id),
                        token: lease.token,
                        since: lease.acquired_at,
                    }
                }),
            }
        });
        let mut waits: Vec<_> = waits.collect();
        // The same ring has the same first wait, wherever the search began: one that holds something.
        let first = (0..waits.len()).min_by_key(|at| (waits[*at].holds.is_none(), waits[*at].order()));
        waits.rotate_left(first.unwrap_or(0));
        Deadlock { waits }
    }
}

impl Lock<'_> {
    /// Whether a request fits beside the stuck leases, when all others have been released.
    fn has_room_for(&self, request: &LockRequest) -> bool {
        let stuck = self.leases.iter().zip(&self.stuck).filter(|(_, stuck)| **stuck);
        fits(stuck.map(|(lease, _)| *lease), request)
    }

    /// Frees the next ticket of the queue if it fits; returns its place.
    fn free_next(&mut self) -> Option<usize> {
        let next = self.first_stuck;
        let fits = self.has_room_for(&self.tickets.get(next)?.request);
        self.first_stuck += usize::from(fits);
        fits.then_some(next)
    }
}

/// Returns the tickets that were made within each lease. A ticket is believed only if the same API token
/// made it: no other caller can declare that a holder waits.
fn inner(locks: &[Lock<'_>]) -> HashMap<Place, Vec<Place>> {
    let mut wanted: HashMap<LeaseRef, Vec<Place>> = HashMap::new();
    for (at, lock) in locks.iter().enumerate() {
        for (number, ticket) in lock.tickets.iter().enumerate() {
            let within: HashSet<_> = ticket.request.within().collect();
            for lease in within {
                wanted.entry(lease).or_default().push((at, number));
            }
        }
    }
    let mut inner = HashMap::new();
    if wanted.is_empty() {
        return inner;
    }
    let owner = |request: &LockRequest| request.metadata.get(OWNER).map(str::to_owned);
    for (at, lock) in locks.iter().enumerate() {
        for (number, lease) in lock.leases.iter().enumerate() {
            let tickets = wanted.get(&LeaseRef::of(&lease.request.lease_id)).into_iter().flatten().copied();
            let tickets: Vec<_> = tickets
                .filter(|(at, ticket)| owner(&locks[*at].tickets[*ticket].request) == owner(&lease.request))
                .collect();
            if !tickets.is_empty() {
                inner.insert((at, number), tickets);
            }
        }
    }
    inner
}

impl RingWait {
    fn order(&self) -> (&LockName, Timestamp, &Holder) {
        (&self.lock, self.since, &self.waiter)
    }
}

impl Deadlock {
    fn order(&self) -> Option<(&LockName, Timestamp, &Holder)> {
        self.waits.first().map(RingWait::order)
    }

    /// Returns the locks of the ring in the order of their names.
    pub fn locks(&self) -> Vec<&LockName> {
        let mut locks: Vec<_> = self.waits.iter().map(|wait| &wait.lock).collect();
        locks.sort();
        locks.dedup();
        locks
    }

    /// Whether the ring contains the request with this id.
    pub fn contains(&self, request: &LeaseId) -> bool {
        let lease = LeaseRef::of(request);
        self.waits.iter().any(|wait| wait.lease == lease)
    }

    /// Returns the waits as sentences.
    pub fn sentences(&self) -> Vec<String> {
        self.waits.iter().map(|wait| format!("{wait}.")).collect()
    }

    /// Returns the names of the locks, as a list in a sentence.
    pub fn lock_list(&self) -> String {
        let names: Vec<_> = self.locks().iter().map(|lock| format!("'{lock}'")).collect();
        match names.as_slice() {
            [] => String::new(),
            [one] => one.clone(),
            [first @ .., last] => format!("{} and {last}", first.join(", ")),
        }
    }

    /// Returns the command that takes all locks of the ring together, in which no deadlock can arise;
    /// `None` for a ring of one lock. `program` is as for [`LockRemedy::command`](crate::LockRemedy).
    pub fn remedy(&self, program: &str) -> Option<String> {
        let locks = self.locks();
        let (first, rest) = locks.split_first().filter(|(_, rest)| !rest.is_empty())?;
        let with: Vec<_> = rest.iter().map(|lock| option("--with", lock.as_str())).collect();
        Some(run_command(program, first.as_str(), &with.join(" ")))
    }
}

impl fmt::Display for RingWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lock, waiter, .. } = self;
        match &self.holds {
            None => write!(f, "{waiter} waits for '{lock}', before it in the queue"),
            Some(held) if held.holder == *waiter => {
                write!(f, "{waiter} holds '{}' and waits for '{lock}'", held.lock)
            }
            Some(held) => {
                write!(f, "{} holds '{}', and {waiter} within it waits for '{lock}'", held.holder, held.lock)
            }
        }
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits: Vec<_> = self.waits.iter().map(ToString::to_string).collect();
        write!(f, "deadlock of {}: {}", self.lock_list(), waits.join("; "))
    }
}
