//! Explanation of a lock: who holds it, who waits for it, what would free it, and why it is free.

use crate::{
    Event, EventKind, Holder, Lease, LeaseId, LeaseRef, LeaseStatus, LockName, LockRecord, Mode, Reason,
    StopRequest, Ticket, Timestamp, Token,
};

/// Data that the record of a lock does not contain, for [`LockRecord::why`].
#[derive(Debug, Clone, Copy)]
pub struct LockSurroundings<'a> {
    /// Time of the store.
    pub now: Timestamp,
    /// Leases whose process has exited, as far as the engine can know it.
    pub dead: &'a [LeaseId],
    /// Newest events of the lock, the newest first. They matter only if no lease is in the record.
    pub events: &'a [Event],
}

/// Reason of the state of a lock: one statement of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockReason {
    /// A lease is in the record. The reasons after this one, up to the next `Held`, are about this lease.
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
    /// A caller has requested the release of the lease.
    ReleaseRequested {
        /// The request.
        request: StopRequest,
        /// Whether the holder has renewed since: the answer to a renewal contains the request.
        notified: bool,
    },
    /// No lease is in the record. The next reason explains it.
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
    /// The lock was held, and its history no longer contains the end of the last lease.
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
        behind: WaitCause,
    },
    /// No caller waits for the lock.
    NoWaiter,
    /// What frees the lock.
    FreedBy {
        /// Number of live leases.
        holders: usize,
        /// Ways, the most usual first.
        ways: Vec<ReleaseCause>,
    },
}

/// What a waiter waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitCause {
    /// The leases that leave no capacity for the request.
    Holders {
        /// Holder of the oldest of them.
        first: Holder,
        /// Number of others.
        more: usize,
    },
    /// The waiter before it: tickets are granted in order.
    Waiter(Holder),
    /// Nothing: the next operation on the lock grants it.
    Nothing,
}

/// Way in which a held lock becomes free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReleaseCause {
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
    /// Returns the reasons of the state of the lock, the most important first: the leases, or
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
        } else if lease.status == LeaseStatus::Released {
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
                Some(before) => WaitCause::Waiter(before.request.holder.clone()),
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
    fn behind_holders(&self, ticket: &Ticket, around: &LockSurroundings<'_>) -> WaitCause {
        let mut live = self.clone();
        live.holders.retain(|lease| !is_over(lease, around));
        match live.holders.as_slice() {
            [first, rest @ ..] if !live.has_capacity_for(&ticket.request) => {
                WaitCause::Holders { first: first.request.holder.clone(), more: rest.len() }
            }
            _ => WaitCause::Nothing,
        }
    }

    fn freed_by(&self, around: &LockSurroundings<'_>) -> Option<LockReason> {
        let live: Vec<_> = self.holders.iter().filter(|lease| !is_over(lease, around)).collect();
        let holders = live.len();
        let Some(at) = live.iter().map(|lease| lease.expires_at).max() else {
            let ways = vec![ReleaseCause::NextOperation];
            return (!self.holders.is_empty()).then_some(LockReason::FreedBy { holders, ways });
        };
        let renewable = live.iter().any(|lease| lease.status != LeaseStatus::Released);
        let mut ways = Vec::new();
        if renewable {
            ways.push(ReleaseCause::Release);
        }
        if !at.is_endless() {
            ways.push(ReleaseCause::Expiry { at, renewable });
        }
        ways.push(ReleaseCause::Force);
        Some(LockReason::FreedBy { holders, ways })
    }

    /// Returns the commands that help with the lock in its state, the least disruptive first.
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
        if live.iter().any(|lease| lease.status == LeaseStatus::Active) {
            remedies.push(LockRemedy::RequestRelease);
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
    /// Request that the holders release it.
    RequestRelease,
    /// Take it from the holder with this token by force.
    Force {
        /// Token of the lease.
        token: Token,
    },
}

/// Whether the next operation on the lock removes the lease. A retained lease needs no process.
fn is_over(lease: &Lease, around: &LockSurroundings<'_>) -> bool {
    let dead = lease.status != LeaseStatus::Released && around.dead.contains(&lease.request.lease_id);
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

impl WaitCause {
    /// Returns the holder or the waiter that is waited for; of several holders, the oldest.
    pub fn first(&self) -> Option<&Holder> {
        match self {
            Self::Holders { first: holder, .. } | Self::Waiter(holder) => Some(holder),
            Self::Nothing => None,
        }
    }
}

impl LockReason {
    /// Returns the time at which the lock becomes free unless a lease is renewed, if this reason states it.
    pub fn frees_at(&self) -> Option<Timestamp> {
        let Self::FreedBy { ways, .. } = self else { return None };
        ways.iter().find_map(|way| match way {
            ReleaseCause::Expiry { at, .. } => Some(*at),
            _ => None,
        })
    }

    /// Returns the code of the reason, for programs.
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
mod tests;
