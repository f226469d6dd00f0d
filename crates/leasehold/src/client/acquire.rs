//! Acquisition of locks: retries, waits and polls until all locks are granted or the timeout is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::guard::{Guard, Renewals};
use super::in_doubt;
use super::leasehold::Inner;
use super::strategy::{Backoff, Strategy};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{
    Acquire, Ask, Conflict, Holder, Lease, LeaseId, LockName, LockOp, Metadata, Mode, Outcome, Priority,
    Process, Queued, Slots, Ttl, format_duration,
};
use crate::store::{BootInstant, RemoteGrant, WaiterSubscription, Wakeup, clock};

/// Options of one acquisition, the same for every lock of it.
pub(super) struct Plan {
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
    /// Whether the ticket stays in the queue after the timeout.
    pub(super) keep_ticket: bool,
    /// Callback that receives the conflict each time the store reports one.
    pub(super) on_wait: Option<OnWait>,
}

/// Callback that receives a lock that is waited for and the holders and waiters that conflict with
/// the request.
pub(super) type OnWait = Arc<dyn Fn(&LockName, &Conflict) + Send + Sync>;

/// Acquired lease and the time until which this process may rely on it.
pub(super) struct Taken {
    pub(super) name: LockName,
    pub(super) lease: Lease,
    pub(super) valid_until: BootInstant,
    /// Time at which this process received the lease.
    pub(super) since: BootInstant,
}

impl Taken {
    /// Returns whether the lease lasts for less than its TTL because it was granted to a ticket.
    pub(super) fn is_short(&self) -> bool {
        self.lease.expires_at.since(self.lease.renewed_at) < self.lease.ask.ttl.as_duration()
    }
}

/// Lifetime of a ticket that its waiter does not refresh: a dead waiter delays the waiters behind
/// it by at most this long.
const TICKET: Ttl = Ttl::from_secs(10);
/// Minimum lifetime of a ticket in poll intervals: on a remote store each refresh is expensive.
const TICKET_POLLS: u32 = 8;
/// Maximum number of attempts, with the same lease id, on a store that does not answer, for a
/// caller that does not wait for the lock. A waiting caller retries until its timeout.
const STORE_TRIES: u32 = 3;
/// Maximum total time of these attempts. A remote store, which is polled rarely, has `STORE_POLLS`
/// poll intervals if that is longer.
const STORE_TIME: Duration = Duration::from_secs(5);
const STORE_POLLS: u32 = 3;
/// Additional time before this layer reports a timeout. The store ends its calls in the same time
/// and reports a more precise error.
const OWN_WORDS: Duration = Duration::from_millis(250);
/// Maximum duration of a waiter's last attempt after its timeout, or one poll interval if that is longer.
const LAST_ASKING: Duration = Duration::from_secs(1);
/// Maximum pause between two attempts of a waiter whose store does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(2);
/// Maximum random delay of the first attempt after the time at which a store accepts requests again.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// Number of grants that had expired when they were received, after which the caller gets the error
/// that its TTL is too short.
const LATE_GRANTS: u32 = 3;
/// Maximum wait for the release of the leases of a lost attempt before the next attempt begins.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// Acquires all locks, or none. Each lock is renewed from its grant on, so that it is not lost
/// while the next one is waited for.
pub(super) async fn acquire_all(inner: Arc<Inner>, names: Vec<LockName>, plan: Plan) -> Result<Guard> {
    let started = BootInstant::now();
    let deadline = match plan.strategy {
        Strategy::Wait(Some(patience)) => Some(started.plus(patience)),
        _ => None,
    };
    let several = Several { inner, names, plan, started, deadline };
    let mut tries = 0;
    loop {
        tries += 1;
        let lost = match several.take().await? {
            Attempt::Held(guard) => return Ok(guard),
            Attempt::Lost(guard) => guard,
        };
        let why = lost.loss();
        let given_back = lost.give_up();
        let again = match several.plan.strategy {
            Strategy::Wait(None) => true,
            Strategy::Wait(Some(_)) => deadline.is_some_and(|deadline| BootInstant::now() < deadline),
            Strategy::FailFast | Strategy::Retry(_) => tries < STORE_TRIES,
        };
        if let (false, Some(error)) = (again, why) {
            return Err(error);
        }
        // Otherwise the next attempt would conflict with the locks of this one.
        several.inner.keeper.within(GIVING_BACK, given_back).await;
    }
}

/// Acquisition of one or several locks.
struct Several {
    inner: Arc<Inner>,
    names: Vec<LockName>,
    plan: Plan,
    started: BootInstant,
    deadline: Option<BootInstant>,
}

/// Result of one attempt to acquire all locks.
enum Attempt {
    Held(Guard),
    /// A lock was lost before the last one was granted.
    Lost(Guard),
}

