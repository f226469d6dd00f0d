//! Rules of a lock in one function, [`LockRecord::apply`]. Every engine obeys it, and it is
//! model-checked.

use std::sync::Arc;

use crate::{
    Acquire, Applied, Event, EventKind, ForceRelease, Lease, LeaseId, LeaseStatus, LockOp, LockRecord,
    LockRequest, MAX_WAITERS, NotHeld, Outcome, Queued, Reason, Release, Renew, RequestRelease, StopRequest,
    Swept, Ticket, Timestamp, TookOver, Ttl,
};

impl LockRecord {
    /// Applies one operation at the engine's time `now` and returns the outcome.
    ///
    /// Leases and tickets that have expired by `now` are removed first, and the freed capacity is
    /// granted to the queue. Every rule below therefore sees only live leases and live tickets, and
    /// a lock never stays with a holder whose lease has expired.
    pub fn apply(&mut self, op: &LockOp, now: Timestamp) -> Applied {
        let mut step = Step::new(self, now);
        step.expire_and_grant(op);
        let outcome = match op {
            LockOp::Acquire(acquire) => step.acquire(acquire),
            LockOp::Renew(renew) => step.renew(renew),
            LockOp::RenewLogged(renew) => step.renew_logged(renew),
            LockOp::Release(release) => step.release(release),
            LockOp::Withdraw(withdraw) => step.withdraw(&withdraw.lease_id),
            LockOp::RequestRelease(request) => step.request_release(request),
            LockOp::ForceRelease(force) => step.force_release(force),
            LockOp::Sweep(_) | LockOp::Restarted(_) => Outcome::Swept(step.swept),
        };
        step.finish(outcome)
    }
}

struct Step<'a> {
    record: &'a mut LockRecord,
    now: Timestamp,
    events: Vec<Event>,
    handed_over: Vec<Lease>,
    swept: Swept,
    /// First lease that this step ended without a release while its holder was, as far as is known, working.
    took_over: Option<Box<TookOver>>,
    changed: bool,
}

impl<'a> Step<'a> {
    fn new(record: &'a mut LockRecord, now: Timestamp) -> Self {
        let (events, handed_over) = (Vec::new(), Vec::new());
        let (swept, took_over) = (Swept::default(), None);
        Self { record, now, events, handed_over, swept, took_over, changed: false }
    }

    fn finish(self, outcome: Outcome) -> Applied {
        if self.changed {
            self.record.version = self.record.version.saturating_add(1);
        }
        let Self { events, handed_over, changed, .. } = self;
        Applied { outcome, events, handed_over, changed }
    }

    // --- expiry ---

    /// Ends every lease and ticket that has expired by now, and grants the lock to the queue.
    fn expire_and_grant(&mut self, op: &LockOp) {
        if let LockOp::Restarted(restarted) = op {
            self.rebase_times();
            self.expire_dead(|request| {
                request.process.as_ref().is_some_and(|process| process.boot == restarted.boot)
            });
        }
        if let LockOp::Sweep(sweep) = op
            && !sweep.dead.is_empty()
        {
            self.expire_dead(|request| sweep.dead.contains(&request.lease_id));
        }
        let now = self.now;
        self.end_leases(EventKind::Expired, None, |lease| lease.expires_at <= now);
        self.end_tickets(|ticket| ticket.expires_at <= now);
        if let LockOp::Acquire(Acquire { request, steal_after: Some(after), .. }) = op {
            self.steal(request, *after);
        }
        self.grant_waiters();
    }

    /// Expires leases and tickets whose process died. Leases retained for `at_least` are not tied
    /// to a process.
    fn expire_dead(&mut self, is_dead: impl Fn(&LockRequest) -> bool) {
        let reason = Reason::new("its process is dead").ok();
        let first = self.events.len();
        self.end_leases(EventKind::Expired, None, |lease| {
            lease.status != LeaseStatus::Released && is_dead(&lease.request)
        });
        self.end_tickets(|ticket| is_dead(&ticket.request));
        for event in &mut self.events[first..] {
            event.reason.clone_from(&reason);
        }
    }

