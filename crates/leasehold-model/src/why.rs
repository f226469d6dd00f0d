//! Explanation of a lock: who holds it, who waits for it, what would free it, and why it is free.

use super::{
    Event, EventKind, Holder, Lease, LeaseId, LeaseRef, LockName, LockRecord, Mode, Reason, Status,
    StopRequest, Ticket, Timestamp, Token,
};

/// Facts that the record of a lock does not contain, for [`LockRecord::why`].
#[derive(Debug, Clone, Copy)]
pub struct LockSurroundings<'a> {
    /// Time of the store.
    pub now: Timestamp,
    /// Leases whose process has exited, as far as the engine can know it.
    pub dead: &'a [LeaseId],
    /// Newest events of the lock, the newest first. They matter only if no lease is in the record.
    pub events: &'a [Event],
}

/// Fact that explains the state of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockReason {
    /// A lease is in the record. The facts after this one, up to the next `Held`, are about this lease.
    Held {
        /// The lock.
        lock: LockName,
        /// Holder of the lease.
        holder: Holder,
        /// Token of the lease.
        token: Token,
        /// Mode of the lease.
        mode: Mode,
        /// Maximum number of exclusive holders that the lease accepts.
        slots: u32,
        /// Time of the grant.
        since: Timestamp,
        /// End of the lease, unless it is renewed.
        until: Timestamp,
        /// Whether the lease has ended: its time is over.
        over: bool,
        /// Whether another lease of the lock was named before.
        also: bool,
        /// Whether the reader of the explanation holds the lease. The model does not know it: a client
        /// that does may set it.
        own: bool,
    },
    /// Work of the holder, from the metadata of the lease.
    Purpose {
        /// Command that the lease is for.
        command: Option<String>,
        /// User of the command.
        user: Option<String>,
        /// Host of the command.
        host: Option<String>,
        /// Process id of the command.
        pid: Option<String>,
        /// Reason that the holder gave.
        reason: Option<String>,
    },
    /// Renewals of a live lease.
    Renewals {
        /// Holder of the lease.
        holder: Holder,
        /// Number of renewals.
        times: u64,
        /// Time of the last renewal, or of the grant.
        last: Timestamp,
        /// End of the lease, unless it is renewed.
        until: Timestamp,
        /// Whether the holder has renewed before and is now late: it may be dead or paused.
        late: bool,
    },
    /// The lease has ended, and is still in the record.
    Expired {
        /// Holder of the lease.
        holder: Holder,
        /// End of the lease.
        at: Timestamp,
    },
    /// The process of the holder has exited.
    ProcessExited {
        /// Holder of the lease.
        holder: Holder,
    },
    /// The holder has released the lease, which still blocks the lock for its minimum hold time.
    Retained {
        /// Holder of the lease.
        holder: Holder,
        /// End of the minimum hold time.
        until: Timestamp,
    },
    /// A caller has asked the holder to release the lease.
    ReleaseRequested {
        /// The request.
        request: StopRequest,
        /// Whether the holder has renewed since: the answer to a renewal contains the request.
        notified: bool,
    },
    /// No lease is in the record. The next fact says why.
    NotHeld {
        /// The lock.
        lock: LockName,
    },
    /// The last lease ended.
    Ended {
        /// Kind of the end: released, expired, stolen or forced.
        kind: EventKind,
        /// Holder of the lease.
        holder: Holder,
        /// Token of the lease.
        token: Token,
        /// Time of the end.
        at: Timestamp,
        /// Actor that ended the lease, if not the holder.
        by: Option<Holder>,
        /// Reason of the end.
        reason: Option<Reason>,
    },
    /// The lock was held, and its history no longer says how the last lease ended.
    EndUnknown,
    /// The lock was never held, or was forgotten since.
    NeverHeld,
    /// A caller waits in the queue.
    Waits {
        /// Position in the queue, from 1.
        position: usize,
        /// Holder that waits.
        holder: Holder,
        /// Public name of the lease that the ticket will become.
        lease: LeaseRef,
        /// Mode that the waiter wants.
        mode: Mode,
        /// Maximum number of exclusive holders that the waiter accepts.
        slots: u32,
        /// Priority of the request.
        priority: i32,
        /// Time at which the request was queued.
        since: Timestamp,
        /// Reason that the waiter gave.
        reason: Option<String>,
        /// What the waiter waits for.
        behind: Behind,
    },
    /// No caller waits for the lock.
    NoWaiter,
    /// What frees the lock.
    FreedBy {
        /// Number of live leases.
        holders: usize,
        /// Ways, the most usual first.
        ways: Vec<Freeing>,
    },
}

