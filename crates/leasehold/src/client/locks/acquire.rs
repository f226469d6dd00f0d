//! Acquisition of locks: retries, waits and polls until all locks are granted or the timeout is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::deadlock_search;
use super::guard::Guard;
use super::guard_core::AcquiredLease;
use super::in_doubt;
use crate::client::context::{Inner, checked};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Acquire, Acquired, Conflict, Deadlock, Holder, Lease, LeaseId, LeaseRef, LockName, LockOp, LockRequest,
    Metadata, Mode, Priority, Process, Queued, Slots, Ttl, format_duration,
};
use crate::store::backoff::{ExponentialBackoff, jittered};
use crate::store::{BootInstant, RemoteGrant, WaiterSubscription, Wakeup, clock};

/// Strategy of an acquire for a lock that is held by another holder.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Strategy {
    /// Fails at once.
    #[default]
    FailFast,
    /// Tries again after growing delays, without a ticket in the queue: other callers may be faster.
    Retry(Backoff),
    /// Waits in the fair queue for at most this long, or forever with `None`. A store without a
    /// queue is polled with growing delays instead, and the first caller to poll a free lock
    /// acquires it.
    Wait(Option<Duration>),
}

/// Growing delays between attempts.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Backoff {
    /// First delay; each further one is twice as long.
    pub initial_delay: Duration,
    /// Maximum delay.
    pub max_delay: Duration,
    /// Maximum number of attempts after the first one.
    pub max_retries: u32,
}

/// Delays of 1, 2, 4, 8 and 16 seconds.
impl Default for Backoff {
    fn default() -> Self {
        Self { initial_delay: Duration::from_secs(1), max_delay: Duration::from_secs(16), max_retries: 5 }
    }
}

setters!(Backoff {
    /// Sets the first delay; each further one is twice as long.
    initial_delay: Duration,
    /// Sets the maximum delay.
    max_delay: Duration,
    /// Sets the maximum number of attempts after the first one.
    max_retries: u32,
});

impl Backoff {
    /// Returns the delay before retry number `retry` (counted from 0), with a random jitter of ±25
    /// %, so that callers that failed together do not return together. Returns `None` when the
    /// attempts are used up.
    pub fn delay(&self, retry: u32) -> Option<Duration> {
        let delays = ExponentialBackoff::new(self.initial_delay, self.max_delay);
        (retry < self.max_retries).then(|| jittered(delays.delay(retry)))
    }
}

/// Options of one acquisition; they apply to every lock of it.
pub(super) struct AcquireOptions {
    pub(super) ttl: Ttl,
    pub(super) strategy: Strategy,
    pub(super) steal_after: Option<Ttl>,
    pub(super) mode: Mode,
    pub(super) slots: Slots,
    pub(super) priority: Priority,
    pub(super) holder: Option<Holder>,
    pub(super) metadata: Metadata,
    pub(super) process: Option<Process>,
    pub(super) renew_at: f64,
    /// Maximum time from the grant, after which the guard is lost.
    pub(super) max_hold: Option<Ttl>,
    /// Id that the caller assigned to its request, so that the request can be repeated.
    pub(super) lease_id: Option<LeaseId>,
    pub(super) keep_ticket: bool,
    pub(super) on_wait: Option<OnWait>,
    /// Leases that the request is made within.
    pub(super) within: Vec<LeaseRef>,
    pub(super) check_deadlock: bool,
}

/// Callback that receives a lock that is waited for and the holders and waiters that conflict with
/// the request.
pub(super) type OnWait = Arc<dyn Fn(&LockName, &Conflict) + Send + Sync>;

