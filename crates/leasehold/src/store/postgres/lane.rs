//! Ordering and batching of operations on a connection.
//!
//! A lane is one connection. While an operation on a lock is in flight, the next one takes the same
//! lane, so that an operation that its caller dropped is done before the next one. A caller that
//! finds its lane idle uses the connection directly. Operations that arrive while the lane is in
//! use are executed together afterwards: one statement and one commit for any number of locks.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::gate::Gate;
use super::general::{self, Done, Patience, Word};
use super::idle::UNUSED;
use super::native;
use super::queue;
use super::session::{STEP, Session, within};
use super::switchboard::{Bound, Shape, Switchboard};
use super::trouble::{Again, Fail, is_in_the_way, is_stuck, may_try_again};
use crate::error::{Error, Result};
use crate::model::{Acquire, LockName, LockOp, Outcome, Token};
use crate::store::BootInstant;
use crate::store::wake::Waiters;

/// Maximum number of operations in one statement.
const MAX_BATCH: usize = 128;
/// Maximum time to wait for further calls of callers that have just been answered.
const LINGER: Duration = Duration::from_micros(500);

/// Extra time to wait for the answer to a statement whose caller has given up.
const LAST_MOMENT: Duration = Duration::from_millis(200);

/// One connection and its queue of operations.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) gate: Arc<Gate>,
    board: Arc<Switchboard>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Whether the connection is in use. The user that ends this must then serve the queue.
    busy: bool,
    queue: VecDeque<Job>,
    session: Option<Arc<Session>>,
    /// Locks whose rows another session has locked, and the pending operations on them.
    pub(super) aside: HashMap<LockName, VecDeque<Job>>,
}

/// Progress of an operation before it is given to a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SoFar {
    Nothing,
    /// The fast path could not decide the operation.
    LeftToTheRules,
}

#[derive(Debug)]
pub(super) struct Job {
    /// Lock of the operation; marks the operation as in flight.
    pub(super) bound: Bound,
    pub(super) op: LockOp,
    /// Time before the store could have granted anything: a handed-over lease is counted from it.
    since: BootInstant,
    /// Whether the fast path could not decide the operation.
    for_the_rules: bool,
    tried: bool,
    reply: oneshot::Sender<Result<Outcome>>,
}

impl Lane {
    pub(super) fn new(gate: Arc<Gate>, board: Arc<Switchboard>) -> Arc<Self> {
        Arc::new(Self { gate, board, state: Mutex::default() })
    }

    /// Applies one operation. The caller must bound the time that this takes.
    pub(super) async fn apply(self: &Arc<Self>, bound: Bound, op: &LockOp, so_far: SoFar) -> Result<Outcome> {
        let (reply, answer) = oneshot::channel();
        let (op, since) = (op.clone(), BootInstant::now());
        let for_the_rules = so_far == SoFar::LeftToTheRules;
        let job = Job { bound, op, since, for_the_rules, tried: false, reply };
        if let Some(mut turn) = self.enter(job) {
            let done = turn.statement().await;
            let Some(mut job) = turn.job.take() else {
                return Err(Fail::Late.explain(&self.gate.place));
            };
            match done {
                Ok(Some(outcome)) => {
                    // The lane must be free before the switchboard counts it as such.
                    drop(turn);
                    drop(job);
                    return Ok(outcome);
                }
                Ok(None) => job.for_the_rules = true,
                Err(Fail::Said(error)) if is_stuck(&error) => {
                    drop(turn);
                    self.set_aside(job);
                    return self.answered(answer).await;
                }
                Err(fail) => {
                    self.part_from(&turn.session, &fail);
                    if job.tried || !may_try_again(&job.op, &fail) {
                        return Err(fail.explain(&self.gate.place));
                    }
                    job.tried = true;
                }
            }
            self.state().queue.push_front(job);
        }
        self.answered(answer).await
    }

    async fn answered(&self, answer: oneshot::Receiver<Result<Outcome>>) -> Result<Outcome> {
        answer.await.unwrap_or_else(|_| Err(Fail::Late.explain(&self.gate.place)))
    }