/// What a waiter waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Behind {
    /// The leases that leave no capacity for the request.
    Holders {
        /// Holder of the oldest of them.
        first: Holder,
        /// Number of others.
        more: usize,
    },
    /// The waiter before it: the queue is served in order.
    Waiter(Holder),
    /// Nothing: the next operation on the lock grants it.
    Nothing,
}

/// Way in which a held lock becomes free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Freeing {
    /// The holders release it.
    Release,
    /// The last of the leases ends.
    Expiry {
        /// Latest end of a lease.
        at: Timestamp,
        /// Whether a renewal moves the end.
        renewable: bool,
    },
    /// An operator takes it from the holders.
    Force,
    /// The next acquire or a sweep removes the leases: all of them have ended, or their processes have.
    NextOperation,
}

impl LockRecord {
    /// Returns the facts that explain the state of the lock, the most important first: the leases, or
    /// why there is none; the queue in order; what frees the lock. Never empty.
    pub fn why(&self, around: &LockSurroundings<'_>) -> Vec<LockReason> {
        let mut reasons = Vec::new();
        for (at, lease) in self.holders.iter().enumerate() {
            self.why_held(lease, at > 0, around, &mut reasons);
        }
        if self.holders.is_empty() {
            reasons.push(LockReason::NotHeld { lock: self.name.clone() });
            reasons.push(self.why_free(around.events));
        }
        reasons.extend(self.why_waiting(around));
        reasons.extend(self.freed_by(around));
        reasons
    }

    fn why_held(
        &self,
        lease: &Lease,
        also: bool,
        around: &LockSurroundings<'_>,
        reasons: &mut Vec<LockReason>,
    ) {
        let request = &lease.request;
        let holder = request.holder.clone();
        reasons.push(LockReason::Held {
            lock: self.name.clone(),
            holder: holder.clone(),
            token: lease.token,
            mode: request.mode,
            slots: request.slots.get(),
            since: lease.acquired_at,
            until: lease.expires_at,
            over: lease.expires_at <= around.now,
            also,
            own: false,
        });
        reasons.extend(purpose(lease));
        reasons.push(if lease.expires_at <= around.now {
            LockReason::Expired { holder, at: lease.expires_at }
        } else if lease.status == Status::Released {
            LockReason::Retained { holder, until: lease.expires_at }
        } else if around.dead.contains(&request.lease_id) {
            LockReason::ProcessExited { holder }
        } else {
            LockReason::Renewals {
                holder,
                times: lease.renewals,
                last: lease.renewed_at,
                until: lease.expires_at,
                late: lease.is_late(around.now),
            }
        });
        reasons.extend(lease.release_request.clone().map(|request| {
            let notified = lease.renewed_at >= request.at;
            LockReason::ReleaseRequested { request, notified }
        }));
    }

    fn why_free(&self, events: &[Event]) -> LockReason {
        let ends = |kind| {
            matches!(kind, EventKind::Released | EventKind::Expired | EventKind::Stolen | EventKind::Forced)
        };
        match events.iter().find(|event| ends(event.kind)) {
            Some(event) => LockReason::Ended {
                kind: event.kind,
                holder: event.holder.clone(),
                token: event.token,
                at: event.at,
                by: event.by.clone(),
                reason: event.reason.clone(),
            },
            None if self.version == 0 && events.is_empty() => LockReason::NeverHeld,
            None => LockReason::EndUnknown,
        }
    }

    fn why_waiting(&self, around: &LockSurroundings<'_>) -> Vec<LockReason> {
        let mut before: Option<&Ticket> = None;
        let mut reasons = Vec::new();
        for (position, ticket) in (1..).zip(self.waiting(around.now)) {
            let request = &ticket.request;
            let behind = match before {
                Some(before) => Behind::Waiter(before.request.holder.clone()),
                None => self.behind_holders(ticket, around),
            };
            before = Some(ticket);
            reasons.push(LockReason::Waits {
                position,
                holder: request.holder.clone(),
                lease: LeaseRef::of(&request.lease_id),
                mode: request.mode,
                slots: request.slots.get(),
                priority: request.priority.get(),
                since: ticket.since,
                reason: request.metadata.get("reason").map(str::to_owned),
                behind,
            });
        }
        if reasons.is_empty() {
            reasons.push(LockReason::NoWaiter);
        }
        reasons
    }

