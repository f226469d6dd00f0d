//! Builder for lock acquisitions.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{AcquireOptions, acquire_all};
use super::guard::Guard;
use super::strategy::Strategy;
use crate::client::context::Inner;
use crate::error::{Error, Result};
use crate::model::{
    Conflict, Holder, LeaseId, LockName, Metadata, Mode, Priority, Process, Slots, Ttl, ValidationError,
    ValueKind,
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

/// Fraction of the TTL after which a lease is renewed.
const RENEW_AT: f64 = 1.0 / 3.0;

impl LockBuilder {
    pub(in crate::client) fn new<N>(inner: Arc<Inner>, name: N) -> Self
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        // Only an engine on this machine can detect that this process has died.
        let capabilities = inner.store.capabilities();
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
        };
        Self { inner, names: Vec::new(), options, error: None }.and(name)
    }

    /// Adds another lock. Several locks are acquired in the order of their names, all or none. Each
    /// lock is renewed from its grant on; if one is lost while a later one is waited for, all are
    /// released and acquired again.
    pub fn and<N>(mut self, name: N) -> Self
    where
        N: TryInto<LockName>,
        N::Error: Into<Error>,
    {
        match name.try_into() {
            Ok(name) if self.names.contains(&name) => self
                .record_error(ValidationError::new(ValueKind::Name, format!("lock '{name}' is named twice"))),
            Ok(name) => {
                self.names.push(name);
                self
            }
            Err(error) => self.record_error(error),
        }
    }

    /// Sets the lifetime of the lease without a renewal; 30 s on most stores by default. A crash of
    /// the holder delays other callers by at most this long.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        match Ttl::new(ttl) {
            Ok(ttl) => self.options.ttl = ttl,
            Err(error) => return self.record_error(error),
        }
        self
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
    pub fn steal_stale(mut self, after: Duration) -> Self {
        match Ttl::new(after) {
            Ok(after) => self.options.steal_after = Some(after),
            Err(error) => return self.record_error(error),
        }
        self
    }

    /// Acquires the lock in shared mode, together with other shared holders.
    pub fn shared(mut self) -> Self {
        self.options.mode = Mode::Shared;
        self
    }

    /// Acquires the lock as one of at most `slots` holders.
    pub fn slots(mut self, slots: u32) -> Self {
        match Slots::new(slots) {
            Ok(slots) => self.options.slots = slots,
            Err(error) => return self.record_error(error),
        }
        self
    }

    /// Sets the priority in the queue: one step counts as having arrived 30 s earlier.
    pub fn priority(mut self, priority: i32) -> Self {
        match Priority::new(priority) {
            Ok(priority) => self.options.priority = priority,
            Err(error) => return self.record_error(error),
        }
        self
    }

    /// Sets the holder; host name and process id by default.
    pub fn holder<H>(mut self, holder: H) -> Self
    where
        H: TryInto<Holder>,
        H::Error: Into<Error>,
    {
        match holder.try_into() {
            Ok(holder) => self.options.holder = Some(holder),
            Err(error) => return self.record_error(error),
        }
        self
    }

    /// Adds a metadata entry that operators see in the status of the lock.
    pub fn meta(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        match self.options.metadata.set(key, value) {
            Ok(()) => self,
            Err(error) => self.record_error(error),
        }
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
    pub fn renew_at(mut self, fraction: f64) -> Self {
        if !(0.05..=0.9).contains(&fraction) {
            return self.record_error(ValidationError::other(format!(
                "invalid renewal fraction {fraction}: must be 0.05 to 0.9 of the ttl"
            )));
        }
        self.options.renew_at = fraction;
        self
    }

    /// Limits the time for which the lock is held, counted from the grant. After that the guard is
    /// lost, [`Guard::run`] drops the work, and the lock is released. By default a guard holds the
    /// lock for as long as it can be renewed.
    pub fn max_hold(mut self, duration: Duration) -> Self {
        match Ttl::new(duration) {
            Ok(duration) => self.options.max_hold = Some(duration),
            Err(error) => return self.record_error(error),
        }
        self
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

    /// Acquires the locks. Dropping this future withdraws the request: no lease and no ticket
    /// remains, unless the request has an [id of the caller](Self::lease_id).
    pub async fn acquire(self) -> Result<Guard> {
        let Self { inner, mut names, options, error } = self;
        if let Some(error) = error {
            return Err(error);
        }
        if options.mode == Mode::Shared && options.slots != Slots::default() {
            return Err(ValidationError::new(
                ValueKind::Slots,
                "a shared lock has no slots; choose one of the two",
            )
            .into());
        }
        if options.lease_id.is_some() && names.len() > 1 {
            return Err(ValidationError::other(
                "a lease id identifies the lease of one lock; it cannot be used for several locks",
            )
            .into());
        }
        if options.keep_ticket && options.lease_id.is_none() {
            return Err(
                ValidationError::other("a ticket can be kept only for a request with a lease id").into()
            );
        }
        let capabilities = inner.store.capabilities();
        if !capabilities.shared_locks && (options.mode == Mode::Shared || options.slots != Slots::default()) {
            let engine = capabilities.engine;
            return Err(ValidationError::new(
                ValueKind::Slots,
                format!("{engine} has exclusive locks only: neither shared ones nor slots"),
            )
            .into());
        }
        check_ttl(&inner, options.ttl)?;
        // A global order prevents deadlocks between callers that acquire the same locks.
        names.sort();
        acquire_all(inner, names, options).await
    }

    /// Records the first error.
    fn record_error(mut self, error: impl Into<Error>) -> Self {
        self.error.get_or_insert_with(|| error.into());
        self
    }
}

/// Checks a TTL against the minimum of the store.
pub(in crate::client) fn check_ttl(inner: &Inner, ttl: Ttl) -> Result<(), ValidationError> {
    let min = inner.store.capabilities().min_ttl;
    if ttl < min {
        return Err(ValidationError::new(
            ValueKind::Duration,
            format!("a ttl of {ttl} is too short for this store; {min} is the least"),
        ));
    }
    Ok(())
}