    /// Takes the lane for one statement if the lane is idle and one fast-path statement suffices;
    /// otherwise queues the job.
    fn enter(self: &Arc<Self>, job: Job) -> Option<Turn> {
        let plain = !job.for_the_rules
            && native::is_hot(&job.op)
            && self.board.shape(&job.bound.name) == Shape::Plain;
        let mut state = self.state();
        if state.aside.contains_key(&job.bound.name) {
            drop(state);
            self.set_aside(job);
            return None;
        }
        if state.busy {
            state.queue.push_back(job);
            return None;
        }
        state.busy = true;
        let plain = plain && self.gate.abandoned.is_empty();
        match state.session.clone().filter(|session| plain && !session.is_closed()) {
            Some(session) => Some(Turn { lane: self.clone(), session, job: Some(job) }),
            None => {
                state.queue.push_back(job);
                drop(state);
                self.pass_on();
                None
            }
        }
    }

    /// Hands the lane to the queued jobs, or marks the lane as idle.
    fn pass_on(self: &Arc<Self>) {
        let mut state = self.state();
        if state.queue.is_empty() {
            state.busy = false;
        } else {
            self.gate.home().spawn(self.clone().run());
        }
    }

    /// Executes queued jobs until none is left.
    async fn run(self: Arc<Self>) {
        loop {
            let jobs = {
                let mut state = self.state();
                let count = state.queue.len().min(MAX_BATCH);
                if count == 0 {
                    state.busy = false;
                    return;
                }
                state.queue.drain(..count).collect::<Vec<_>>()
            };
            let (count, begun) = (jobs.len(), BootInstant::now());
            self.work(jobs).await;
            if count > 1 {
                self.linger(count, BootInstant::now().after(begun)).await;
            }
        }
    }