    /// Returns what the first waiter waits for.
    fn behind_holders(&self, ticket: &Ticket, around: &LockSurroundings<'_>) -> Behind {
        let mut live = self.clone();
        live.holders.retain(|lease| !is_over(lease, around));
        match live.holders.as_slice() {
            [first, rest @ ..] if !live.has_capacity_for(&ticket.request) => {
                Behind::Holders { first: first.request.holder.clone(), more: rest.len() }
            }
            _ => Behind::Nothing,
        }
    }

    fn freed_by(&self, around: &LockSurroundings<'_>) -> Option<LockReason> {
        let live: Vec<_> = self.holders.iter().filter(|lease| !is_over(lease, around)).collect();
        let holders = live.len();
        let Some(at) = live.iter().map(|lease| lease.expires_at).max() else {
            let ways = vec![Freeing::NextOperation];
            return (!self.holders.is_empty()).then_some(LockReason::FreedBy { holders, ways });
        };
        let renewable = live.iter().any(|lease| lease.status != Status::Released);
        let mut ways = Vec::new();
        if renewable {
            ways.push(Freeing::Release);
        }
        if !at.is_endless() {
            ways.push(Freeing::Expiry { at, renewable });
        }
        ways.push(Freeing::Force);
        Some(LockReason::FreedBy { holders, ways })
    }

    /// Returns the commands that help with the lock in its state, the gentlest first.
    pub fn remedies(&self, around: &LockSurroundings<'_>) -> Vec<LockRemedy> {
        let live: Vec<_> = self.holders.iter().filter(|lease| !is_over(lease, around)).collect();
        if live.is_empty() {
            let mut remedies = vec![LockRemedy::Take];
            if !self.holders.is_empty() {
                remedies.push(LockRemedy::Sweep);
            }
            return remedies;
        }
        let mut remedies = vec![LockRemedy::Wait, LockRemedy::Queue];
        if live.iter().any(|lease| lease.status == Status::Active) {
            remedies.push(LockRemedy::Ask);
        }
        remedies.extend(live.iter().map(|lease| LockRemedy::Force { token: lease.token }));
        remedies
    }
}

/// Command that helps a reader of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockRemedy {
    /// Take the free lock.
    Take,
    /// Remove leases that have ended.
    Sweep,
    /// Wait until it is free, without taking it.
    Wait,
    /// Wait in the queue.
    Queue,
    /// Ask the holders to release it.
    Ask,
    /// Take it from the holder with this token by force.
    Force {
        /// Token of the lease.
        token: Token,
    },
}

/// Whether the next operation on the lock removes the lease. A retained lease needs no process.
fn is_over(lease: &Lease, around: &LockSurroundings<'_>) -> bool {
    let dead = lease.status != Status::Released && around.dead.contains(&lease.request.lease_id);
    dead || lease.expires_at <= around.now
}

fn purpose(lease: &Lease) -> Option<LockReason> {
    let meta = |key| lease.request.metadata.get(key).map(str::to_owned);
    let (command, reason) = (meta("command"), meta("reason"));
    if command.is_none() && reason.is_none() {
        return None;
    }
    let (user, host, pid) = (meta("user"), meta("host"), meta("pid"));
    Some(LockReason::Purpose { command, user, host, pid, reason })
}

impl Lease {
    /// Whether the holder has renewed before, and its next renewal is overdue: the time since the last
    /// one is more than half of the TTL and more than twice the usual interval. Such a holder may be dead,
    /// paused, or cut off from the store.
    pub fn is_late(&self, now: Timestamp) -> bool {
        let Some(renewals) = u32::try_from(self.renewals).ok().filter(|renewals| *renewals > 0) else {
            return false;
        };
        let (age, usual) = (now.since(self.renewed_at), self.renewed_at.since(self.acquired_at) / renewals);
        age > usual * 2 && age > self.request.ttl.as_duration() / 2
    }
}

impl Behind {
    /// Returns the holder or the waiter that is waited for; of several holders, the oldest.
    pub fn first(&self) -> Option<&Holder> {
        match self {
            Self::Holders { first: holder, .. } | Self::Waiter(holder) => Some(holder),
            Self::Nothing => None,
        }
    }
}

impl LockReason {
    /// Returns the time at which the lock becomes free unless a lease is renewed, if this fact says it.
    pub fn frees_at(&self) -> Option<Timestamp> {
        let Self::FreedBy { ways, .. } = self else { return None };
        ways.iter().find_map(|way| match way {
            Freeing::Expiry { at, .. } => Some(*at),
            _ => None,
        })
    }