/// Lifetime of a ticket that its waiter does not refresh: a dead waiter delays the waiters behind
/// it by at most this long.
const TICKET_TTL: Ttl = Ttl::from_secs(10);
/// Minimum lifetime of a ticket in poll intervals: on a remote store each refresh is expensive.
const TICKET_POLLS: u32 = 8;
/// Maximum number of attempts, with the same lease id, on a store that does not answer, for a
/// caller that does not wait for the lock. A waiting caller retries until its timeout.
const STORE_ATTEMPTS: u32 = 3;
/// Maximum total time of these attempts. A remote store, which is polled rarely, has `STORE_POLLS`
/// poll intervals if that is longer.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);
const STORE_POLLS: u32 = 3;
/// Additional time before this layer reports a timeout. The store ends its calls in the same time
/// and reports a more precise error.
const STORE_ERROR_GRACE: Duration = Duration::from_millis(250);
/// Maximum duration of a waiter's last attempt after its timeout, or one poll interval if that is
/// longer.
const LAST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum delay between two attempts of a waiter whose store does not answer.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
const STORE_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(50), Duration::from_millis(12_800));
/// Maximum random delay of the first attempt after the time at which a store accepts requests again.
const MAX_REFUSAL_JITTER: Duration = Duration::from_millis(500);
/// Number of grants that had expired when they were received, after which the caller gets the error
/// that its TTL is too short.
const MAX_LATE_GRANTS: u32 = 3;
/// Maximum duration of the check for deadlocks: meanwhile a waiter does not see that it was granted the lock.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum wait for the release of the leases of a lost attempt before the next attempt begins.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Acquires all locks, or none. Each lock is renewed from its grant on, so that it is not lost
/// while the next one is waited for.
pub(super) async fn acquire_all(
    inner: Arc<Inner>,
    names: Vec<LockName>,
    options: AcquireOptions,
) -> Result<Guard> {
    let started = BootInstant::now();
    let deadline = match options.strategy {
        Strategy::Wait(Some(timeout)) => Some(started.plus(timeout)),
        _ => None,
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let lost = match attempt(&inner, &names, &options, started, deadline).await? {
            Ok(guard) => return Ok(guard),
            Err(lost) => lost,
        };
        let reason = lost.loss();
        let released = lost.give_up();
        let may_retry = match options.strategy {
            Strategy::Wait(None) => true,
            Strategy::Wait(Some(_)) => deadline.is_some_and(|deadline| BootInstant::now() < deadline),
            Strategy::FailFast | Strategy::Retry(_) => attempts < STORE_ATTEMPTS,
        };
        if let (false, Some(error)) = (may_retry, reason) {
            return Err(error);
        }
        // Otherwise the next attempt would conflict with the locks of this one.
        inner.background.within(RELEASE_TIMEOUT, released).await;
    }
}

/// Acquires the locks one after the other. Returns the guard as an error if a lock was lost before
/// the last one was granted. On an error or a drop, the acquired locks are released in the
/// background.
async fn attempt(
    inner: &Arc<Inner>,
    names: &[LockName],
    options: &AcquireOptions,
    started: BootInstant,
    deadline: Option<BootInstant>,
) -> Result<Result<Guard, Guard>> {
    let mut acquired: Option<Guard> = None;
    for name in names {
        let held = acquired.as_ref().map(Guard::lease_refs).unwrap_or_default();
        let request = AcquireRequest::new(inner, name.clone(), options, held, started, deadline);
        let guard = match acquired.take() {
            None => Guard::new(inner.clone(), request.acquire().await?, options.renew_at, options.max_hold),
            Some(guard) => {
                let lease = tokio::select! {
                    biased;
                    () = guard.lost(), if !is_planted!(IgnoresALossWhileAcquiring) => None,
                    lease = request.acquire() => Some(lease?),
                };
                let Some(lease) = lease else { return Ok(Err(guard)) };
                guard.add(lease);
                guard
            }
        };
        acquired = Some(guard);
    }
    let guard = acquired.expect("a request has at least one lock");
    // The only lease was valid when it was received, just now.
    if names.len() == 1 && options.max_hold.is_none() {
        return Ok(Ok(guard));
    }
    Ok(if guard.is_valid() || is_planted!(IgnoresALossWhileAcquiring) { Ok(guard) } else { Err(guard) })
}

