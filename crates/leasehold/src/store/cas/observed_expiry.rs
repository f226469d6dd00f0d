//! Expiry of leases without a common clock.
//!
//! A lease was written before a process first sees it, and its holder measures its duration from
//! before the write. So a process that has observed one and the same renewal for the lease's whole
//! duration, on its own clock, which only has to run at the right speed, knows that the lease has
//! expired, whatever any wall clock shows.
//!
//! The rules need one time for the whole record. It is the wall-clock time, adjusted to what is
//! certain: before the end of every lease that may still be held, and not before the end of every
//! lease that has expired.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use super::lock_doc::LockDoc;
use crate::model::{Lease, LeaseId, LeaseStatus, LockOp, Timestamp, Token};
use crate::store::BootInstant;
use crate::store::support::mutex::lock;

/// Observed renewals and tickets, and the time of their first observation.
#[derive(Debug, Clone, Default)]
pub struct LeaseObservations(Arc<Mutex<Observations>>);

/// Two generations of observations: entries that were not used for long are dropped, which only
/// delays the expiry of their leases.
#[derive(Debug, Default)]
struct Observations {
    young: HashMap<Observed, BootInstant>,
    old: HashMap<Observed, BootInstant>,
}

/// Observed entry of a lock's document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Observed {
    /// One grant or renewal of one lease.
    Lease { id: LeaseId, token: Token, renewal: u64 },
    /// One refresh of one ticket.
    Ticket { id: LeaseId, until: Timestamp },
}

/// Maximum number of observations per generation.
const MAX_OBSERVATIONS: usize = 32 * 1024;

impl LeaseObservations {
    /// Returns the observations of this process, shared by all its stores.
    pub fn of_this_process() -> Self {
        static OBSERVED: LazyLock<LeaseObservations> = LazyLock::new(LeaseObservations::default);
        OBSERVED.clone()
    }

    /// Records the leases and tickets of this document as seen at `at`, which must not be before the
    /// document arrived.
    pub(super) fn observe(&self, doc: &LockDoc, at: BootInstant) {
        let mut observations = lock(&self.0);
        for lease in &doc.record.holders {
            observations.first_seen(Observed::lease(doc, lease.request.lease_id, lease.token), at);
        }
        for ticket in &doc.record.waiters {
            observations
                .first_seen(Observed::Ticket { id: ticket.request.lease_id, until: ticket.expires_at }, at);
        }
    }

    /// Returns the time at which to apply `op` to this document; `at` is the current instant.
    pub(super) fn now_for(
        &self,
        doc: &LockDoc,
        op: Option<&LockOp>,
        about: Timestamp,
        past: Option<Timestamp>,
        at: BootInstant,
    ) -> Timestamp {
        let mut observations = lock(&self.0);
        let is_past = |time: Timestamp| past.is_some_and(|past| time <= past);
        let steal_after = match op {
            Some(LockOp::Acquire(acquire)) => acquire.steal_after,
            _ => None,
        };
        let (mut now, mut leases, mut tickets) = (about, TimeBounds::default(), TimeBounds::default());
        for lease in &doc.record.holders {
            let seen = at.after(
                observations.first_seen(Observed::lease(doc, lease.request.lease_id, lease.token), at),
            );
            // The lease was written before now, so the current time is later than its date: time does
            // not go back within a record.
            now = now.max(next(lease.renewed_at));
            let duration = lease.expires_at.since(lease.renewed_at);
            let has_expired = has_lasted(seen, duration) || is_past(lease.expires_at);
            leases.add(lease.expires_at, has_expired);
            if let Some(after) = steal_after.filter(|_| !has_expired && lease.status != LeaseStatus::Released)
            {
                let stale_at = lease.renewed_at.plus(after);
                leases.add(stale_at, has_lasted(seen, after.as_duration()) || is_past(stale_at));
            }
        }
        for ticket in &doc.record.waiters {
            // A clock difference of a second must not let a new waiter overtake earlier ones.
            now = now.max(ticket.since);
            let observed = Observed::Ticket { id: ticket.request.lease_id, until: ticket.expires_at };
            let seen = at.after(observations.first_seen(observed, at));
            let has_expired = has_lasted(seen, ticket.ticket_ttl.as_duration()) || is_past(ticket.expires_at);
            tickets.add(ticket.expires_at, has_expired);
        }
        // A ticket is only a position in the queue: leases are applied last and so decide. Among the
        // bounds of leases, the safe one is applied last: if not every expired lease can end without
        // ending one that has not expired, the expired one must wait.
        leases.clamp(tickets.clamp(now))
    }

