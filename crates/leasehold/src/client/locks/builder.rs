//! Builder for lock acquisitions.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{AcquireOptions, Strategy, acquire_all};
use super::guard::{Guard, enclosing_leases};
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{
    Conflict, Holder, LeaseId, LeaseRef, LockName, Metadata, Mode, Priority, Process, Slots, Ttl,
    ValidationError, ValueKind,
};
use crate::store::{self, Hosts};

/// Builder for the acquisition of one or several locks. Invalid arguments are reported by
/// [`acquire`](Self::acquire).
#[must_use = "no lock is acquired until acquire() is awaited"]
pub struct LockBuilder {
    inner: Arc<Inner>,
    names: Vec<LockName>,
    options: AcquireOptions,
    error: Option<Error>,
}

const RENEW_AT: f64 = 1.0 / 3.0;

impl LockBuilder {
    pub(in crate::client) fn new<N: TryInto<LockName, Error: Into<Error>>>(
        inner: Arc<Inner>,
        name: N,
    ) -> Self {
        // Only an engine on this machine can detect that this process has died.
        let capabilities = &inner.capabilities;
        let local = capabilities.hosts == Hosts::OneMachine;
        let options = AcquireOptions {
            ttl: capabilities.ttl,
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
            keep_ticket: false,
            on_wait: None,
            within: Vec::new(),
            check_deadlock: false,
        };
        Self { inner, names: Vec::new(), options, error: None }.and(name)
    }

    /// Adds another lock. Several locks are acquired in the order of their names, all or none. Each
    /// lock is renewed from its grant on; if one is lost while a later one is waited for, all are
    /// released and acquired again.
    pub fn and<N: TryInto<LockName, Error: Into<Error>>>(mut self, name: N) -> Self {
        match name.try_into().map_err(Into::into) {
            Ok(name) if self.names.contains(&name) => {
                let twice = format!("lock '{name}' is named twice");
                self.error.get_or_insert_with(|| ValidationError::new(ValueKind::Name, twice).into());
            }
            Ok(name) => self.names.push(name),
            Err(error) => _ = self.error.get_or_insert(error),
        }
        self
    }