/// Request for one lock. Dropping it withdraws its ticket or its lease.
struct AcquireRequest<'a> {
    options: &'a AcquireOptions,
    started: BootInstant,
    deadline: Option<BootInstant>,
    request: Arc<LockRequest>,
    /// Number of grants that had expired when they were received.
    late_grants: AtomicU32,
    withdraw: WithdrawOnDrop,
}

impl<'a> AcquireRequest<'a> {
    fn new(
        inner: &Arc<Inner>,
        name: LockName,
        options: &'a AcquireOptions,
        held: Vec<LeaseRef>,
        started: BootInstant,
        deadline: Option<BootInstant>,
    ) -> Self {
        let mut metadata = options.metadata.clone();
        metadata.set_within(options.within.iter().copied().chain(held));
        let lease_id = options.lease_id.unwrap_or_else(clock::new_lease_id);
        let request = LockRequest {
            lease_id,
            holder: options.holder.clone().unwrap_or_else(|| inner.holder.clone()),
            mode: options.mode,
            slots: options.slots,
            priority: options.priority,
            ttl: options.ttl,
            metadata,
            process: options.process.clone(),
        };
        let withdraw = WithdrawOnDrop { inner: inner.clone(), name, lease_id, armed: false };
        Self {
            options,
            started,
            deadline,
            request: Arc::new(request),
            late_grants: AtomicU32::new(0),
            withdraw,
        }
    }

    async fn acquire(mut self) -> Result<AcquiredLease> {
        // A caller may repeat a request with its own id while this one is being dropped.
        // Withdrawing this one would take away the lease of the repetition, so it is left to expire.
        self.withdraw.armed = self.options.lease_id.is_none();
        let found = match &self.options.strategy {
            Strategy::FailFast => self.try_acquire(None).await?,
            Strategy::Retry(backoff) => {
                let mut retry = 0;
                loop {
                    match (self.try_acquire(None).await?, backoff.delay(retry)) {
                        (AcquireOutcome::Conflict(_), Some(delay)) => tokio::time::sleep(delay).await,
                        (answer, _) => break answer,
                    }
                    retry += 1;
                }
            }
            Strategy::Wait(_) if !self.withdraw.inner.capabilities.queues => {
                self.poll_until_acquired().await?
            }
            Strategy::Wait(_) => self.wait().await?,
        };
        // The caller keeps the lease, or the store has reported that it has no lease and no ticket of
        // this request.
        self.withdraw.armed = false;
        match found {
            AcquireOutcome::Granted(lease) => {
                if let Some(previous) = &lease.lease.took_over {
                    let (lock, holder) = (&self.withdraw.name, &previous.holder);
                    let takeover = previous.describe(lease.lease.acquired_at);
                    tracing::warn!(%lock, previous = %holder, token = %previous.token, "{takeover}");
                }
                Ok(lease)
            }
            AcquireOutcome::Conflict(conflict) | AcquireOutcome::Queued(Queued { conflict, .. }) => {
                let (lock, waited) = (self.withdraw.name.clone(), BootInstant::now().after(self.started));
                let waited =
                    if self.options.strategy == Strategy::FailFast { Duration::ZERO } else { waited };
                Err(Error::Conflict { lock, conflict: Box::new(conflict), waited })
            }
        }
    }

    /// Polls a store without a queue, with growing delays, until the lock is granted or the timeout
    /// is over.
    async fn poll_until_acquired(&self) -> Result<AcquireOutcome> {
        let poll = self.withdraw.inner.capabilities.poll;
        let backoff = Backoff { initial_delay: poll, max_delay: poll * 4, max_retries: u32::MAX };
        for retry in 0.. {
            let left = self.time_left();
            match (self.try_acquire(None).await?, backoff.delay(retry)) {
                (AcquireOutcome::Conflict(conflict), Some(delay)) if left > Duration::ZERO => {
                    self.report_conflict(&conflict);
                    tokio::time::sleep(delay.min(left)).await;
                }
                (answer, _) => return Ok(answer),
            }
        }
        unreachable!("the number of retries is not limited")
    }