    /// Returns the time, on the clock of `about`, at which this process will regard a lease as ended
    /// that it does not regard as ended yet, if nothing changes: when it has observed the lease for
    /// its whole duration, or when the date is past the lease's end by the margin.
    pub(super) fn known_expiry(
        &self,
        doc: &LockDoc,
        lease: &Lease,
        about: Timestamp,
        past: Option<Timestamp>,
        at: BootInstant,
    ) -> Timestamp {
        let mut observations = lock(&self.0);
        let seen =
            at.after(observations.first_seen(Observed::lease(doc, lease.request.lease_id, lease.token), at));
        let duration = lease.expires_at.since(lease.renewed_at);
        let left = (duration + duration / 1000).saturating_sub(seen);
        let watched = later(about, left);
        let dated = past.map(|past| later(lease.expires_at, about.since(past)));
        dated.map_or(watched, |dated| dated.min(watched)).max(lease.expires_at)
    }
}

impl Observations {
    /// Returns the first observation of this entry; `at` if the entry is new.
    fn first_seen(&mut self, observed: Observed, at: BootInstant) -> BootInstant {
        if let Some(since) = self.young.get(&observed) {
            return *since;
        }
        if self.young.len() >= MAX_OBSERVATIONS {
            self.old = std::mem::take(&mut self.young);
        }
        let since = self.old.remove(&observed).unwrap_or(at);
        self.young.insert(observed, since);
        since
    }
}

impl Observed {
    fn lease(doc: &LockDoc, id: LeaseId, token: Token) -> Self {
        Self::Lease { id, token, renewal: doc.renewal(token) }
    }
}

/// Whether `seen` is at least `duration`. Clocks differ in speed by far less than a thousandth.
fn has_lasted(seen: Duration, duration: Duration) -> bool {
    seen >= duration + duration / 1000
}

#[derive(Default)]
struct TimeBounds {
    /// Earliest allowed time.
    not_before: Option<Timestamp>,
    /// Time that must not be reached.
    before: Option<Timestamp>,
}

impl TimeBounds {
    fn add(&mut self, end: Timestamp, has_expired: bool) {
        if has_expired {
            self.not_before = self.not_before.max(Some(end));
        } else {
            self.before = Some(self.before.map_or(end, |before| before.min(end)));
        }
    }

    fn clamp(&self, now: Timestamp) -> Timestamp {
        let now = self.not_before.map_or(now, |not_before| now.max(not_before));
        self.before.map_or(now, |before| now.min(previous(before)))
    }
}

fn later(time: Timestamp, by: Duration) -> Timestamp {
    let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(time.as_micros().saturating_add(by))
}

fn next(time: Timestamp) -> Timestamp {
    Timestamp::from_micros(time.as_micros().saturating_add(1))
}

