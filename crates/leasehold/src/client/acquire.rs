//! Asking for locks until they are ours or patience is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::guard::{Guard, Renewals};
use super::in_doubt;
use super::leasehold::Inner;
use super::strategy::{Backoff, Strategy};
use crate::error::{Error, Result, Trouble};
use crate::model::{
    Acquire, Ask, Conflict, Holder, Lease, LeaseId, LockName, LockOp, Metadata, Mode, Outcome, Priority,
    Process, Queued, Slots, Ttl, format_duration,
};
use crate::store::{Changes, HandedOver, Moment, Wake, clock};

/// What is asked for, the same for every lock of one request.
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
    /// The guard is lost after this time.
    pub(super) max_hold: Option<Ttl>,
    /// The id that the caller gave to its request, so that it can ask again.
    pub(super) lease_id: Option<LeaseId>,
    /// Whether the ticket stays when patience is over.
    pub(super) keep_place: bool,
    /// Told who is in the way, each time the store says so.
    pub(super) on_wait: Option<OnWait>,
}

/// Called with a lock that is waited for and what is in the way of it.
pub(super) type OnWait = Arc<dyn Fn(&LockName, &Conflict) + Send + Sync>;

/// A lease and how long this process may count on it.
pub(super) struct Taken {
    pub(super) name: LockName,
    pub(super) lease: Lease,
    pub(super) valid_until: Moment,
    /// When this process knew of it.
    pub(super) since: Moment,
}

impl Taken {
    /// Whether it lasts for less than its ttl, because a ticket has turned into it.
    pub(super) fn is_short(&self) -> bool {
        self.lease.expires_at.since(self.lease.renewed_at) < self.lease.ask.ttl.as_duration()
    }
}

/// How long a ticket lives without a word from its waiter: so long a dead one can delay those behind it.
const TICKET: Ttl = Ttl::from_secs(10);
/// It lives for at least so many polls: on a store far away each sign of life is dear.
const TICKET_POLLS: u32 = 8;
/// A store that does not answer is asked again so often, with the same lease id, by a caller that does not wait for the
/// lock. One that waits asks until its time is over.
const STORE_TRIES: u32 = 3;
/// All of these tries together take so long at most. A store far away, which is polled seldom, may take a few polls.
const STORE_TIME: Duration = Duration::from_secs(5);
const STORE_POLLS: u32 = 3;
/// A store knows better than this layer why it does not answer, and ends its calls in the same time: let it say so.
const OWN_WORDS: Duration = Duration::from_millis(250);
/// The last asking of a waiter takes so long at most after its time is over, or one poll if that is longer.
const LAST_ASKING: Duration = Duration::from_secs(1);
/// The longest pause between two tries of a waiter whose store does not answer.
const STORE_PAUSE: Duration = Duration::from_secs(2);
/// The first try after a store has refused requests comes so much later at most.
const AFTER_REFUSAL: Duration = Duration::from_millis(500);
/// So many leases that had ended when their answer came, and the caller is told that its ttl is too short.
const LATE_GRANTS: u32 = 3;
/// How long to wait for the release of what a lost attempt has left, before the next one begins.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// Takes all locks, or none. Each is renewed from its grant on, so that waiting for the next one does not lose it.
pub(super) async fn acquire_all(inner: Arc<Inner>, names: Vec<LockName>, plan: Plan) -> Result<Guard> {
    let started = Moment::now();
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
            Strategy::Wait(Some(_)) => deadline.is_some_and(|deadline| Moment::now() < deadline),
            Strategy::FailFast | Strategy::Retry(_) => tries < STORE_TRIES,
        };
        if let (false, Some(error)) = (again, why) {
            return Err(error);
        }
        // Else the next attempt would find its own lock held by this one.
        several.inner.keeper.within(GIVING_BACK, given_back).await;
    }
}

/// A request for one lock or several.
struct Several {
    inner: Arc<Inner>,
    names: Vec<LockName>,
    plan: Plan,
    started: Moment,
    deadline: Option<Moment>,
}