    /// Waits for further calls. Callers that were answered in one batch tend to issue their next
    /// call at the same time. The first of these would get a statement and a commit of its own, for
    /// which the others would wait. A delay of up to 1/8 of the last batch's duration, at most
    /// [`LINGER`], lets them share one statement.
    async fn linger(&self, answered: usize, took: Duration) {
        let until = BootInstant::now().plus((took / 8).min(LINGER));
        let all = answered + self.state().queue.len();
        while self.state().queue.len() < all.min(MAX_BATCH) && BootInstant::now() < until {
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }

    async fn work(self: &Arc<Self>, jobs: Vec<Job>) {
        let session = match self.session().await {
            Ok(session) => session,
            Err(fail) => {
                let error = fail.explain(&self.gate.place);
                for job in jobs {
                    job.answer(Err(error.clone()));
                }
                return;
            }
        };
        // Nothing has been sent yet, so operations whose caller no longer waits are dropped.
        let jobs = jobs.into_iter().filter(Job::is_wanted).collect::<Vec<_>>();
        let jobs = self.without_those_aside(jobs);
        let Sorted { mut hot, mut for_the_rules } = self.sort(jobs);
        hot.sort_by(|one, two| one.bound.name.cmp(&two.bound.name));
        let mut outcomes = within(STEP, native::many(&session, &self.gate, &ops_of(&hot))).await;
        if let Err(Fail::Said(error)) = &outcomes
            && is_stuck(error)
        {
            // One of the rows is locked, and no operation was executed: retry without the locked
            // rows.
            hot = self.set_aside_the_stuck(&session, hot).await;
            outcomes = within(STEP, native::many(&session, &self.gate, &ops_of(&hot))).await;
        }
        for_the_rules.extend(self.deliver(&session, hot, outcomes).into_iter().map(|job| vec![job]));
        for jobs in for_the_rules {
            self.on_one_lock(jobs).await;
        }
    }

    /// Selects one operation for each lock that SQL can decide about, and all operations of each
    /// other lock. The remaining operations are queued again.
    fn sort(&self, jobs: Vec<Job>) -> Sorted {
        let (mut sorted, mut later) = (Sorted::default(), Vec::new());
        let mut places: HashMap<LockName, Option<usize>> = HashMap::new();
        for job in jobs {
            match places.get(&job.bound.name) {
                Some(Some(place)) => sorted.for_the_rules[*place].push(job),
                Some(None) => later.push(job),
                None if job.for_the_rules
                    || !native::is_hot(&job.op)
                    || self.board.shape(&job.bound.name) != Shape::Plain =>
                {
                    places.insert(job.bound.name.clone(), Some(sorted.for_the_rules.len()));
                    sorted.for_the_rules.push(vec![job]);
                }
                None => {
                    places.insert(job.bound.name.clone(), None);
                    sorted.hot.push(job);
                }
            }
        }
        let mut state = self.state();
        later.into_iter().rev().for_each(|job| state.queue.push_front(job));
        sorted
    }

    /// Answers the jobs that SQL has decided, and returns those that it could not decide.
    fn deliver(
        &self,
        session: &Arc<Session>,
        jobs: Vec<Job>,
        outcomes: Result<Vec<Option<Outcome>>, Fail>,
    ) -> Vec<Job> {
        let mut left = Vec::new();
        match outcomes {
            Ok(outcomes) => {
                for (mut job, outcome) in jobs.into_iter().zip(outcomes) {
                    match outcome {
                        Some(outcome) => job.answer(Ok(outcome)),
                        None => {
                            job.for_the_rules = true;
                            left.push(job);
                        }
                    }
                }
            }
            // One of the rows is locked or conflicts, and no operation was executed: execute each
            // one separately.
            Err(Fail::Said(error)) if is_stuck(&error) || jobs.len() > 1 && is_in_the_way(&error) => {
                left = jobs;
            }
            Err(fail) => self.fail(session, jobs, fail),
        }
        left
    }

    /// Executes operations on one lock whose layout is not simple, in order.
    async fn on_one_lock(self: &Arc<Self>, mut jobs: Vec<Job>) {
        let (Some(name), session) = (jobs.first().map(|job| job.bound.name.clone()), self.session().await)
        else {
            return;
        };
        let session = match session {
            Ok(session) => session,
            Err(fail) => {
                let error = fail.explain(&self.gate.place);
                return jobs.into_iter().for_each(|job| job.answer(Err(error.clone())));
            }
        };
        if self.board.shape(&name) == Shape::Long {
            jobs = self.refresh(&session, &name, jobs).await;
        } else if self.board.shape(&name) != Shape::Other && queue::fits(jobs.iter().map(|job| &job.op)) {
            jobs = self.in_the_queue(&session, &name, jobs).await;
        }
        if !jobs.is_empty() {
            self.by_the_rules(&session, &name, jobs, Patience::Short).await;
        }
    }

    /// Executes what SQL can decide about a simple queue, and returns the jobs that it could not
    /// decide.
    async fn in_the_queue(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &LockName,
        jobs: Vec<Job>,
    ) -> Vec<Job> {
        let jobs = in_steps(jobs);
        let steps: Vec<_> =
            jobs.iter().map(|jobs| queue::Step::new(jobs.iter().map(|job| &job.op))).collect();
        let tells = self.board.serves_others(name);
        let done = match within(STEP, queue::apply(session, &self.gate, name, &steps, tells)).await {
            Ok(done) => done,
            Err(fail) => {
                self.fail(session, jobs.into_iter().flatten().collect(), fail);
                return Vec::new();
            }
        };
        let (mut left, mut words) = (Vec::new(), done.words);
        for (jobs, done) in jobs.into_iter().zip(done.steps) {
            match done {
                Ok(done) if done.is_empty() => left.extend(jobs),
                Ok(done) => {
                    for (job, queue::Done { outcome, handed_over, token, shape }) in
                        jobs.into_iter().zip(done)
                    {
                        self.board.remember(name, shape);
                        if let Some(lease) = handed_over {
                            let elsewhere = self.gate.waiters.wake_here(name, vec![lease], job.since);
                            self.board.remember_served(name, !elsewhere.is_empty());
                            if !tells {
                                words.extend(general::word(session, &self.gate, name, elsewhere.iter()));
                            }
                        }
                        job.answer_at(self.gate.waiters, outcome, token);
                    }
                }
                Err(Fail::Said(error)) if is_stuck(&error) => {
                    for job in jobs {
                        self.set_aside(job);
                    }
                }
                Err(fail) => self.fail(session, jobs, fail),
            }
        }
        for word in words {
            if let Err(fail) = within(STEP, word).await {
                self.part_from(session, &fail);
            }
        }
        left
    }

    /// Slow path: executes operations on one lock, in order and atomically.
    pub(super) async fn by_the_rules(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &LockName,
        mut jobs: Vec<Job>,
        patience: Patience,
    ) {
        let ops: Vec<_> = jobs.iter().map(|job| &job.op).collect();
        match within(STEP, general::apply(session, &self.gate, name, &ops, patience)).await {
            Ok(Some(Done { answers, token, shape, is_open, word })) => {
                self.board.remember(name, shape);
                for (job, (outcome, handed_over)) in jobs.into_iter().zip(answers) {
                    self.gate.waiters.wake_here(name, handed_over, job.since);
                    job.answer_at(self.gate.waiters, outcome, token);
                }
                if let Err(fail) = within(STEP, afterwards(session, is_open, word)).await {
                    self.part_from(session, &fail);
                }
            }
            Ok(None) => {
                self.board.remember(name, Shape::Plain);
                // The first operation creates the lock; the others follow.
                let mut others = jobs.split_off(1);
                let Some(mut first) = jobs.pop() else { return };
                session.forget_clock();
                match within(STEP, native::one(session, &self.gate, name, &first.op)).await {
                    Ok(Some(outcome)) => first.answer(Ok(outcome)),
                    Ok(None) => {
                        // Another session has created the lock meanwhile.
                        first.for_the_rules = true;
                        others.insert(0, first);
                    }
                    Err(Fail::Said(error)) if is_stuck(&error) => {
                        first.for_the_rules = true;
                        others.insert(0, first);
                    }
                    Err(fail) => self.fail(session, vec![first], fail),
                }
                self.requeue(others);
            }
            Err(Fail::Said(error)) if is_stuck(&error) && patience == Patience::Short => {
                let ended = within(STEP, async { Ok(session.say("ROLLBACK").await?) }).await;
                if let Err(fail) = ended {
                    self.part_from(session, &fail);
                }
                for job in jobs {
                    self.set_aside(job);
                }
            }
            Err(fail) => {
                // After any error a transaction may be open.
                self.forget(session);
                self.fail(session, jobs, fail);
            }
        }
    }

    /// Puts these jobs, in this order, at the front of the queue that serves their lock.
    fn requeue(&self, jobs: Vec<Job>) {
        let mut state = self.state();
        for job in jobs.into_iter().rev() {
            match state.aside.get_mut(&job.bound.name) {
                Some(aside) => aside.push_front(job),
                None => state.queue.push_front(job),
            }
        }
    }

    /// Retries, once, the jobs that may be retried; answers the others with the error.
    pub(super) fn fail(&self, session: &Arc<Session>, jobs: Vec<Job>, fail: Fail) {
        self.part_from(session, &fail);
        let (again, over): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| !job.tried && may_try_again(&job.op, &fail));
        self.requeue(again.into_iter().map(|job| Job { tried: true, ..job }).collect());
        let error: Error = fail.explain(&self.gate.place);
        for job in over {
            job.answer(Err(error.clone()));
        }
    }