    /// Ends stale leases that conflict with `request`, the stalest first, until there is capacity for it.
    fn steal(&mut self, request: &Arc<LockRequest>, after: Ttl) {
        while self.active_lease(&request.lease_id).is_none() && !self.record.has_capacity_for(request) {
            let stale = |lease: &&Lease| {
                lease.status != LeaseStatus::Released && lease.renewed_at.plus(after) <= self.now
            };
            let Some(stalest) = self.record.holders.iter().filter(stale).min_by_key(|lease| lease.renewed_at)
            else {
                return;
            };
            let token = stalest.token;
            self.end_leases(EventKind::Stolen, Some(request), |lease| lease.token == token);
        }
    }

    /// Rebases the times of the record after a restart, when the clock may have jumped in either
    /// direction. Every surviving lease and ticket receives its full lifetime from now, which is
    /// later than its last renewal; but a lease that is only retained for `at_least` keeps its end: it is not
    /// renewed, and restarts must not retain it for ever. No time in the record that belongs to the past
    /// may lie in the future.
    fn rebase_times(&mut self) {
        let (now, record) = (self.now, &mut *self.record);
        let renewals = record.holders.iter().map(|lease| lease.renewed_at);
        let last_renewal = renewals.chain(record.waiters.iter().map(|ticket| ticket.since)).max();
        let back = last_renewal.map(|renewal| renewal.since(now)).unwrap_or_default();
        for lease in &mut record.holders {
            lease.acquired_at = lease.acquired_at.minus(back);
            if lease.status == LeaseStatus::Released {
                lease.renewed_at = lease.renewed_at.minus(back);
                lease.expires_at = lease.expires_at.minus(back);
            } else {
                let whole = Ttl::new(lease.expires_at.since(lease.renewed_at)).unwrap_or(lease.request.ttl);
                lease.renewed_at = now;
                lease.expires_at = now.plus(whole);
            }
            self.changed = true;
        }
        for ticket in &mut record.waiters {
            ticket.since = ticket.since.minus(back);
            ticket.expires_at = now.plus(ticket.ticket_ttl);
            self.changed = true;
        }
    }

    fn end_leases(&mut self, kind: EventKind, by: Option<&Arc<LockRequest>>, ends: impl Fn(&Lease) -> bool) {
        let ended: Vec<Lease> = self.record.holders.extract_if(.., |lease| ends(lease)).collect();
        for lease in ended {
            if self.took_over.is_none() && lease.status != LeaseStatus::Released {
                self.took_over = Some(Box::new(TookOver::of(&lease)));
            }
            let by = by.map(|request| request.holder.clone());
            self.record_event(Event { by, ..self.event(kind, &lease) });
            self.swept.leases += 1;
        }
    }

    fn end_tickets(&mut self, ends: impl Fn(&Ticket) -> bool) {
        let ended: Vec<Ticket> = self.record.waiters.extract_if(.., |ticket| ends(ticket)).collect();
        for ticket in ended {
            self.record_event(self.ticket_event(EventKind::Withdrawn, &ticket));
            self.swept.tickets += 1;
        }
    }

    /// Grants the lock to the first ticket, and to the next ones while there is capacity. Strictly
    /// in order: a ticket that does not fit is never overtaken by one behind it.
    fn grant_waiters(&mut self) {
        while let Some(next) = self.record.waiters.first()
            && self.record.has_capacity_for(&next.request)
        {
            let ticket = self.record.waiters.remove(0);
            // Not the full TTL: if this waiter has died, the waiters behind it wait no longer than
            // its ticket lasts.
            let lasts = ticket.ticket_ttl.min(ticket.request.ttl);
            let lease = self.grant(&ticket.request, lasts, ticket.since);
            self.handed_over.push(lease);
            self.swept.granted += 1;
        }
    }

    // --- operations ---