    /// Returns the name of the fact, for programs.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Held { .. } => "held",
            Self::Purpose { .. } => "purpose",
            Self::Renewals { late: true, .. } => "renewal_late",
            Self::Renewals { times: 0, .. } => "not_renewed",
            Self::Renewals { .. } => "renewed",
            Self::Expired { .. } => "lease_expired",
            Self::ProcessExited { .. } => "process_exited",
            Self::Retained { .. } => "retained",
            Self::ReleaseRequested { .. } => "release_requested",
            Self::NotHeld { .. } => "not_held",
            Self::Ended { kind: EventKind::Released, .. } => "released",
            Self::Ended { kind: EventKind::Forced, .. } => "forced",
            Self::Ended { kind: EventKind::Stolen, .. } => "stolen",
            Self::Ended { .. } => "expired",
            Self::EndUnknown => "end_unknown",
            Self::NeverHeld => "never_held",
            Self::Waits { .. } => "waits",
            Self::NoWaiter => "no_waiter",
            Self::FreedBy { .. } => "freed_by",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::{Acquire, ForceRelease, LockOp, LockRequest, Release, Renew, RequestRelease, Slots, Ttl};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(1_730_817_105_000_000 + seconds * 1_000_000)
    }

    fn id(number: u128) -> LeaseId {
        LeaseId::from_uuid(Uuid::from_u128(number))
    }

    fn holder(name: &str) -> Holder {
        Holder::new(name).unwrap()
    }

    /// Lock with its history.
    struct Scene {
        record: LockRecord,
        events: Vec<Event>,
        dead: Vec<LeaseId>,
    }

    impl Scene {
        fn new() -> Self {
            let record = LockRecord::new(LockName::new("db").unwrap());
            Self { record, events: Vec::new(), dead: Vec::new() }
        }

        fn apply(&mut self, op: LockOp, second: u64) {
            let applied = self.record.apply(&op, at(second));
            self.events.splice(0..0, applied.events.into_iter().rev());
        }

        fn acquire(&mut self, number: u128, name: &str, mode: Mode, second: u64) {
            self.request(LockRequest { mode, ..LockRequest::new(id(number), holder(name), TTL) }, second);
        }

        fn request(&mut self, request: LockRequest, second: u64) {
            let queue = Some(Ttl::from_secs(60));
            let acquire = Acquire { request: Arc::new(request), queue, steal_after: None };
            self.apply(LockOp::Acquire(acquire), second);
        }

        fn token(&self) -> Token {
            self.record.holders[0].token
        }

        fn renew(&mut self, number: u128, second: u64) {
            let renew = Renew { lease_id: id(number), token: self.token(), ttl: None };
            self.apply(LockOp::Renew(renew), second);
        }

        fn around(&self, second: u64) -> LockSurroundings<'_> {
            LockSurroundings { now: at(second), dead: &self.dead, events: &self.events }
        }

        fn why(&self, second: u64) -> Vec<String> {
            let reasons = self.record.why(&self.around(second));
            reasons.iter().map(|reason| format!("{}: {}", reason.code(), reason.text(at(second)))).collect()
        }
    }

    const TTL: Ttl = Ttl::from_secs(30);

    #[test]
    fn a_lock_without_holder_says_why() {
        let mut scene = Scene::new();
        assert_eq!(
            scene.why(0),
            [
                "not_held: 'db' is not held.",
                "never_held: It was never held, or was forgotten since.",
                "no_waiter: No other caller waits for it."
            ]
        );
        scene.acquire(1, "ada", Mode::Exclusive, 0);
        let release = Release { lease_id: id(1), token: scene.token(), at_least: None };
        scene.apply(LockOp::Release(release), 2);
        assert_eq!(scene.why(12)[1], "released: ada released it at 2024-11-05T14:31:47Z (10s ago).");
        scene.acquire(2, "ada", Mode::Exclusive, 20);
        let force =
            ForceRelease { token: scene.token(), by: holder("root"), reason: Reason::new("stuck").unwrap() };
        scene.apply(LockOp::ForceRelease(force), 21);
        assert_eq!(
            scene.why(22)[1],
            "forced: root took it from ada by force at 2024-11-05T14:32:06Z (1s ago): stuck."
        );
        scene.events.clear();
        assert_eq!(scene.why(22)[1], "end_unknown: Its history no longer says how its last lease ended.");
    }

    #[test]
    fn a_holder_that_stops_to_renew_is_late() {
        let mut scene = Scene::new();
        scene.acquire(1, "ada", Mode::Exclusive, 0);
        assert_eq!(scene.record.why(&scene.around(20))[1].code(), "not_renewed");
        scene.renew(1, 10);
        scene.renew(1, 20);
        assert_eq!(scene.record.why(&scene.around(35))[1].code(), "renewed");
        assert_eq!(
            scene.why(44)[1],
            "renewal_late: It was renewed 2 times, last 24s ago, and is late: its holder may be dead or cut off. It \
             lasts until 2024-11-05T14:32:35Z (in 6s)."
        );
        assert_eq!(scene.why(50)[1], "lease_expired: Its lease expired at 2024-11-05T14:32:35Z (0ms ago).");
        assert_eq!(scene.why(50)[3], "freed_by: The next acquire, or a sweep, frees it.");
    }

    #[test]
    fn the_queue_is_explained_in_order() {
        let mut scene = Scene::new();
        scene.acquire(1, "ada", Mode::Shared, 0);
        scene.acquire(2, "bob", Mode::Shared, 0);
        scene.acquire(3, "eve", Mode::Exclusive, 5);
        scene.acquire(4, "fay", Mode::Shared, 7);
        let why = scene.why(10);
        assert_eq!(
            why[4..],
            [
                "waits: eve is next in the queue (exclusive, for 5s): it waits for ada and 1 other holder.",
                "waits: fay is number 2 in the queue (shared, for 3s): it waits for eve before it.",
                "freed_by: It becomes free when its 2 holders release it, at 2024-11-05T14:32:15Z (in 20s) unless \
                 renewed, or by force."
            ],
            "{why:#?}"
        );
        assert_eq!(
            scene.record.remedies(&scene.around(10)).len(),
            5,
            "wait, queue, ask, and a forced release for each holder"
        );
    }

    #[test]
    fn one_free_slot_lets_the_next_waiter_pass() {
        let mut scene = Scene::new();
        let slots = |number, name| LockRequest {
            slots: Slots::new(2).unwrap(),
            ..LockRequest::new(id(number), holder(name), TTL)
        };
        scene.request(slots(1, "ada"), 0);
        scene.request(slots(2, "bob"), 0);
        scene.request(slots(3, "eve"), 1);
        assert!(scene.why(2)[4].ends_with("it waits for ada and 1 other holder."), "{:#?}", scene.why(2));
        // The process of one holder has exited: the next operation removes its lease.
        scene.dead.push(id(1));
        let why = scene.why(2);
        assert_eq!(why[1], "process_exited: Its process has exited.");
        assert_eq!(
            why[4],
            "waits: eve is next in the queue (exclusive, in one of 2 slots, for 1s): the next operation grants it."
        );
    }

    #[test]
    fn a_request_and_a_retained_lease_are_explained() {
        let mut scene = Scene::new();
        scene.acquire(1, "ada", Mode::Exclusive, 0);
        let by = holder("bob");
        scene.apply(LockOp::RequestRelease(RequestRelease { token: None, by, reason: None }), 1);
        assert_eq!(
            scene.why(2)[2],
            "release_requested: bob asked it to stop 1s ago; it is notified at once if the store can, else at its \
             next renewal."
        );
        scene.renew(1, 3);
        assert!(scene.why(4)[2].ends_with("it was notified at its last renewal."));
        let release = Release { lease_id: id(1), token: scene.token(), at_least: Some(Ttl::from_secs(20)) };
        scene.apply(LockOp::Release(release), 5);
        scene.dead.push(id(1));
        let why = scene.why(6);
        assert_eq!(
            why[1],
            "retained: Its work is done; the lease only blocks other holders until 2024-11-05T14:32:05Z (in 14s)."
        );
        assert_eq!(
            why.last().unwrap(),
            "freed_by: It becomes free at 2024-11-05T14:32:05Z (in 14s), or by force."
        );
    }

    #[test]
    fn a_command_names_the_lock_as_a_shell_needs_it() {
        let name = LockName::new("it's mine").unwrap();
        assert_eq!(LockRemedy::Take.command("leasehold", &name), "leasehold run 'it'\\''s mine' -- COMMAND");
        let force = LockRemedy::Force { token: Token::default() };
        assert_eq!(
            force.command("leasehold", &LockName::new("a/b").unwrap()),
            "leasehold locks release a/b --force --token 0 --reason 'TEXT'"
        );
    }
}