    /// Returns the connection to the pool if it has been unused for [`UNUSED`]. Returns the number
    /// of connections that the lane still has, 0 or 1.
    pub(super) fn lay_down_unused(&self, now: BootInstant) -> usize {
        let mut state = self.state();
        let unused = |session: &Arc<Session>| session.unused_for(now) >= UNUSED;
        if !state.busy && state.session.as_ref().is_some_and(unused) {
            state.session.take().into_iter().for_each(|session| self.gate.keep(session));
        }
        usize::from(state.session.is_some())
    }

    /// Returns the connection; opens one if necessary.
    async fn session(&self) -> Result<Arc<Session>, Fail> {
        let open = self.state().session.clone().filter(|session| !session.is_closed());
        let session = match open {
            Some(session) => session,
            None => {
                let session = self.gate.open().await?;
                self.state().session = Some(session.clone());
                session
            }
        };
        // An abandoned statement must not take effect after the statements that follow.
        let ended = within(STEP, self.gate.abandoned.end_all(session.client())).await;
        ended.inspect_err(|fail| self.part_from(&session, fail))?;
        Ok(session)
    }

    /// Gives the connection up if it is unusable after this error.
    pub(super) fn part_from(&self, session: &Arc<Session>, fail: &Fail) {
        self.gate.learn(fail);
        match fail {
            Fail::Late => {
                // The statement may still run, and must not take effect because no caller waits for
                // its answer.
                self.gate.cancel(session);
                self.gate.abandoned.add(session.backend());
                self.forget(session);
            }
            _ if fail.again() != Again::Never => {
                if fail.again() == Again::Perhaps {
                    self.gate.abandoned.add(session.backend());
                }
                self.forget(session);
            }
            _ => {}
        }
    }