    fn acquire(&mut self, acquire: &Acquire) -> Outcome {
        let (request, now) = (&acquire.request, self.now);
        if let Some(lease) = self.active_lease(&request.lease_id) {
            lease.renewed_at = now;
            lease.expires_at = now.plus(lease.request.ttl);
            let lease = lease.clone();
            self.changed = true;
            return self.granted(lease);
        }
        let ticket =
            self.record.waiters.iter().position(|ticket| ticket.request.lease_id == request.lease_id);
        match (ticket, acquire.queue) {
            (Some(ahead), Some(ticket_ttl)) => {
                let ticket = &mut self.record.waiters[ahead];
                ticket.ticket_ttl = ticket_ttl;
                ticket.expires_at = self.now.plus(ticket_ttl);
                self.changed = true;
                self.queued(ahead)
            }
            (Some(_), None) => {
                self.end_tickets(|ticket| ticket.request.lease_id == request.lease_id);
                self.grant_waiters();
                Outcome::Conflict(self.record.conflict(self.now))
            }
            (None, queue) => self.acquire_first(request, queue),
        }
    }

    fn acquire_first(&mut self, request: &Arc<LockRequest>, queue: Option<Ttl>) -> Outcome {
        let ahead = self.record.insertion_index(request, self.now);
        if ahead == 0 && self.record.has_capacity_for(request) {
            let lease = self.grant(request, request.ttl, self.now);
            return self.granted(lease);
        }
        let full = self.record.waiters.len() >= MAX_WAITERS;
        match queue {
            Some(ticket_ttl) if !full => {
                let expires_at = self.now.plus(ticket_ttl);
                let ticket = Ticket { request: request.clone(), since: self.now, expires_at, ticket_ttl };
                self.record_event(self.ticket_event(EventKind::Queued, &ticket));
                self.record.waiters.insert(ahead, ticket);
                self.queued(ahead)
            }
            _ => Outcome::Conflict(crate::Conflict { full, ..self.record.conflict(self.now) }),
        }
    }

    fn renew(&mut self, renew: &Renew) -> Outcome {
        let now = self.now;
        match self.active_lease(&renew.lease_id) {
            Some(lease) if lease.token == renew.token => {
                if let Some(ttl) = renew.ttl {
                    Arc::make_mut(&mut lease.request).ttl = ttl;
                }
                lease.renewed_at = now;
                lease.expires_at = now.plus(lease.request.ttl);
                lease.renewals = lease.renewals.saturating_add(1);
                let lease = lease.clone();
                self.changed = true;
                Outcome::Renewed(lease)
            }
            _ => self.not_held(),
        }
    }

    fn renew_logged(&mut self, renew: &Renew) -> Outcome {
        let outcome = self.renew(renew);
        if let Outcome::Renewed(lease) = &outcome {
            self.record_event(self.event(EventKind::Renewed, lease));
        }
        outcome
    }

    fn release(&mut self, release: &Release) -> Outcome {
        let found =
            |lease: &&Lease| lease.request.lease_id == release.lease_id && lease.token == release.token;
        let Some(lease) = self.record.holders.iter().find(found).cloned() else {
            return self.not_held();
        };
        if lease.status == LeaseStatus::Released {
            return Outcome::Released(lease); // Repeated after a lost response.
        }
        match release.at_least.map(|at_least| lease.acquired_at.plus(at_least)) {
            Some(until) if self.now < until => Outcome::Released(self.retain_until(&lease, until)),
            _ => {
                self.remove(&lease, |event| event.kind = EventKind::Released);
                Outcome::Released(lease)
            }
        }
    }

    /// Retains the lock until `until` although the holder has finished; no process is attached to the lease.
    fn retain_until(&mut self, done: &Lease, until: Timestamp) -> Lease {
        let mut request = LockRequest::clone(&done.request);
        request.process = None;
        let (renewed_at, status) = (self.now, LeaseStatus::Released);
        let kept =
            Lease { request: Arc::new(request), renewed_at, expires_at: until, status, ..done.clone() };
        self.record_event(Event { until: Some(until), ..self.event(EventKind::Released, done) });
        for lease in &mut self.record.holders {
            if lease.token == kept.token {
                lease.clone_from(&kept);
            }
        }
        kept
    }