impl Several {
    /// Acquires the locks one after the other. On an error or a drop, the acquired locks are
    /// released in the background.
    async fn take(&self) -> Result<Attempt> {
        let mut taken: Option<Guard> = None;
        for name in &self.names {
            let request = Request::new(&self.inner, name.clone(), &self.plan, self.started, self.deadline);
            let guard = match taken.take() {
                None => {
                    let Plan { renew_at, max_hold, .. } = self.plan;
                    let taken = request.acquire().await?.keep();
                    Guard::new(self.inner.clone(), taken, Renewals { renew_at, max_hold })
                }
                Some(guard) => {
                    let granted = tokio::select! {
                        biased;
                        () = guard.lost() => None,
                        granted = request.acquire() => Some(granted?),
                    };
                    let Some(granted) = granted else { return Ok(Attempt::Lost(guard)) };
                    guard.add(granted.keep());
                    guard
                }
            };
            taken = Some(guard);
        }
        let guard = taken.expect("a request has at least one lock");
        Ok(if guard.is_valid() { Attempt::Held(guard) } else { Attempt::Lost(guard) })
    }
}

/// Request for one lock. Dropping it withdraws its ticket or its lease.
struct Request<'a> {
    plan: &'a Plan,
    started: BootInstant,
    deadline: Option<BootInstant>,
    ask: Arc<Ask>,
    /// Number of grants that had expired when they were received.
    late: AtomicU32,
    undo: Undo,
}

/// Granted lease that is withdrawn on drop unless it is kept.
struct Granted {
    grant: Grant,
    undo: Undo,
}

/// Lease, the time until which this process may rely on it, and the time at which it was received.
struct Grant {
    lease: Lease,
    valid_until: BootInstant,
    since: BootInstant,
}

impl Grant {
    /// Returns `None` if the response took longer than the lease lasts: that is not an acquisition.
    fn in_time(lease: Lease, valid_until: BootInstant) -> Option<Self> {
        let since = BootInstant::now();
        (since < valid_until).then_some(Self { lease, valid_until, since })
    }
}

impl Granted {
    fn keep(mut self) -> Taken {
        self.undo.armed = false;
        let Grant { lease, valid_until, since } = self.grant;
        Taken { name: self.undo.name.clone(), lease, valid_until, since }
    }
}

impl<'a> Request<'a> {
    fn new(
        inner: &Arc<Inner>,
        name: LockName,
        plan: &'a Plan,
        started: BootInstant,
        deadline: Option<BootInstant>,
    ) -> Self {
        let lease_id = plan.lease_id.unwrap_or_else(clock::new_lease_id);
        let ask = Ask {
            lease_id,
            holder: plan.holder.clone().unwrap_or_else(|| inner.holder.clone()),
            mode: plan.mode,
            slots: plan.slots,
            priority: plan.priority,
            ttl: plan.ttl,
            metadata: plan.metadata.clone(),
            process: plan.process.clone(),
        };
        let undo = Undo { inner: inner.clone(), name, lease_id, armed: false };
        Self { plan, started, deadline, ask: Arc::new(ask), late: AtomicU32::new(0), undo }
    }

    async fn acquire(mut self) -> Result<Granted> {
        // A caller may repeat a request with its own id while this one is being dropped.
        // Withdrawing this one would take away the lease of the repetition, so it is left to expire.
        self.undo.armed = self.plan.lease_id.is_none();
        let found = match &self.plan.strategy {
            Strategy::FailFast => self.ask_once(None).await?,
            Strategy::Retry(backoff) => {
                let mut again = 0;
                loop {
                    match (self.ask_once(None).await?, backoff.pause(again)) {
                        (Answer::Busy(_), Some(pause)) => tokio::time::sleep(pause).await,
                        (answer, _) => break answer,
                    }
                    again += 1;
                }
            }
            Strategy::Wait(_) if !self.undo.inner.store.capabilities().queues => self.ask_in_turns().await?,
            Strategy::Wait(_) => self.wait().await?,
        };
        match found {
            Answer::Granted(grant) => {
                if let Some(before) = &grant.lease.took_over {
                    let (lock, holder) = (&self.undo.name, &before.holder);
                    let what = before.describe(grant.lease.acquired_at);
                    tracing::warn!(%lock, previous = %holder, token = %before.token, "{what}");
                }
                Ok(Granted { grant, undo: self.undo })
            }
            Answer::Busy(conflict) | Answer::Queued(Queued { conflict, .. }) => {
                self.undo.armed = false; // The store has reported that it has no lease and no ticket of this request.
                let (lock, waited) = (self.undo.name.clone(), BootInstant::now().after(self.started));
                let waited = if self.plan.strategy == Strategy::FailFast { Duration::ZERO } else { waited };
                Err(Error::Conflict { lock, conflict: Box::new(conflict), waited })
            }
        }
    }