    fn forget(&self, session: &Arc<Session>) {
        let mut state = self.state();
        if state.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            state.session = None;
        }
        session.give_up();
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does the work that the caller need not wait for: ends a transaction without writes, and notifies
/// waiters of other processes.
async fn afterwards(session: &Session, is_open: bool, word: Option<Word>) -> Result<(), Fail> {
    if is_open {
        session.say("ROLLBACK").await?;
    }
    match word {
        Some(word) => word.await,
        None => Ok(()),
    }
}

/// Returns the operations of a batch.
fn ops_of(jobs: &[Job]) -> Vec<(&LockName, &LockOp)> {
    jobs.iter().map(|job| (&job.bound.name, &job.op)).collect()
}

/// Groups the operations by statement. Releases come first, because waiters depend on them and none
/// depends on a join; the first release and the first join share one statement.
fn in_steps(mut jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let comes = |job: &Job| !matches!(job.op, LockOp::Release(_));
    jobs.sort_by_key(comes);
    let first = jobs.iter().position(comes).filter(|place| *place > 0).map(|place| jobs.remove(place));
    let mut steps: Vec<_> = jobs.into_iter().map(|job| vec![job]).collect();
    if let Some(step) = steps.first_mut() {
        step.extend(first);
    }
    steps
}

/// Jobs by the path that they take.
#[derive(Default)]
struct Sorted {
    hot: Vec<Job>,
    /// Slow-path jobs, grouped by lock.
    for_the_rules: Vec<Vec<Job>>,
}

impl Job {
    /// Whether the caller still waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    /// Answers the caller. A caller that no longer waits must act as if the answer was lost.
    pub(super) fn answer(self, outcome: Result<Outcome>) {
        let _ = self.reply.send(outcome);
    }

    /// Answers the caller, and registers a queued request with the lock's newest token: the lease
    /// of that request will have a higher token.
    pub(super) fn answer_at(self, waiters: Waiters, outcome: Outcome, token: Token) {
        if let (Outcome::Queued(_), LockOp::Acquire(Acquire { ask, .. })) = (&outcome, &self.op) {
            waiters.asks(&self.bound.name, &ask.lease_id, token.get(), self.since);
        }
        self.answer(Ok(outcome));
    }
}

/// Exclusive use of the lane for one statement. Dropping it, in whatever way, serves the queue.
struct Turn {
    lane: Arc<Lane>,
    session: Arc<Session>,
    /// Taken when the statement is done.
    job: Option<Job>,
}

impl Turn {
    async fn statement(&self) -> Result<Option<Outcome>, Fail> {
        match &self.job {
            Some(job) => native::one(&self.session, &self.lane.gate, &job.bound.name, &job.op).await,
            None => Ok(None),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let lane = self.lane.clone();
        match self.job.take() {
            None => lane.pass_on(),
            // The caller was dropped while its statement is in flight. The server answers in order:
            // the answer to this query implies that the statement is done. Until then the lock
            // stays bound to this lane.
            Some(job) => {
                let session = self.session.clone();
                self.lane.gate.home().spawn(async move {
                    let left = job.since.plus(STEP).after(BootInstant::now()) + LAST_MOMENT;
                    let waited = within(left, async { Ok(session.say("").await?) }).await;
                    if let Err(fail) = waited {
                        lane.part_from(&session, &fail);
                    }
                    drop(job);
                    lane.pass_on();
                });
            }
        }
    }
}
