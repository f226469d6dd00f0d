//! How a lock is asked for.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Plan, acquire_all};
use super::guard::Guard;
use super::leasehold::Inner;
use super::strategy::Strategy;
use crate::error::{Error, Result};
use crate::model::{
    Conflict, Holder, Invalid, LeaseId, LockName, Metadata, Mode, Priority, Process, Slots, Ttl,
};
use crate::store::{self, Hosts};

/// Asks for one lock, or for several at once. What is wrong with a value is told by [`acquire`](Self::acquire).
#[must_use = "nothing is asked for until acquire() is awaited"]
pub struct LockBuilder {
    inner: Arc<Inner>,
    names: Vec<LockName>,
    plan: Plan,
    wrong: Option<Error>,
}

/// How much of the ttl may pass before a renewal.
const RENEW_AT: f64 = 1.0 / 3.0;

impl LockBuilder {
    pub(super) fn new<N>(inner: Arc<Inner>, name: N) -> Self
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        // Only an engine of this very machine can see whether our process lives.
        let abilities = inner.store.abilities();
        let local = abilities.hosts == Hosts::OneMachine;
        let plan = Plan {
            ttl: abilities.ttl,
            strategy: Strategy::default(),
            steal_after: None,
            mode: Mode::default(),
            slots: Slots::default(),
            priority: Priority::default(),
            holder: None,
            metadata: Metadata::default(),
            process: if local { store::this_process() } else { None },
            renew_at: RENEW_AT,
            max_hold: None,
            lease_id: None,
            keep_place: false,
            on_wait: None,
        };
        Self { inner, names: Vec::new(), plan, wrong: None }.and(name)
    }

    /// Asks for another lock too. Several are taken in the order of their names, all or none. Each is renewed from its
    /// grant on; if one is lost while a later one is waited for, all are given back and asked for again.
    pub fn and<N>(mut self, name: N) -> Self
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        match name.try_into() {
            Ok(name) if self.names.contains(&name) => {
                self.note(Invalid(format!("lock '{name}' is named twice")))
            }
            Ok(name) => {
                self.names.push(name);
                self
            }
            Err(error) => self.note(error),
        }
    }

    /// How long the lease lasts without a renewal; 30 s on most stores if not said. A crash costs others this long at most.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        match Ttl::new(ttl) {
            Ok(ttl) => self.plan.ttl = ttl,
            Err(error) => return self.note(error),
        }
        self
    }

    /// What to do while somebody else has it; give up at once if not said.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.plan.strategy = strategy;
        self
    }

    /// Stands in the fair queue for so long at most; where the store has none, asks again and again.
    pub fn wait(self, patience: Duration) -> Self {
        self.strategy(Strategy::Wait(Some(patience)))
    }

    /// Also takes a lease that has not been renewed for so long, although its ttl still runs.
    pub fn steal_stale(mut self, after: Duration) -> Self {
        match Ttl::new(after) {
            Ok(after) => self.plan.steal_after = Some(after),
            Err(error) => return self.note(error),
        }
        self
    }

    /// Together with other shared holders.
    pub fn shared(mut self) -> Self {
        self.plan.mode = Mode::Shared;
        self
    }

    /// One of at most `slots` holders.
    pub fn slots(mut self, slots: u32) -> Self {
        match Slots::new(slots) {
            Ok(slots) => self.plan.slots = slots,
            Err(error) => return self.note(error),
        }
        self
    }

    /// Weight in the queue: one step counts as having come 30 s earlier.
    pub fn priority(mut self, priority: i32) -> Self {
        match Priority::new(priority) {
            Ok(priority) => self.plan.priority = priority,
            Err(error) => return self.note(error),
        }
        self
    }

    /// Who asks; host and process number if not said.
    pub fn holder<H>(mut self, holder: H) -> Self
    where
        H: TryInto<Holder>,
        H::Error: Into<Error>,
    {
        match holder.try_into() {
            Ok(holder) => self.plan.holder = Some(holder),
            Err(error) => return self.note(error),
        }
        self
    }

    /// A fact for people who look at the lock.
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        match self.plan.metadata.set(key, value) {
            Ok(()) => self,
            Err(error) => self.note(error),
        }
    }

    /// Why, for people who look at the lock.
    pub fn reason(self, reason: impl Into<String>) -> Self {
        self.meta("reason", reason)
    }

    /// The processes whose life the lease depends on, if it is not just this one; none if the holder is elsewhere.
    /// An engine of this machine frees the lock when all of them are gone.
    pub fn process(mut self, process: Option<Process>) -> Self {
        self.plan.process = process;
        self
    }

    /// How much of the ttl may pass before a renewal: a third if not said.
    pub fn renew_at(mut self, fraction: f64) -> Self {
        if !(0.05..=0.9).contains(&fraction) {
            return self
                .note(Invalid(format!("renewing at {fraction} of the ttl is not possible; 0.05 to 0.9 is")));
        }
        self.plan.renew_at = fraction;
        self
    }

    /// Holds the lock for this long at most, counted from the grant: after that the guard is lost, [`Guard::run`] drops the
    /// work, and the lock is released. Without it a guard holds the lock for as long as it can be renewed.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        match Ttl::new(longest) {
            Ok(longest) => self.plan.max_hold = Some(longest),
            Err(error) => return self.note(error),
        }
        self
    }

    /// Names the request, so that it can be made again when its answer was lost: the same id gives the same lease and
    /// token. For one lock only.
    ///
    /// Such a request is not taken back when it is dropped, because it may have been made again by then: its ticket ends
    /// by itself after 10 s without a sign of life, its lease after its ttl.
    pub fn lease_id(mut self, id: LeaseId) -> Self {
        self.plan.lease_id = Some(id);
        self
    }

    /// Keeps the place in the queue for another 10 s when patience is over, for the next request with the same
    /// [`lease_id`](Self::lease_id). If the lock becomes free meanwhile, it is kept for that request too.
    pub fn keep_place(mut self) -> Self {
        self.plan.keep_place = true;
        self
    }

    /// Called with the lock that is waited for and who is in its way: when waiting begins, and each time the store is
    /// asked again. It must not block.
    pub fn on_wait(mut self, told: impl Fn(&LockName, &Conflict) + Send + Sync + 'static) -> Self {
        self.plan.on_wait = Some(Arc::new(told));
        self
    }

    /// Asks. Dropping this future takes the request back: nothing stays held or queued, unless the request has an
    /// [id of the caller's](Self::lease_id).
    pub async fn acquire(self) -> Result<Guard> {
        let Self { inner, mut names, plan, wrong } = self;
        if let Some(error) = wrong {
            return Err(error);
        }
        if plan.mode == Mode::Shared && plan.slots != Slots::default() {
            return Err(Invalid("a shared lock has no slots; choose one of the two".to_owned()).into());
        }
        if plan.lease_id.is_some() && names.len() > 1 {
            return Err(
                Invalid("a lease id names the lease of one lock; several cannot have it".to_owned()).into()
            );
        }
        if plan.keep_place && plan.lease_id.is_none() {
            return Err(Invalid("a place is kept for a lease id; give one".to_owned()).into());
        }
        let abilities = inner.store.abilities();
        if !abilities.shares && (plan.mode == Mode::Shared || plan.slots != Slots::default()) {
            let engine = abilities.engine;
            return Err(
                Invalid(format!("{engine} has exclusive locks only: neither shared ones nor slots")).into()
            );
        }
        let least = abilities.min_ttl;
        if plan.ttl < least {
            return Err(Invalid(format!(
                "a ttl of {} is too short for this store; {least} is the least",
                plan.ttl
            ))
            .into());
        }
        // One order for everybody: two that want the same locks cannot each wait for the other.
        names.sort();
        acquire_all(inner, names, plan).await
    }

    /// Remembers the first thing that is wrong.
    fn note(mut self, error: impl Into<Error>) -> Self {
        self.wrong.get_or_insert_with(|| error.into());
        self
    }
}
