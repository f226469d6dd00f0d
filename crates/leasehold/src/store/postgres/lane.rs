//! How operations get to a connection, in order, and many at a time.
//!
//! A lane is one connection. As long as an operation on a lock is under way, the next one takes the same lane, so that one
//! which was dropped by its caller is done before the next. Whoever finds its lane idle uses it on the spot. What arrives
//! while it is in use is done together next: one statement and one commit for as many locks as there are.

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
use super::trouble::{Again, Fail, is_in_the_way, is_stuck};
use crate::error::{Error, Result};
use crate::model::{Acquire, LockName, LockOp, Outcome, Token};
use crate::store::Moment;
use crate::store::wake::Waiters;

/// So many operations go into one statement at most.
const MAX_BATCH: usize = 128;
/// Those who have just been answered are not waited for any longer than this.
const LINGER: Duration = Duration::from_micros(500);

/// The answer to a statement whose caller has given up is waited for this much longer.
const LAST_MOMENT: Duration = Duration::from_millis(200);

/// One connection and those who use it.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) gate: Arc<Gate>,
    board: Arc<Switchboard>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Whether somebody uses the connection. Whoever ends that looks at the queue.
    busy: bool,
    queue: VecDeque<Job>,
    session: Option<Arc<Session>>,
    /// Locks whose rows somebody else has locked, and what is asked of them.
    pub(super) aside: HashMap<LockName, VecDeque<Job>>,
}

/// What has become of an operation before it comes to a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SoFar {
    Nothing,
    /// SQL could not decide.
    LeftToTheRules,
}

#[derive(Debug)]
pub(super) struct Job {
    /// The lock, and that it is under way.
    pub(super) bound: Bound,
    pub(super) op: LockOp,
    /// Before the store could have granted anything: what a handed-over lease is counted from.
    since: Moment,
    /// SQL could not decide.
    for_the_rules: bool,
    tried: bool,
    reply: oneshot::Sender<Result<Outcome>>,
}

impl Lane {
    pub(super) fn new(gate: Arc<Gate>, board: Arc<Switchboard>) -> Arc<Self> {
        Arc::new(Self { gate, board, state: Mutex::default() })
    }

    /// Applies one operation. Whoever calls this bounds the time that it takes.
    pub(super) async fn apply(self: &Arc<Self>, bound: Bound, op: &LockOp, so_far: SoFar) -> Result<Outcome> {
        let (reply, answer) = oneshot::channel();
        let (op, since) = (op.clone(), Moment::now());
        let for_the_rules = so_far == SoFar::LeftToTheRules;
        let job = Job { bound, op, since, for_the_rules, tried: false, reply };
        if let Some(mut turn) = self.enter(job) {
            let done = turn.statement().await;
            let Some(mut job) = turn.job.take() else {
                return Err(Fail::Late.explain(&self.gate.place));
            };
            match done {
                Ok(Some(outcome)) => {
                    // First the lane is free, then it looks so.
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

    /// Takes the lane for one statement, if it is idle and a statement is all it takes; else the job waits.
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

    /// Gives the lane to those who wait, if anybody does.
    fn pass_on(self: &Arc<Self>) {
        let mut state = self.state();
        if state.queue.is_empty() {
            state.busy = false;
        } else {
            self.gate.home().spawn(self.clone().run());
        }
    }

    /// Does what is waiting, until nothing is.
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
            let (count, begun) = (jobs.len(), Moment::now());
            self.work(jobs).await;
            if count > 1 {
                self.linger(count, Moment::now().after(begun)).await;
            }
        }
    }

    /// Those who have been answered together mostly come back together. Whoever is first would have a statement and a
    /// commit for itself, and the others would wait for it: a moment's patience, short beside what the last ones took,
    /// keeps them together.
    async fn linger(&self, answered: usize, took: Duration) {
        let until = Moment::now().plus((took / 8).min(LINGER));
        let all = answered + self.state().queue.len();
        while self.state().queue.len() < all.min(MAX_BATCH) && Moment::now() < until {
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
        // A caller that has gone away takes its operation with it, if nothing was sent yet.
        let jobs = jobs.into_iter().filter(Job::is_wanted).collect::<Vec<_>>();
        let jobs = self.without_those_aside(jobs);
        let Sorted { mut hot, mut for_the_rules } = self.sort(jobs);
        hot.sort_by(|one, two| one.bound.name.cmp(&two.bound.name));
        let mut outcomes = within(STEP, native::many(&session, &self.gate, &ops_of(&hot))).await;
        if let Err(Fail::Said(error)) = &outcomes
            && is_stuck(error)
        {
            // One of them is held up, and none was done: the others without it.
            hot = self.set_aside_the_stuck(&session, hot).await;
            outcomes = within(STEP, native::many(&session, &self.gate, &ops_of(&hot))).await;
        }
        for_the_rules.extend(self.deliver(&session, hot, outcomes).into_iter().map(|job| vec![job]));
        for jobs in for_the_rules {
            self.on_one_lock(jobs).await;
        }
    }

    /// One operation for each lock that SQL can decide about; all of a lock that it cannot. The others have to wait.
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

    /// Answers those that SQL has decided; gives back those that it could not.
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
            // One of them is held up, and none was done. Each by itself, then.
            Err(Fail::Said(error)) if is_stuck(&error) || jobs.len() > 1 && is_in_the_way(&error) => {
                left = jobs;
            }
            Err(fail) => self.fail(session, jobs, fail),
        }
        left
    }

    /// Operations on one lock that is not plain, in their order.
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

    /// Does what SQL can decide about a plain queue; gives back what it could not.
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

    /// Operations on one lock, in their order, as one step.
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
                // Somebody has to make the lock; the others come after that.
                let mut others = jobs.split_off(1);
                let Some(mut first) = jobs.pop() else { return };
                session.forget_clock();
                match within(STEP, native::one(session, &self.gate, name, &first.op)).await {
                    Ok(Some(outcome)) => first.answer(Ok(outcome)),
                    Ok(None) => {
                        // Somebody made it in between.
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
                // Whatever it was, a transaction may be open.
                self.forget(session);
                self.fail(session, jobs, fail);
            }
        }
    }