    fn withdraw(&mut self, id: &LeaseId) -> Outcome {
        self.end_tickets(|ticket| ticket.request.lease_id == *id);
        if let Some(lease) = self.active_lease(id).cloned() {
            self.remove(&lease, |event| event.kind = EventKind::Released);
        }
        self.grant_waiters();
        Outcome::Withdrawn
    }

    fn request_release(&mut self, request: &RequestRelease) -> Outcome {
        let mut requested = Vec::new();
        for lease in &mut self.record.holders {
            let meant = request.token.is_none_or(|token| token == lease.token);
            if meant && lease.status != LeaseStatus::Released {
                lease.status = LeaseStatus::Releasing;
                lease.release_request = Some(StopRequest {
                    by: request.by.clone(),
                    reason: request.reason.clone(),
                    at: self.now,
                });
                requested.push(lease.clone());
            }
        }
        for lease in &requested {
            let (by, reason) = (Some(request.by.clone()), request.reason.clone());
            self.record_event(Event { by, reason, ..self.event(EventKind::ReleaseRequested, lease) });
        }
        match u32::try_from(requested.len()) {
            Ok(0) | Err(_) => self.not_held(),
            Ok(count) => Outcome::ReleaseRequested(count),
        }
    }

    fn force_release(&mut self, force: &ForceRelease) -> Outcome {
        let Some(lease) = self.record.holders.iter().find(|lease| lease.token == force.token).cloned() else {
            return self.not_held();
        };
        // The holder may still be working: from here on its token is stale, also for `fence check`.
        self.record.token = self.record.token.next(self.now);
        self.remove(&lease, |event| {
            event.kind = EventKind::Forced;
            event.by = Some(force.by.clone());
            event.reason = Some(force.reason.clone());
        });
        Outcome::Forced(lease)
    }

    // --- shared helpers ---

    /// Returns the lease of this request unless it has been released.
    fn active_lease(&mut self, id: &LeaseId) -> Option<&mut Lease> {
        let working =
            |lease: &&mut Lease| lease.request.lease_id == *id && lease.status != LeaseStatus::Released;
        self.record.holders.iter_mut().find(working)
    }

    /// Returns the response that grants a lease. A lease that began in this step names the lease
    /// that it replaces.
    fn granted(&mut self, lease: Lease) -> Outcome {
        let took_over = if lease.acquired_at == self.now { self.took_over.take() } else { None };
        Outcome::Granted(Lease { took_over, ..lease })
    }

    fn grant(&mut self, request: &Arc<LockRequest>, lasts: Ttl, since: Timestamp) -> Lease {
        self.record.token = self.record.token.next(self.now);
        let lease = Lease {
            request: request.clone(),
            token: self.record.token,
            acquired_at: self.now,
            renewed_at: self.now,
            expires_at: self.now.plus(lasts),
            renewals: 0,
            status: LeaseStatus::Active,
            release_request: None,
            took_over: None,
        };
        let waited = micros(self.now.since(since));
        self.record_event(Event { after_micros: waited, ..self.event(EventKind::Acquired, &lease) });
        self.record.holders.push(lease.clone());
        lease
    }

    fn remove(&mut self, lease: &Lease, describe: impl FnOnce(&mut Event)) {
        self.record.holders.retain(|other| other.token != lease.token);
        let mut event = self.event(EventKind::Released, lease);
        describe(&mut event);
        self.record_event(event);
        self.grant_waiters();
    }

    fn queued(&self, ahead: usize) -> Outcome {
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        let conflict = crate::Conflict { now: None, ..self.record.conflict(self.now) };
        Outcome::Queued(Queued { ahead, conflict })
    }

    fn not_held(&self) -> Outcome {
        Outcome::NotHeld(NotHeld { token: self.record.token, holders: self.record.held_by(self.now) })
    }

    fn record_event(&mut self, event: Event) {
        self.changed = true;
        self.events.push(event);
    }