    /// Polls a store without a queue, with growing pauses, until the lock is granted or the timeout is over.
    async fn ask_in_turns(&self) -> Result<Answer> {
        let poll = self.undo.inner.store.capabilities().poll;
        let backoff = Backoff { first: poll, longest: poll * 4, tries: u32::MAX };
        for again in 0.. {
            let left = self.patience_left();
            match (self.ask_once(None).await?, backoff.pause(again)) {
                (Answer::Busy(conflict), Some(pause)) if left > Duration::ZERO => {
                    self.tell(&conflict);
                    tokio::time::sleep(pause.min(left)).await;
                }
                (answer, _) => return Ok(answer),
            }
        }
        unreachable!("the pauses have no end")
    }

    /// Waits in the queue until the lock is granted. Polling guarantees progress; notifications
    /// only make it faster.
    async fn wait(&self) -> Result<Answer> {
        let mut changes = self.locks().changes(Some(&self.undo.name), &self.ask.lease_id);
        let mut asked = BootInstant::now();
        loop {
            let last = self.patience_left() == Duration::ZERO;
            // The last attempt takes no ticket: it acquires the lock or leaves the queue. The
            // ticket stays if a later request needs it: the caller's next one, or one with the same
            // id that has already been sent.
            let stays = !last || self.plan.keep_ticket || changes.is_superseded();
            let answer = self.ask_once(stays.then_some(self.ticket())).await?;
            match answer {
                Answer::Queued(queued) if !last => {
                    changes.note_ahead(queued.ahead);
                    self.tell(&queued.conflict);
                }
                answer => return Ok(answer),
            }
            if let Some(answer) = self.until_something_happens(&mut changes, asked).await? {
                return Ok(answer);
            }
            asked = BootInstant::now();
        }
    }

    /// Waits until another query of the store is worthwhile: the lock may have been granted, the
    /// ticket needs a refresh, a holder has died, or the timeout is over. Returns the lease if the
    /// releasing process delivered the grant directly.
    async fn until_something_happens(
        &self,
        changes: &mut WaiterSubscription,
        asked: BootInstant,
    ) -> Result<Option<Answer>> {
        let sign_of_life = asked.plus(self.ticket().as_duration() / 3);
        loop {
            let until_refresh = sign_of_life.after(BootInstant::now());
            match changes.next(self.patience_left().min(until_refresh)).await {
                Wakeup::Served(RemoteGrant { lease, since }) => {
                    let valid_until = since.plus(lease.expires_at.since(lease.acquired_at));
                    return Ok(Grant::in_time(lease, valid_until).map(Answer::Granted));
                }
                Wakeup::Rung => return Ok(self.look(asked).await.0),
                Wakeup::Poll => {}
            }
            if BootInstant::now() >= sign_of_life || self.patience_left() == Duration::ZERO {
                return Ok(None);
            }
            match self.look(asked).await {
                (None, false) => {}
                (found, _) => return Ok(found),
            }
        }
    }

    /// Reads the lock, which is cheaper than an operation. Returns the lease that was granted to
    /// the ticket; without one, returns whether another acquire is worthwhile.
    async fn look(&self, asked: BootInstant) -> (Option<Answer>, bool) {
        let Ok(peek) = self.locks().peek(&self.undo.name, &self.ask.lease_id).await else {
            return (None, true);
        };
        let is_due = peek.is_due();
        if let Some(lease) = peek.lease {
            // At the last acquire the request was still queued, so the lease began after that.
            let valid_until = asked.plus(lease.expires_at.since(lease.renewed_at));
            return (Grant::in_time(lease, valid_until).map(Answer::Granted), true);
        }
        (None, is_due)
    }

    fn ticket(&self) -> Ttl {
        let polls = self.undo.inner.store.capabilities().poll * TICKET_POLLS;
        Ttl::new(polls).map_or(TICKET, |polls| polls.max(TICKET))
    }