    /// These are next, in this order, where what is asked of their lock is done.
    fn requeue(&self, jobs: Vec<Job>) {
        let mut state = self.state();
        for job in jobs.into_iter().rev() {
            match state.aside.get_mut(&job.bound.name) {
                Some(aside) => aside.push_front(job),
                None => state.queue.push_front(job),
            }
        }
    }

    /// Tries again what may be, once; tells the others.
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

    /// Lays the connection down if it has not been used for a moment; says whether there is still one.
    pub(super) fn lay_down_unused(&self, now: Moment) -> usize {
        let mut state = self.state();
        let unused = |session: &Arc<Session>| session.unused_for(now) >= UNUSED;
        if !state.busy && state.session.as_ref().is_some_and(unused) {
            state.session.take().into_iter().for_each(|session| self.gate.keep(session));
        }
        usize::from(state.session.is_some())
    }

    /// The connection, opened if need be.
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
        // What was given up must not come to pass after what follows.
        let ended = within(STEP, self.gate.abandoned.end_all(session.client())).await;
        ended.inspect_err(|fail| self.part_from(&session, fail))?;
        Ok(session)
    }

    /// Gives a connection up if it is of no more use after this.
    pub(super) fn part_from(&self, session: &Arc<Session>, fail: &Fail) {
        self.gate.learn(fail);
        match fail {
            Fail::Late => {
                // It may still be at work: what we do not wait for should not come to pass.
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

/// What the caller need not wait for: the end of a transaction that wrote nothing, and waking waiters elsewhere.
async fn afterwards(session: &Session, is_open: bool, word: Option<Word>) -> Result<(), Fail> {
    if is_open {
        session.say("ROLLBACK").await?;
    }
    match word {
        Some(word) => word.await,
        None => Ok(()),
    }
}

/// The operations of a batch.
fn ops_of(jobs: &[Job]) -> Vec<(&LockName, &LockOp)> {
    jobs.iter().map(|job| (&job.bound.name, &job.op)).collect()
}

/// What goes into one statement each. Nobody waits for those who come, and somebody for those who go; the first of either go
/// together.
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

/// Jobs by how they are done.
#[derive(Default)]
struct Sorted {
    hot: Vec<Job>,
    /// Those of each lock together.
    for_the_rules: Vec<Vec<Job>>,
}

impl Job {
    /// Whether its caller still waits for it.
    pub(super) fn is_wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    /// A caller that has gone away is as one whose answer was lost.
    pub(super) fn answer(self, outcome: Result<Outcome>) {
        let _ = self.reply.send(outcome);
    }

    /// One that has to wait will know its lease by a token above this, the lock's newest.
    pub(super) fn answer_at(self, waiters: Waiters, outcome: Outcome, token: Token) {
        if let (Outcome::Queued(_), LockOp::Acquire(Acquire { ask, .. })) = (&outcome, &self.op) {
            waiters.asks(&self.bound.name, &ask.lease_id, token.get(), self.since);
        }
        self.answer(Ok(outcome));
    }
}

/// Having the lane for one statement. Whoever gives it up, in whatever way, sees to those who wait.
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
            // The caller has gone away, and its statement is on its way. Answers come in order: whatever is asked now is
            // answered when the statement is done, and until then the lock is bound to this lane.
            Some(job) => {
                let session = self.session.clone();
                self.lane.gate.home().spawn(async move {
                    let left = job.since.plus(STEP).after(Moment::now()) + LAST_MOMENT;
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

/// Whether an operation can be sent once more. If the answer was lost with the connection, it may have been done: then
/// only what comes to the same when done twice.
pub(super) fn may_try_again(op: &LockOp, fail: &Fail) -> bool {
    match fail.again() {
        Again::Surely => true,
        Again::Perhaps => op.is_repeatable(),
        Again::Never => false,
    }
}