fn previous(time: Timestamp) -> Timestamp {
    time.minus(Duration::from_micros(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::model::{
        Acquire, Holder, LockName, LockRequest, Metadata, Mode, Outcome, Priority, Renew, Slots, Ttl,
    };

    const TTL: Ttl = Ttl::from_secs(10);

    fn acquire(number: u128) -> LockOp {
        let request = LockRequest {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(number)),
            holder: Holder::new("holder").unwrap(),
            mode: Mode::Shared,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: TTL,
            metadata: Metadata::default(),
            process: None,
        };
        LockOp::Acquire(Acquire { request: Arc::new(request), queue: None, steal_after: None })
    }

    fn time(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn instant(seconds: u64) -> BootInstant {
        BootInstant::from_micros(seconds * 1_000_000)
    }

    fn held_since(at: Timestamp) -> LockDoc {
        let mut doc = LockDoc::new(&LockName::new("lock").unwrap());
        doc.apply(&acquire(1), at);
        doc
    }

    #[test]
    fn a_lease_expires_after_it_was_seen_for_its_whole_duration_and_not_before() {
        let (observations, doc) = (LeaseObservations::default(), held_since(time(1000)));
        observations.observe(&doc, instant(50));
        let now = |about, at| observations.now_for(&doc, None, time(about), None, at);
        // Independent of the wall clocks.
        assert!(now(9_999, instant(51)) < time(1010));
        assert!(now(1, instant(59)) < time(1010));
        assert!(now(9_999, instant(60)) < time(1010), "clocks may differ in speed");
        assert!(now(1, instant(61)) >= time(1010));
        assert_eq!(now(1005, instant(51)), time(1005), "the wall clock is used where it does no harm");
    }

    #[test]
    fn a_renewal_restarts_the_observation_even_with_the_same_times() {
        let (observations, mut doc) = (LeaseObservations::default(), held_since(time(1000)));
        observations.observe(&doc, instant(50));
        doc.apply(&acquire(1), time(1000)); // By a clock that stands still.
        assert!(observations.now_for(&doc, None, time(9_999), None, instant(61)) < time(1010));
        let token = doc.record.token;
        let renew =
            LockOp::Renew(Renew { lease_id: LeaseId::from_uuid(Uuid::from_u128(1)), token, ttl: None });
        assert!(matches!(doc.apply(&renew, time(1000)).outcome, Outcome::Renewed(_)));
        assert!(observations.now_for(&doc, None, time(9_999), None, instant(71)) < time(1010));
        assert!(observations.now_for(&doc, None, time(9_999), None, instant(82)) >= time(1010));
    }

    #[test]
    fn a_renewal_of_another_lease_does_not_restart_the_observation() {
        let (observations, mut doc) = (LeaseObservations::default(), held_since(time(1000)));
        observations.observe(&doc, instant(50));
        doc.apply(&acquire(2), time(1005));
        let now = observations.now_for(&doc, None, time(1006), None, instant(61));
        assert!(time(1010) <= now && now < time(1015), "{now:#}");
    }

    #[test]
    fn an_expired_lease_is_kept_if_ending_it_would_end_one_that_has_not_expired() {
        let (observations, mut doc) = (LeaseObservations::default(), held_since(time(5000)));
        observations.observe(&doc, instant(50));
        doc.apply(&acquire(2), time(1000)); // An hour behind.
        let now = observations.now_for(&doc, None, time(9_999), None, instant(61));
        assert!(now < time(1010), "{now:#}");
    }

    #[test]
    fn an_end_before_the_lower_bound_needs_no_observation() {
        let (observations, doc) = (LeaseObservations::default(), held_since(time(1000)));
        let now = |past| observations.now_for(&doc, None, time(1020), Some(time(past)), instant(50));
        assert!(now(1009) < time(1010));
        assert!(now(1010) >= time(1010));
    }

    #[test]
    fn the_number_of_observations_is_bounded_and_dropping_them_is_safe() {
        let (observations, doc) = (LeaseObservations::default(), held_since(time(1000)));
        observations.observe(&doc, instant(50));
        let mut inner = observations.0.lock().unwrap();
        for number in 0..3 * MAX_OBSERVATIONS as u64 {
            let id = LeaseId::from_uuid(Uuid::from_u128(u128::from(number) + 10));
            inner.first_seen(Observed::Ticket { id, until: time(number) }, instant(55));
        }
        assert!(inner.young.len() + inner.old.len() <= 2 * MAX_OBSERVATIONS);
        drop(inner);
        assert!(observations.now_for(&doc, None, time(9_999), None, instant(70)) < time(1010));
    }
}