    /// Waits in the queue until the lock is granted. Polling guarantees progress; notifications
    /// only make it faster.
    async fn wait(&self) -> Result<AcquireOutcome> {
        let mut subscription =
            self.locks().subscribe_waiter(Some(&self.withdraw.name), &self.request.lease_id);
        let mut sent = BootInstant::now();
        let mut unchecked = self.options.check_deadlock;
        loop {
            let last = self.time_left() == Duration::ZERO;
            // The last attempt takes no ticket: it acquires the lock or leaves the queue. The
            // ticket stays if a later request needs it: the caller's next one, or one with the same
            // id that has already been sent.
            let stays = !last || self.options.keep_ticket || subscription.is_superseded();
            let answer = self.try_acquire(stays.then_some(self.ticket_ttl())).await?;
            match answer {
                AcquireOutcome::Queued(queued) if !last => {
                    subscription.forget_grant();
                    subscription.note_ahead(queued.ahead);
                    self.report_conflict(&queued.conflict);
                }
                answer => return Ok(answer),
            }
            if std::mem::take(&mut unchecked)
                && let Some(deadlock) = Box::pin(self.find_deadlock()).await
            {
                // Leaves the queue, or acquires the lock if the ring was broken meanwhile.
                return match self.try_acquire(None).await? {
                    AcquireOutcome::Granted(lease) => Ok(AcquireOutcome::Granted(lease)),
                    _ => Err(Error::Deadlock { lock: self.withdraw.name.clone(), deadlock }),
                };
            }
            if let Some(answer) = self.wait_for_wakeup(&mut subscription, sent).await? {
                return Ok(answer);
            }
            sent = BootInstant::now();
        }
    }

    /// Returns the deadlock that this request is part of, if there is one and the store lets it be found
    /// in time.
    async fn find_deadlock(&self) -> Option<Box<Deadlock>> {
        let inner = &self.withdraw.inner;
        let limit = DEADLOCK_TIMEOUT.min(self.time_left());
        let search = inner.background.within(limit, deadlock_search::find(inner)).await;
        match search {
            Some(Ok(search)) => {
                let mut found = search.found.into_iter();
                found.find(|deadlock| deadlock.contains(&self.request.lease_id)).map(Box::new)
            }
            Some(Err(error)) => {
                tracing::warn!(lock = %self.withdraw.name, %error, "deadlocks cannot be checked; waiting");
                None
            }
            None => {
                tracing::warn!(lock = %self.withdraw.name, "the check for deadlocks took too long; waiting");
                None
            }
        }
    }

    /// Waits until another query of the store is worthwhile: the lock may have been granted, the
    /// ticket needs a refresh, a holder has died, or the timeout is over. Returns the lease if the
    /// releasing process delivered the grant directly.
    async fn wait_for_wakeup(
        &self,
        subscription: &mut WaiterSubscription,
        sent: BootInstant,
    ) -> Result<Option<AcquireOutcome>> {
        let refresh_at = sent.plus(self.ticket_ttl().as_duration() / 3);
        loop {
            let until_refresh = refresh_at.after(BootInstant::now());
            match subscription.next(self.time_left().min(until_refresh)).await {
                Wakeup::Granted(RemoteGrant { lease, since }) => {
                    let valid_until = since.plus(lease.expires_at.since(lease.acquired_at));
                    return Ok(self.acquired(lease, valid_until).map(AcquireOutcome::Granted));
                }
                Wakeup::Hint => return Ok(self.check_granted(sent).await.0),
                Wakeup::Missed | Wakeup::Poll => {}
            }
            if BootInstant::now() >= refresh_at || self.time_left() == Duration::ZERO {
                return Ok(None);
            }
            match self.check_granted(sent).await {
                (None, false) => {}
                (found, _) => return Ok(found),
            }
        }
    }