/// What became of one attempt to take all locks.
enum Attempt {
    Held(Guard),
    /// One was lost before the last was granted.
    Lost(Guard),
}

impl Several {
    /// On an error or a drop, what has been taken is released in the background.
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

/// One request for one lock. Whatever became of it, dropping it takes it back.
struct Request<'a> {
    plan: &'a Plan,
    started: Moment,
    deadline: Option<Moment>,
    ask: Arc<Ask>,
    /// How many leases had ended when their answer came.
    late: AtomicU32,
    undo: Undo,
}

/// A lease that is taken back when dropped, unless it is kept.
struct Granted {
    grant: Grant,
    undo: Undo,
}

/// A lease, until when it can be counted on, and since when that is known.
struct Grant {
    lease: Lease,
    valid_until: Moment,
    since: Moment,
}

impl Grant {
    /// None if the answer took longer than the lease lasts: that is no acquisition.
    fn in_time(lease: Lease, valid_until: Moment) -> Option<Self> {
        let since = Moment::now();
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
        started: Moment,
        deadline: Option<Moment>,
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
        // A request with an id of the caller's may be asked again while this one is being dropped: taking this one back
        // would take away what the other was given. It ends by its time.
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
            Strategy::Wait(_) if !self.undo.inner.store.abilities().queues => self.ask_in_turns().await?,
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
                self.undo.armed = false; // The store has said that there is nothing of ours.
                let (lock, waited) = (self.undo.name.clone(), Moment::now().after(self.started));
                let waited = if self.plan.strategy == Strategy::FailFast { Duration::ZERO } else { waited };
                Err(Error::Conflict { lock, conflict: Box::new(conflict), waited })
            }
        }
    }

    /// Asks again and again where there is no queue, each time after a longer while, until patience is over.
    async fn ask_in_turns(&self) -> Result<Answer> {
        let poll = self.undo.inner.store.abilities().poll;
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

    /// Stands in the queue until it is our turn. Polling is the contract, wake-ups make it quick.
    async fn wait(&self) -> Result<Answer> {
        let mut changes = self.locks().changes(Some(&self.undo.name), &self.ask.lease_id);
        let mut asked = Moment::now();
        loop {
            let last = self.patience_left() == Duration::ZERO;
            // The last asking draws no ticket: it takes what is there or leaves the queue. Unless somebody is to find
            // the place again: this caller at its next asking, or one who asks with the same id already.
            let stays = !last || self.plan.keep_place || changes.is_superseded();
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
            asked = Moment::now();
        }
    }

    /// Ends when it is worth asking the store again: it may be our turn, the ticket wants a sign of life, somebody in
    /// the way is gone, or patience is over. Gives the lease if whoever served us told us directly.
    async fn until_something_happens(&self, changes: &mut Changes, asked: Moment) -> Result<Option<Answer>> {
        let sign_of_life = asked.plus(self.ticket().as_duration() / 3);
        loop {
            let until_refresh = sign_of_life.after(Moment::now());
            match changes.next(self.patience_left().min(until_refresh)).await {
                Wake::Served(HandedOver { lease, since }) => {
                    let valid_until = since.plus(lease.expires_at.since(lease.acquired_at));
                    return Ok(Grant::in_time(lease, valid_until).map(Answer::Granted));
                }
                Wake::Rung => return Ok(self.look(asked).await.0),
                Wake::Poll => {}
            }
            if Moment::now() >= sign_of_life || self.patience_left() == Duration::ZERO {
                return Ok(None);
            }
            match self.look(asked).await {
                (None, false) => {}
                (found, _) => return Ok(found),
            }
        }
    }

    /// Looks at the lock, which is cheaper than an operation. Gives the lease that our ticket has turned into; if it has
    /// not, says whether it is worth asking.
    async fn look(&self, asked: Moment) -> (Option<Answer>, bool) {
        let Ok(peek) = self.locks().peek(&self.undo.name, &self.ask.lease_id).await else {
            return (None, true);
        };
        let is_due = peek.is_due();
        if let Some(lease) = peek.lease {
            // When we asked last, we were still in the queue: the lease has begun after that.
            let valid_until = asked.plus(lease.expires_at.since(lease.renewed_at));
            return (Grant::in_time(lease, valid_until).map(Answer::Granted), true);
        }
        (None, is_due)
    }

    fn ticket(&self) -> Ttl {
        let polls = self.undo.inner.store.abilities().poll * TICKET_POLLS;
        Ttl::new(polls).map_or(TICKET, |polls| polls.max(TICKET))
    }

    fn patience_left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.after(Moment::now()))
    }

    fn tell(&self, conflict: &Conflict) {
        if let Some(on_wait) = &self.plan.on_wait {
            on_wait(&self.undo.name, conflict);
        }
    }

    /// One asking. A store that fails is asked again: with the same lease id that cannot take the lock twice.
    async fn ask_once(&self, queue: Option<Ttl>) -> Result<Answer> {
        let op =
            LockOp::Acquire(Acquire { ask: self.ask.clone(), queue, steal_after: self.plan.steal_after });
        let begun = Moment::now();
        let mut tries = 0;
        loop {
            let sent = Moment::now();
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
                Ok(Outcome::Busy(conflict)) => return Ok(Answer::Busy(conflict)),
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

    /// How long a caller that does not wait for the lock tries to reach the store.
    fn store_time(&self) -> Duration {
        STORE_TIME.max(self.undo.inner.store.abilities().poll * STORE_POLLS)
    }

    /// How long one try may take, if `tries` have been made before.
    fn time_for_a_try(&self, begun: Moment, now: Moment, tries: u32) -> Duration {
        match self.plan.strategy {
            Strategy::Wait(None) => Duration::MAX,
            Strategy::Wait(Some(_)) => {
                let last = LAST_ASKING.max(self.undo.inner.store.abilities().poll);
                self.patience_left().max(last)
            }
            _ if tries == 0 => self.store_time() + OWN_WORDS,
            _ => begun.plus(self.store_time()).after(now),
        }
    }

    /// The pause before the next try, if there is to be one.
    fn pause_after(&self, error: &Error, begun: Moment, tries: u32) -> Option<Duration> {
        if !error.is_retryable() {
            return None;
        }
        if let Some(refused) = error.retry_after() {
            return self.pause_for(refused, begun);
        }
        let pause = Duration::from_millis(50 << tries.min(8));
        if matches!(self.plan.strategy, Strategy::Wait(_)) {
            let left = self.patience_left();
            // A quarter longer or shorter by chance: those whose connection was refused do not come back together.
            let pause = pause.min(STORE_PAUSE).mul_f64(0.75 + 0.5 * fastrand::f64());
            return (left > Duration::ZERO).then_some(pause.min(left));
        }
        let left = begun.plus(self.store_time()).after(Moment::now());
        (tries < STORE_TRIES && pause < left).then_some(pause)
    }

    /// The pause until a store that refuses every request accepts them again, if the caller has the time. An earlier try is in
    /// vain, so that one that has not the time gets the error at once.
    fn pause_for(&self, refused: Duration, begun: Moment) -> Option<Duration> {
        let left = match self.plan.strategy {
            Strategy::Wait(_) => self.patience_left(),
            _ => begun.plus(self.store_time()).after(Moment::now()),
        };
        // A little later by chance: all clients of the service were told the same time.
        let pause = refused + AFTER_REFUSAL.mul_f64(fastrand::f64());
        (refused < left).then_some(pause.min(left))
    }

    fn no_answer(&self, limit: Duration) -> Error {
        let (url, limit) = (self.undo.inner.store.url(), format_duration(limit));
        let message = format!("{url} did not answer within {limit}");
        Error::store(
            Trouble::Unavailable,
            message,
            "see whether the store is up, or wait longer for the lock",
        )
    }

    fn too_slow(&self) -> Error {
        let (url, ttl) = (self.undo.inner.store.url(), self.plan.ttl);
        let message = format!("{url} is too slow: its answers take longer than the ttl of {ttl}");
        Error::store(Trouble::Unavailable, message, "use a longer ttl")
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

/// Takes a request back in the background when dropped: ticket or lease, whatever became of it.
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