    /// Sets the lifetime of the lease without a renewal; 30 s on most stores by default. A crash of
    /// the holder delays other callers by at most this long.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(Ttl::new(ttl), |options, ttl| options.ttl = ttl)
    }

    /// Sets the strategy for a lock that is held; by default `acquire` fails at once.
    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.options.strategy = strategy;
        self
    }

    /// Waits in the fair queue for at most this long. A store without a queue is polled instead.
    pub fn wait(self, timeout: Duration) -> Self {
        self.strategy(Strategy::Wait(Some(timeout)))
    }

    /// Also takes over a lease that has not been renewed for this long, although its TTL has not
    /// expired.
    pub fn steal_stale(self, after: Duration) -> Self {
        self.with(Ttl::new(after), |options, after| options.steal_after = Some(after))
    }

    /// Acquires the lock in shared mode, together with other shared holders.
    pub fn shared(mut self) -> Self {
        self.options.mode = Mode::Shared;
        self
    }

    /// Acquires the lock as one of at most `slots` holders.
    pub fn slots(self, slots: u32) -> Self {
        self.with(Slots::new(slots), |options, slots| options.slots = slots)
    }

    /// Sets the priority in the queue: one step counts as having arrived 30 s earlier.
    pub fn priority(self, priority: i32) -> Self {
        self.with(Priority::new(priority), |options, priority| options.priority = priority)
    }

    /// Sets the holder; host name and process id by default.
    pub fn holder<H: TryInto<Holder, Error: Into<Error>>>(self, holder: H) -> Self {
        self.with(holder.try_into(), |options, holder| options.holder = Some(holder))
    }

    /// Adds a metadata entry that operators see in the status of the lock.
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let set = self.options.metadata.set(key, value);
        self.with(set, |_, ()| {})
    }

    /// Sets the reason that operators see in the status of the lock.
    pub fn reason(self, reason: impl Into<String>) -> Self {
        self.meta("reason", reason)
    }

    /// Sets the processes that the lease depends on, by default this process; `None` if the holder
    /// runs on another machine. An engine on this machine releases the lock when all of them are
    /// dead.
    pub fn process(mut self, process: Option<Process>) -> Self {
        self.options.process = process;
        self
    }

    /// Sets the fraction of the TTL after which the lease is renewed; one third by default.
    pub fn renew_at(self, fraction: f64) -> Self {
        let invalid = || format!("invalid renewal fraction {fraction}: must be 0.05 to 0.9 of the ttl");
        let is_valid = (0.05..=0.9).contains(&fraction);
        let valid = is_valid.then_some(fraction).ok_or_else(|| ValidationError::other(invalid()));
        self.with(valid, |options, fraction| options.renew_at = fraction)
    }

    /// Limits the time for which the lock is held, counted from the grant. After that the guard is
    /// lost, [`Guard::run`] drops the work, and the lock is released. By default a guard holds the
    /// lock for as long as it can be renewed.
    pub fn max_hold(self, duration: Duration) -> Self {
        self.with(Ttl::new(duration), |options, duration| options.max_hold = Some(duration))
    }

    /// Sets the id of the request, so that it can be repeated after a lost response: the same id
    /// returns the same lease and token. For a single lock only.
    ///
    /// Such a request is not withdrawn when it is dropped, because the caller may have repeated it
    /// by then. Its ticket expires without a refresh after 10 s (eight poll intervals of the store
    /// if that is longer), its lease after its TTL.
    pub fn lease_id(mut self, id: LeaseId) -> Self {
        self.options.lease_id = Some(id);
        self
    }

    /// Keeps the ticket in the queue after the timeout for another 10 s (eight poll intervals of
    /// the store if that is longer), for the next request with the same
    /// [`lease_id`](Self::lease_id). If the lock becomes free in that time, it is granted to that
    /// request.
    pub fn keep_ticket(mut self) -> Self {
        self.options.keep_ticket = true;
        self
    }

    /// Sets a callback that receives the lock that is waited for and the holders and waiters that
    /// conflict with the request. Called when waiting begins and after each further acquire. The
    /// callback must not block.
    pub fn on_wait(mut self, callback: impl Fn(&LockName, &Conflict) + Send + Sync + 'static) -> Self {
        self.options.on_wait = Some(Arc::new(callback));
        self
    }

    /// Declares that the request is made within these leases: their holder does not release them before the
    /// request is granted or given up. Only then can [`Locks::deadlocks`](super::Locks::deadlocks) know
    /// that they wait. Requests in the work of [`Guard::run`] and in the handler of a task with a lock are
    /// made within those leases without a declaration. See [`Guard::lease_refs`].
    pub fn within(mut self, leases: impl IntoIterator<Item = LeaseRef>) -> Self {
        self.options.within.extend(leases);
        self
    }

    /// Fails with [`Error::Deadlock`] instead of waiting, if the request closes a ring of requests that
    /// wait for each other. Checked once, when the request joins the queue; reads all locks with waiters.
    /// The check takes at most 3 s; if the store does not answer by then or does not permit it, the
    /// request waits without the check.
    pub fn check_deadlock(mut self) -> Self {
        self.options.check_deadlock = true;
        self
    }

    /// Acquires the locks. Dropping this future withdraws the request: no lease and no ticket
    /// remains, unless the request has an [id of the caller](Self::lease_id).
    pub async fn acquire(self) -> Result<Guard> {
        let Self { inner, mut names, mut options, error } = self;
        if let Some(error) = error {
            return Err(error);
        }
        if options.mode == Mode::Shared && options.slots != Slots::default() {
            let message = "a shared lock has no slots; choose one of the two";
            return Err(ValidationError::new(ValueKind::Slots, message).into());
        }
        if options.lease_id.is_some() && names.len() > 1 {
            let message = "a lease id identifies the lease of one lock; it cannot be used for several locks";
            return Err(ValidationError::other(message).into());
        }
        if options.keep_ticket && options.lease_id.is_none() {
            let message = "a ticket can be kept only for a request with a lease id";
            return Err(ValidationError::other(message).into());
        }
        let capabilities = &inner.capabilities;
        if !capabilities.shared_locks && (options.mode == Mode::Shared || options.slots != Slots::default()) {
            let engine = capabilities.engine;
            let message = format!("{engine} has exclusive locks only: neither shared ones nor slots");
            return Err(ValidationError::new(ValueKind::Slots, message).into());
        }
        check_ttl(&inner, options.ttl)?;
        options.within.extend(enclosing_leases());
        // A global order prevents deadlocks between callers that acquire the same locks.
        names.sort();
        acquire_all(inner, names, options).await
    }

    /// Sets a value that is valid; otherwise records the first error.
    fn with<T, E: Into<Error>>(
        mut self,
        value: Result<T, E>,
        set: impl FnOnce(&mut AcquireOptions, T),
    ) -> Self {
        match value {
            Ok(value) => set(&mut self.options, value),
            Err(error) => _ = self.error.get_or_insert_with(|| error.into()),
        }
        self
    }
}

pub(in crate::client) fn check_ttl(inner: &Inner, ttl: Ttl) -> Result<(), ValidationError> {
    let min = inner.capabilities.min_ttl;
    if ttl >= min {
        return Ok(());
    }
    let message = format!("a ttl of {ttl} is too short for this store; {min} is the least");
    Err(ValidationError::new(ValueKind::Duration, message))
}