    /// Reads the lock, which is cheaper than an operation. Returns the lease that was granted to
    /// the ticket; without one, returns whether another acquire is worthwhile. Ends at the caller's timeout.
    async fn check_granted(&self, sent: BootInstant) -> (Option<AcquireOutcome>, bool) {
        let peek = self.locks().peek(&self.withdraw.name, &self.request.lease_id);
        let peek = self.withdraw.inner.background.within(self.time_left(), peek).await;
        let Some(Ok(peek)) = peek else { return (None, true) };
        let is_due = peek.is_due();
        if let Some(lease) = peek.lease {
            // At the last acquire the request was still queued, so the lease began after that.
            let valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
            return (self.acquired(lease, valid_until).map(AcquireOutcome::Granted), true);
        }
        (None, is_due)
    }

    /// Returns `None` if the response took longer than the lease lasts: that is not an acquisition.
    fn acquired(&self, lease: Lease, valid_until: BootInstant) -> Option<AcquiredLease> {
        let since = BootInstant::now();
        let is_believed = since >= valid_until && is_planted!(BelievesALateGrant);
        let valid_until = if is_believed { since.plus(self.options.ttl.as_duration()) } else { valid_until };
        let name = self.withdraw.name.clone();
        (since < valid_until).then_some(AcquiredLease { name, lease, valid_until, since })
    }

    fn ticket_ttl(&self) -> Ttl {
        let polls = self.withdraw.inner.capabilities.poll * TICKET_POLLS;
        Ttl::new(polls).map_or(TICKET_TTL, |polls| polls.max(TICKET_TTL))
    }

    fn time_left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.after(BootInstant::now()))
    }

    fn report_conflict(&self, conflict: &Conflict) {
        if let Some(on_wait) = &self.options.on_wait {
            on_wait(&self.withdraw.name, conflict);
        }
    }

    /// Sends one acquire. A call that fails is repeated: with the same lease id it cannot acquire
    /// the lock twice.
    async fn try_acquire(&self, queue: Option<Ttl>) -> Result<AcquireOutcome> {
        let op = LockOp::Acquire(Acquire {
            request: self.request.clone(),
            queue,
            steal_after: self.options.steal_after,
        });
        let now = BootInstant::now();
        // The acquisitions of several locks share the time of a caller that does not wait.
        let started = if self.options.strategy == Strategy::FailFast { self.started } else { now };
        let mut attempts = 0;
        loop {
            let sent = if attempts == 0 { now } else { BootInstant::now() };
            let limit = self.attempt_timeout(started, sent, attempts);
            attempts += 1;
            let call = self.locks().apply(&self.withdraw.name, &op);
            let answer = self.withdraw.inner.background.within(limit, call).await;
            let answer = answer.unwrap_or_else(|| Err(self.timeout_error(started, limit)));
            match answer.and_then(|outcome| checked(&self.withdraw.name, outcome.into_acquired())) {
                Ok(Acquired::Granted(lease)) => {
                    let valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
                    if let Some(grant) = self.acquired(lease, valid_until) {
                        return Ok(AcquireOutcome::Granted(grant));
                    }
                    let late = self.late_grants.fetch_add(1, Ordering::Relaxed) + 1;
                    if late >= MAX_LATE_GRANTS || self.time_left() == Duration::ZERO {
                        return Err(self.too_slow_error());
                    }
                }
                Ok(Acquired::Queued(queued)) => return Ok(AcquireOutcome::Queued(queued)),
                Ok(Acquired::Conflict(conflict)) => return Ok(AcquireOutcome::Conflict(conflict)),
                Err(error) => match self.retry_delay(&error, started, attempts) {
                    Some(delay) => {
                        tracing::debug!(lock = %self.withdraw.name, %error, "the acquire failed; retrying");
                        tokio::time::sleep(delay).await;
                    }
                    None => return Err(error),
                },
            }
        }
    }

    /// Returns the maximum time to reach the store for a caller that does not wait for the lock.
    fn store_timeout(&self) -> Duration {
        STORE_TIMEOUT.max(self.withdraw.inner.capabilities.poll * STORE_POLLS)
    }

    /// Returns the maximum duration of one attempt after `attempts` earlier ones.
    fn attempt_timeout(&self, started: BootInstant, now: BootInstant, attempts: u32) -> Duration {
        match self.options.strategy {
            Strategy::Wait(None) => Duration::MAX,
            Strategy::Wait(Some(_)) => {
                let last = LAST_ATTEMPT_TIMEOUT.max(self.withdraw.inner.capabilities.poll);
                self.time_left().max(last)
            }
            _ if attempts == 0 => started.plus(self.store_timeout() + STORE_ERROR_GRACE).after(now),
            _ => started.plus(self.store_timeout()).after(now),
        }
    }

    /// Returns the delay before the next attempt; `None` if there must not be one.
    fn retry_delay(&self, error: &Error, started: BootInstant, attempts: u32) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        if let Some(refused_for) = error.retry_after() {
            return self.refusal_delay(refused_for, started);
        }
        let delay = STORE_BACKOFF.delay(attempts);
        if matches!(self.options.strategy, Strategy::Wait(_)) {
            let left = self.time_left();
            // Clients whose connections were refused together must not return together.
            let delay = jittered(delay.min(MAX_RETRY_DELAY));
            return (left > Duration::ZERO).then_some(delay.min(left));
        }
        let left = started.plus(self.store_timeout()).after(BootInstant::now());
        (attempts < STORE_ATTEMPTS && delay < left).then_some(delay)
    }

    /// Returns the delay until a store that rejects every request accepts requests again; `None` if
    /// that is after the caller's timeout. An earlier attempt cannot succeed, so such a caller gets
    /// the error at once.
    fn refusal_delay(&self, refused_for: Duration, started: BootInstant) -> Option<Duration> {
        let left = match self.options.strategy {
            Strategy::Wait(_) => self.time_left(),
            _ => started.plus(self.store_timeout()).after(BootInstant::now()),
        };
        // Random delay: all clients of the service received the same time.
        let delay = refused_for + MAX_REFUSAL_JITTER.mul_f64(fastrand::f64());
        (refused_for < left).then_some(delay.min(left))
    }

    fn timeout_error(&self, started: BootInstant, limit: Duration) -> Error {
        let limit = limit.max(BootInstant::now().after(started));
        let (url, limit) = (self.withdraw.inner.store.url(), format_duration(limit));
        let message = format!("the store {url} did not answer within {limit}");
        Error::store(
            StoreErrorKind::Unavailable,
            message,
            "check whether the store is available, or wait longer for the lock",
        )
    }

    fn too_slow_error(&self) -> Error {
        let (url, ttl) = (self.withdraw.inner.store.url(), self.options.ttl);
        let message = format!("the store {url} is too slow: its answers take longer than the ttl of {ttl}");
        Error::store(StoreErrorKind::Unavailable, message, "use a longer ttl")
    }

    fn locks(&self) -> &dyn crate::store::LockStore {
        self.withdraw.inner.locks()
    }
}

