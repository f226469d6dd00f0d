//! Asking for locks until they are ours or patience is over.

use std::sync::Arc;
use std::time::Duration;

use super::guard::Guard;
use super::leasehold::Inner;
use super::strategy::{Backoff, Strategy};
use crate::error::{Error, Result};
use crate::model::{
    Acquire, Ask, Conflict, Holder, Lease, LeaseId, Leave, LockName, LockOp, Metadata, Mode, Outcome,
    Priority, Process, Slots, Ttl,
};
use crate::store::{Changes, HandedOver, LockState, Moment, Wake, clock};

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
    /// The id that the caller gave to its request, so that it can ask again.
    pub(super) lease_id: Option<LeaseId>,
    /// Whether the ticket stays when patience is over.
    pub(super) keep_place: bool,
}

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
/// A store that does not answer is asked again so often, with the same lease id, before the caller is told.
const STORE_TRIES: u32 = 3;

/// Takes all locks, or none.
pub(super) async fn acquire_all(inner: Arc<Inner>, names: Vec<LockName>, plan: Plan) -> Result<Guard> {
    let started = Moment::now();
    let deadline = match plan.strategy {
        Strategy::Wait(Some(patience)) => Some(started.plus(patience)),
        _ => None,
    };
    let mut taken = Vec::with_capacity(names.len());
    for name in names {
        let ask = Request::new(&inner, name, &plan, started, deadline);
        // On an error or a drop, the requests in `taken` take themselves back.
        taken.push(ask.acquire().await?);
    }
    let taken = taken.into_iter().map(Granted::keep).collect();
    Ok(Guard::new(inner, taken, plan.renew_at))
}

/// One request for one lock. Whatever became of it, dropping it takes it back.
struct Request<'a> {
    plan: &'a Plan,
    started: Moment,
    deadline: Option<Moment>,
    ask: Arc<Ask>,
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
        Self { plan, started, deadline, ask: Arc::new(ask), undo }
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
            Answer::Granted(grant) => Ok(Granted { grant, undo: self.undo }),
            Answer::Busy(conflict) | Answer::Queued(conflict) => {
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
                (Answer::Busy(_), Some(pause)) if left > Duration::ZERO => {
                    tokio::time::sleep(pause.min(left)).await;
                }
                (answer, _) => return Ok(answer),
            }
        }
        unreachable!("the pauses have no end")
    }

    /// Stands in the queue until it is our turn. Polling is the contract, wake-ups make it quick.
    async fn wait(&self) -> Result<Answer> {
        let mut changes = self.locks().changes(&self.ask.lease_id);
        let mut asked = Moment::now();
        loop {
            let last = self.patience_left() == Duration::ZERO;
            // The last asking draws no ticket: it takes what is there or leaves the queue. Unless somebody is to find
            // the place again: this caller at its next asking, or one who asks with the same id already.
            let stays = !last || self.plan.keep_place || changes.is_superseded();
            let answer = self.ask_once(stays.then_some(self.ticket())).await?;
            match answer {
                Answer::Queued(_) if !last => {}
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
            match changes.next(self.patience_left()).await {
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
        let Ok(Some(record)) = self.locks().get(&self.undo.name).await else {
            return (None, true);
        };
        if let Some(lease) = record.lease(&self.ask.lease_id) {
            // When we asked last, we were still in the queue: the lease has begun after that.
            let valid_until = asked.plus(lease.expires_at.since(lease.renewed_at));
            return (Grant::in_time(lease.clone(), valid_until).map(Answer::Granted), true);
        }
        let Ok(now) = self.locks().now().await else {
            return (None, true);
        };
        let ended = record.next_end().is_none_or(|end| end <= now);
        (None, ended || LockState::Stale.matches(&record, now))
    }

    fn ticket(&self) -> Ttl {
        let polls = self.undo.inner.store.abilities().poll * TICKET_POLLS;
        Ttl::new(polls).map_or(TICKET, |polls| polls.max(TICKET))
    }

    fn patience_left(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |deadline| deadline.after(Moment::now()))
    }

    /// One asking. A store that fails is asked again: with the same lease id that cannot take the lock twice.
    async fn ask_once(&self, queue: Option<Ttl>) -> Result<Answer> {
        let op =
            LockOp::Acquire(Acquire { ask: self.ask.clone(), queue, steal_after: self.plan.steal_after });
        let mut tries = 0;
        loop {
            let sent = Moment::now();
            tries += 1;
            match self.locks().apply(&self.undo.name, &op).await {
                Ok(Outcome::Granted(lease)) => {
                    let valid_until = sent.plus(lease.expires_at.since(lease.renewed_at));
                    if let Some(grant) = Grant::in_time(lease, valid_until) {
                        return Ok(Answer::Granted(grant));
                    }
                }
                Ok(Outcome::Queued(queued)) => return Ok(Answer::Queued(queued.conflict)),
                Ok(Outcome::Busy(conflict)) => return Ok(Answer::Busy(conflict)),
                Ok(other) => return Err(super::leasehold::unexpected(&self.undo.name, other)),
                Err(error) if error.is_retryable() && tries < STORE_TRIES => {
                    tracing::debug!(lock = %self.undo.name, %error, "asking again");
                    tokio::time::sleep(Duration::from_millis(50 << tries)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn locks(&self) -> &dyn crate::store::LockStore {
        self.undo.inner.locks()
    }
}

enum Answer {
    Granted(Grant),
    Queued(Conflict),
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
                let op = LockOp::Leave(Leave { lease_id });
                for tries in 0..STORE_TRIES {
                    match inner.locks().apply(&name, &op).await {
                        Err(error) if error.is_retryable() => {
                            tokio::time::sleep(Duration::from_millis(100 << tries)).await;
                        }
                        _ => break, // Gone, or beyond our power: it ends by its time.
                    }
                }
            });
        }
    }
}