    fn event(&self, kind: EventKind, lease: &Lease) -> Event {
        let event = self.event_of(kind, &lease.request, lease.acquired_at);
        Event { token: lease.token, renewals: lease.renewals, ..event }
    }

    fn ticket_event(&self, kind: EventKind, ticket: &Ticket) -> Event {
        self.event_of(kind, &ticket.request, ticket.since)
    }

    fn event_of(&self, kind: EventKind, request: &LockRequest, since: Timestamp) -> Event {
        Event {
            at: self.now,
            lock: self.record.name.clone(),
            kind,
            token: self.record.token,
            lease_id: request.lease_id,
            holder: request.holder.clone(),
            mode: request.mode,
            slots: request.slots,
            after_micros: micros(self.now.since(since)),
            renewals: 0,
            until: None,
            by: None,
            reason: None,
        }
    }
}

fn micros(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BootId, Holder, LockName, Restarted};
    use uuid::Uuid;

    fn acquire(number: u128, queue: Option<Ttl>) -> LockOp {
        let lease_id = LeaseId::from_uuid(Uuid::from_u128(number));
        let request = LockRequest::new(lease_id, Holder::new("ada").unwrap(), Ttl::from_secs(60));
        LockOp::Acquire(Acquire { request: Arc::new(request), queue, steal_after: None })
    }

    /// After a restart the clock may be far behind; the stored times have to move with it.
    #[test]
    fn a_clock_that_went_back_puts_nothing_into_the_future() {
        let (late, early) = (Timestamp::from_micros(9_000_000_000), Timestamp::from_micros(5_000_000));
        let mut record = LockRecord::new(LockName::new("lock").unwrap());
        let outcome = record.apply(&acquire(1, None), late).outcome;
        let Outcome::Granted(lease) = outcome else { panic!("{outcome:?}") };
        record.apply(&acquire(2, Some(Ttl::from_secs(5))), late.plus(Ttl::from_secs(1)));
        record.apply(&LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) }), early);
        // The new request is queued behind the waiter, and the lease is not retained longer than `at_least`.
        let outcome = record.apply(&acquire(3, Some(Ttl::from_secs(5))), early).outcome;
        assert!(matches!(outcome, Outcome::Queued(Queued { ahead: 1, .. })), "{outcome:?}");
        let (lease_id, at_least) = (lease.request.lease_id, Some(Ttl::from_secs(2)));
        record.apply(&LockOp::Release(Release { lease_id, token: lease.token, at_least }), early);
        assert!(record.holders[0].expires_at <= early.plus(Ttl::from_secs(2)), "{record:?}");
    }

    /// A machine may restart more often than a lock is retained for.
    #[test]
    fn a_restart_does_not_retain_a_released_lock_for_longer() {
        let start = Timestamp::from_micros(9_000_000_000);
        let after = |seconds| start.plus(Ttl::from_secs(seconds));
        let mut released = LockRecord::new(LockName::new("lock").unwrap());
        let outcome = released.apply(&acquire(1, None), start).outcome;
        let Outcome::Granted(lease) = outcome else { panic!("{outcome:?}") };
        let (lease_id, at_least) = (lease.request.lease_id, Some(Ttl::from_secs(20)));
        released.apply(&LockOp::Release(Release { lease_id, token: lease.token, at_least }), after(1));
        let restarted = LockOp::Restarted(Restarted { boot: BootId(Uuid::from_u128(7)) });
        let mut record = released.clone();
        for now in [after(10), after(19)] {
            record.apply(&restarted, now);
            assert_eq!(record.holders[0].expires_at, after(20));
        }
        record.apply(&restarted, after(20));
        assert!(record.holders.is_empty());
        // The clock went back: 19 of the 20 seconds are left.
        let early = Timestamp::from_micros(5_000_000);
        for _ in 0..2 {
            released.apply(&restarted, early);
            assert_eq!(released.holders[0].expires_at, early.plus(Ttl::from_secs(19)));
        }
    }
}