    fn patience_left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.after(BootInstant::now()))
    }

    fn tell(&self, conflict: &Conflict) {
        if let Some(on_wait) = &self.plan.on_wait {
            on_wait(&self.undo.name, conflict);
        }
    }

    /// Sends one acquire. A call that fails is repeated: with the same lease id it cannot acquire
    /// the lock twice.
    async fn ask_once(&self, queue: Option<Ttl>) -> Result<Answer> {
        let op =
            LockOp::Acquire(Acquire { ask: self.ask.clone(), queue, steal_after: self.plan.steal_after });
        let begun = BootInstant::now();
        let mut tries = 0;
        loop {
            let sent = BootInstant::now();
            let limit = self.time_for_a_try(begun, sent, tries);
            tries += 1;
            let asking = self.locks().apply(&self.undo.name, &op);
            let answer = self.undo.inner.keeper.within(limit, asking).await;
            match answer.unwrap_or_else(|| Err(self.no_answer(limit))) {
                Ok(Outcome::Granted(lease)) => {
                    let valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
                    if let Some(grant) = Grant::in_time(lease, valid_until) {
                        return Ok(Answer::Granted(grant));
                    }
                    let late = self.late.fetch_add(1, Ordering::Relaxed) + 1;
                    if late >= LATE_GRANTS || self.patience_left() == Duration::ZERO {
                        return Err(self.too_slow());
                    }
                }
                Ok(Outcome::Queued(queued)) => return Ok(Answer::Queued(queued)),
                Ok(Outcome::Conflict(conflict)) => return Ok(Answer::Busy(conflict)),
                Ok(other) => return Err(super::leasehold::unexpected(&self.undo.name, other)),
                Err(error) => match self.pause_after(&error, begun, tries) {
                    Some(pause) => {
                        tracing::debug!(lock = %self.undo.name, %error, "asking again");
                        tokio::time::sleep(pause).await;
                    }
                    None => return Err(error),
                },
            }
        }
    }

    /// Returns the maximum time to reach the store for a caller that does not wait for the lock.
    fn store_time(&self) -> Duration {
        STORE_TIME.max(self.undo.inner.store.capabilities().poll * STORE_POLLS)
    }

    /// Returns the maximum duration of one attempt after `tries` earlier ones.
    fn time_for_a_try(&self, begun: BootInstant, now: BootInstant, tries: u32) -> Duration {
        match self.plan.strategy {
            Strategy::Wait(None) => Duration::MAX,
            Strategy::Wait(Some(_)) => {
                let last = LAST_ASKING.max(self.undo.inner.store.capabilities().poll);
                self.patience_left().max(last)
            }
            _ if tries == 0 => self.store_time() + OWN_WORDS,
            _ => begun.plus(self.store_time()).after(now),
        }
    }

    /// Returns the pause before the next attempt; `None` if there must not be one.
    fn pause_after(&self, error: &Error, begun: BootInstant, tries: u32) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        if let Some(refused) = error.retry_after() {
            return self.pause_for(refused, begun);
        }
        let pause = Duration::from_millis(50 << tries.min(8));
        if matches!(self.plan.strategy, Strategy::Wait(_)) {
            let left = self.patience_left();
            // Random jitter of ±25 %: clients whose connections were refused together do not return together.
            let pause = pause.min(STORE_PAUSE).mul_f64(0.75 + 0.5 * fastrand::f64());
            return (left > Duration::ZERO).then_some(pause.min(left));
        }
        let left = begun.plus(self.store_time()).after(BootInstant::now());
        (tries < STORE_TRIES && pause < left).then_some(pause)
    }

    /// Returns the pause until a store that rejects every request accepts requests again; `None` if
    /// that is after the caller's timeout. An earlier attempt cannot succeed, so such a caller gets
    /// the error at once.
    fn pause_for(&self, refused: Duration, begun: BootInstant) -> Option<Duration> {
        let left = match self.plan.strategy {
            Strategy::Wait(_) => self.patience_left(),
            _ => begun.plus(self.store_time()).after(BootInstant::now()),
        };
        // Random delay: all clients of the service received the same time.
        let pause = refused + AFTER_REFUSAL.mul_f64(fastrand::f64());
        (refused < left).then_some(pause.min(left))
    }

    fn no_answer(&self, limit: Duration) -> Error {
        let (url, limit) = (self.undo.inner.store.url(), format_duration(limit));
        let message = format!("{url} did not answer within {limit}");
        Error::store(
            StoreErrorKind::Unavailable,
            message,
            "see whether the store is up, or wait longer for the lock",
        )
    }

    fn too_slow(&self) -> Error {
        let (url, ttl) = (self.undo.inner.store.url(), self.plan.ttl);
        let message = format!("{url} is too slow: its answers take longer than the ttl of {ttl}");
        Error::store(StoreErrorKind::Unavailable, message, "use a longer ttl")
    }

    fn locks(&self) -> &dyn crate::store::LockStore {
        self.undo.inner.locks()
    }
}

enum Answer {
    Granted(Grant),
    Queued(Queued),
    Busy(Conflict),
}

/// Withdraws a request, whether queued or granted, in the background when dropped.
struct Undo {
    inner: Arc<Inner>,
    name: LockName,
    lease_id: LeaseId,
    armed: bool,
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.armed {
            let (inner, name, lease_id) = (self.inner.clone(), self.name.clone(), self.lease_id);
            self.inner.keeper.spawn(async move {
                if let Err(error) = in_doubt::leave(inner.locks(), &name, lease_id).await {
                    tracing::debug!(lock = %name, %error, "a request was not taken back; it ends by its time");
                }
            });
        }
    }
}