enum AcquireOutcome {
    Granted(AcquiredLease),
    Queued(Queued),
    Conflict(Conflict),
}

/// Withdraws a request, whether queued or granted, in the background when dropped.
struct WithdrawOnDrop {
    inner: Arc<Inner>,
    name: LockName,
    lease_id: LeaseId,
    armed: bool,
}

impl Drop for WithdrawOnDrop {
    fn drop(&mut self) {
        if self.armed {
            let (inner, name, lease_id) = (self.inner.clone(), self.name.clone(), self.lease_id);
            self.inner.background.spawn(async move {
                if let Err(error) = in_doubt::withdraw(inner.locks(), &name, lease_id).await {
                    tracing::debug!(lock = %name, %error, "failed to withdraw a request; its ticket or lease will expire");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_end() {
        let backoff = Backoff::default();
        for (retry, seconds) in [1.0, 2.0, 4.0, 8.0, 16.0].into_iter().enumerate() {
            let delay = backoff.delay(u32::try_from(retry).unwrap()).unwrap().as_secs_f64();
            assert!((0.75 * seconds..=1.25 * seconds).contains(&delay), "retry {retry}: {delay} s");
        }
        assert_eq!(backoff.delay(5), None);
        let endless = Backoff { max_retries: u32::MAX, ..backoff };
        assert!(endless.delay(4_000_000).unwrap() <= Duration::from_secs(20));
    }
}
