//! Execution of a batch of operations, each on the fastest path that can decide it.
//!
//! An operation waits briefly for the row of its lock. If another session keeps the row locked, the
//! operation is blocked, together with all operations that arrive for the same lock meanwhile; this
//! keeps the operations on one lock in order. Blocked operations get a connection of their own, so
//! that the other operations of the batch do not wait for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::batching_connection::{BatchingConnection, Job};
use super::fast_path;
use super::fast_path_queue::{self, OpResult, Step};
use super::notify::{PendingNotify, notify_remote};
use super::router::LockLayout;
use super::slow_path::{self, Applied, RowTimeout};
use crate::error::Result;
use crate::model::{LockName, LockOp, Outcome};
use crate::store::postgres::connection::{STATEMENT_TIMEOUT, Session, with_timeout};
use crate::store::postgres::error::PgError;
use crate::store::support::mutex::lock;

#[derive(Default)]
struct Batch {
    fast: Vec<Job>,
    /// Slow-path jobs, grouped by lock.
    slow: Vec<Vec<Job>>,
}

impl BatchingConnection {
    pub(super) async fn execute_batch(self: &Arc<Self>, jobs: Vec<Job>) {
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => return self.fail(jobs, error),
        };
        // Nothing has been sent yet, so operations whose caller no longer waits are dropped.
        let jobs = jobs.into_iter().filter(Job::caller_waits).collect::<Vec<_>>();
        let jobs = self.without_blocked(jobs);
        let Batch { mut fast, mut slow } = self.split_by_path(jobs);
        fast.sort_by(|one, two| one.in_flight.name.cmp(&two.in_flight.name));
        let mut outcomes = self.execute_fast(&session, &fast).await;
        if outcomes.as_ref().is_err_and(PgError::is_lock_timeout) {
            // One of the rows is locked, and no operation was executed: retry without the locked
            // rows.
            fast = self.split_off_blocked(&session, fast).await;
            outcomes = self.execute_fast(&session, &fast).await;
        }
        slow.extend(self.answer_batch(&session, fast, outcomes).into_iter().map(|job| vec![job]));
        for jobs in slow {
            self.execute_on_lock(jobs).await;
        }
    }

    async fn execute_fast(&self, session: &Session, jobs: &[Job]) -> Result<Vec<Option<Outcome>>, PgError> {
        let ops: Vec<_> = jobs.iter().map(|job| (&job.in_flight.name, &job.op)).collect();
        with_timeout(STATEMENT_TIMEOUT, fast_path::execute_many(session, &self.connector, &ops)).await
    }

    /// Selects one operation for each lock that SQL can decide about, and all operations of each
    /// other lock. The remaining operations are queued again.
    fn split_by_path(&self, jobs: Vec<Job>) -> Batch {
        let (mut batch, mut later) = (Batch::default(), Vec::new());
        let mut positions: HashMap<LockName, Option<usize>> = HashMap::new();
        for job in jobs {
            match positions.get(&job.in_flight.name) {
                Some(Some(position)) => batch.slow[*position].push(job),
                Some(None) => later.push(job),
                None if job.needs_slow_path
                    || !fast_path::is_eligible(&job.op)
                    || self.router.layout(&job.in_flight.name) != LockLayout::Simple =>
                {
                    positions.insert(job.in_flight.name.clone(), Some(batch.slow.len()));
                    batch.slow.push(vec![job]);
                }
                None => {
                    positions.insert(job.in_flight.name.clone(), None);
                    batch.fast.push(job);
                }
            }
        }
        let mut state = lock(&self.state);
        later.into_iter().rev().for_each(|job| state.queue.calls.push_front(job));
        batch
    }

    /// Answers the jobs that SQL has decided, and returns those that it could not decide.
    fn answer_batch(
        &self,
        session: &Arc<Session>,
        jobs: Vec<Job>,
        outcomes: Result<Vec<Option<Outcome>>, PgError>,
    ) -> Vec<Job> {
        let mut remaining = Vec::new();
        match outcomes {
            Ok(outcomes) => {
                for (mut job, outcome) in jobs.into_iter().zip(outcomes) {
                    match outcome {
                        Some(outcome) => job.answer(Ok(outcome)),
                        None => {
                            job.needs_slow_path = true;
                            remaining.push(job);
                        }
                    }
                }
            }
            // One of the rows is locked or conflicts, and no operation was executed: execute each
            // one separately.
            Err(error) if error.is_lock_timeout() || jobs.len() > 1 && error.is_conflict() => {
                remaining = jobs;
            }
            Err(error) => self.retry_or_fail(session, jobs, error),
        }
        remaining
    }

    /// Executes operations on one lock whose layout is not simple, in order.
    async fn execute_on_lock(self: &Arc<Self>, mut jobs: Vec<Job>) {
        let session = match self.session().await {
            Ok(session) => session,
            Err(error) => return self.fail(jobs, error),
        };
        // The operations on other locks may have taken long, and none of these has been executed.
        jobs.retain(Job::caller_waits);
        let Some(name) = jobs.first().map(|job| job.in_flight.name.clone()) else { return };
        if self.router.layout(&name) == LockLayout::TicketRows {
            jobs = self.refresh_tickets(&session, &name, jobs).await;
        } else if self.router.layout(&name) != LockLayout::General
            && fast_path_queue::are_eligible(jobs.iter().map(|job| &job.op))
        {
            jobs = self.execute_in_queue(&session, &name, jobs).await;
        }
        if !jobs.is_empty() {
            self.execute_slow_path(&session, &name, jobs, RowTimeout::Short).await;
        }
    }

    /// Executes what SQL can decide about a simple queue, and returns the jobs that it could not
    /// decide.
    async fn execute_in_queue(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &LockName,
        jobs: Vec<Job>,
    ) -> Vec<Job> {
        let jobs = pair_up(jobs);
        let steps: Vec<_> = jobs.iter().map(|jobs| Step::new(jobs.iter().map(|job| &job.op))).collect();
        let notify = self.router.grants_remotely(name);
        let done = fast_path_queue::apply(session, &self.connector, name, &steps, notify);
        let (done, mut notifications) = match with_timeout(STATEMENT_TIMEOUT, done).await {
            Ok(done) => done,
            Err(error) => {
                self.retry_or_fail(session, jobs.into_iter().flatten().collect(), error);
                return Vec::new();
            }
        };
        let mut remaining = Vec::new();
        for (jobs, done) in jobs.into_iter().zip(done) {
            match done {
                Ok(done) if done.is_empty() => remaining.extend(jobs),
                Ok(done) => {
                    for (job, OpResult { outcome, handed_over, token, layout }) in jobs.into_iter().zip(done)
                    {
                        self.router.set_layout(name, layout);
                        if let Some(lease) = handed_over {
                            let remote = self.connector.waiters.wake_local(name, vec![lease], job.since);
                            self.router.set_grants_remotely(name, !remote.is_empty());
                            if !notify {
                                let remote = remote.iter();
                                notifications.extend(notify_remote(session, &self.connector, name, remote));
                            }
                        }
                        job.answer_and_register(self.connector.waiters, outcome, token);
                    }
                }
                Err(error) if error.is_lock_timeout() => self.push_all_blocked(jobs),
                Err(error) => self.retry_or_fail(session, jobs, error),
            }
        }
        for notification in notifications {
            self.finish_work(session, notification).await;
        }
        remaining
    }

    /// Does work that no caller waits for.
    async fn finish_work(&self, session: &Arc<Session>, work: impl Future<Output = Result<(), PgError>>) {
        if let Err(error) = with_timeout(STATEMENT_TIMEOUT, work).await {
            self.discard_if_broken(session, &error);
        }
    }

    /// Slow path: executes operations on one lock, in order and atomically.
    async fn execute_slow_path(
        self: &Arc<Self>,
        session: &Arc<Session>,
        name: &LockName,
        mut jobs: Vec<Job>,
        row_timeout: RowTimeout,
    ) {
        let ops: Vec<_> = jobs.iter().map(|job| &job.op).collect();
        // Locked until the transaction has ended.
        let mut transaction = None;
        let applied = async {
            transaction = Some(session.transaction.write().await);
            slow_path::apply(session, &self.connector, name, &ops, row_timeout).await
        };
        match with_timeout(STATEMENT_TIMEOUT, applied).await {
            Ok(Applied { answers, token, layout, is_transaction_open, notification }) => {
                self.router.set_layout(name, layout);
                let not_applied = jobs.split_off(answers.len());
                for (job, (outcome, handed_over)) in jobs.into_iter().zip(answers) {
                    self.connector.waiters.wake_local(name, handed_over, job.since);
                    job.answer_and_register(self.connector.waiters, outcome, token);
                }
                self.finish_work(session, finish(session, is_transaction_open, notification)).await;
                self.create_lock(session, name, not_applied).await;
            }
            Err(error) if error.is_lock_timeout() && row_timeout == RowTimeout::Short => {
                self.finish_work(session, finish(session, true, None)).await;
                self.push_all_blocked(jobs);
            }
            Err(error) => {
                // After any error a transaction may be open.
                self.discard(session);
                self.retry_or_fail(session, jobs, error);
            }
        }
        drop(transaction);
    }

    /// Creates a lock without a row by the first of these operations. The others follow.
    async fn create_lock(&self, session: &Arc<Session>, name: &LockName, jobs: Vec<Job>) {
        let mut jobs = jobs.into_iter();
        let Some(mut first) = jobs.next() else { return };
        let mut others: Vec<Job> = jobs.collect();
        session.clock.reset();
        let created = fast_path::execute(session, &self.connector, name, &first.op);
        match with_timeout(STATEMENT_TIMEOUT, created).await {
            Ok(Some(outcome)) => first.answer(Ok(outcome)),
            Err(error) if !error.is_lock_timeout() => self.retry_or_fail(session, vec![first], error),
            // Another session has created the lock meanwhile, or is creating it.
            Ok(None) | Err(_) => {
                first.needs_slow_path = true;
                others.insert(0, first);
            }
        }
        self.requeue(others);
    }
}

// --- blocked operations ---------------------------------------------------------------------------

impl BatchingConnection {
    /// Blocks the operations of a batch whose rows another session has locked, and returns the others.
    async fn split_off_blocked(self: &Arc<Self>, session: &Arc<Session>, jobs: Vec<Job>) -> Vec<Job> {
        let names: Vec<&str> = jobs.iter().map(|job| job.in_flight.name.as_str()).collect();
        let locked = match with_timeout(STATEMENT_TIMEOUT, fast_path::locked_rows(session, &names)).await {
            Ok(locked) => locked,
            Err(error) => {
                self.discard_if_broken(session, &error);
                return jobs;
            }
        };
        let (blocked, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| locked.contains(&job.in_flight.name));
        self.push_all_blocked(blocked);
        others
    }

    fn push_all_blocked(self: &Arc<Self>, jobs: Vec<Job>) {
        for job in jobs {
            self.push_blocked(job);
        }
    }

    /// Adds a blocked operation, behind earlier ones for the same lock.
    pub(crate) fn push_blocked(self: &Arc<Self>, job: Job) {
        let mut state = lock(&self.state);
        let name = job.in_flight.name.clone();
        if let Some(blocked) = state.blocked.get_mut(&name) {
            return blocked.push_back(job);
        }
        state.blocked.insert(name.clone(), VecDeque::from([job]));
        self.connector.runtime().spawn(self.clone().run_blocked(name));
    }

    async fn open_for_blocked(&self) -> Result<Arc<Session>, PgError> {
        let session = self.connector.open().await?;
        let unless_done = session.discard_on_drop();
        with_timeout(STATEMENT_TIMEOUT, self.connector.abandoned.terminate_all(&session.client)).await?;
        unless_done.disarm();
        Ok(session)
    }

    /// Blocks the operations whose lock already has blocked operations, and returns the others.
    fn without_blocked(self: &Arc<Self>, jobs: Vec<Job>) -> Vec<Job> {
        if lock(&self.state).blocked.is_empty() {
            return jobs;
        }
        let (blocked, others): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| lock(&self.state).blocked.contains_key(&job.in_flight.name));
        self.push_all_blocked(blocked);
        others
    }

    /// Executes the blocked operations on one lock, until none is left.
    async fn run_blocked(self: Arc<Self>, name: LockName) {
        loop {
            let mut jobs = {
                let mut state = lock(&self.state);
                let jobs = state.blocked.get_mut(&name).map(std::mem::take).unwrap_or_default();
                if jobs.is_empty() {
                    state.blocked.remove(&name);
                    return;
                }
                jobs
            };
            let Ok(_permit) = self.connector.blocked_rows.acquire().await else { return };
            // None of these has been executed, so operations whose caller no longer waits are
            // dropped, also after the wait for a connection.
            if !jobs.iter().any(Job::caller_waits) {
                continue;
            }
            let opened = self.open_for_blocked().await;
            jobs.retain(Job::caller_waits);
            match opened {
                Ok(session) => {
                    if !jobs.is_empty() {
                        self.execute_slow_path(&session, &name, jobs.into(), RowTimeout::Long).await;
                    }
                    if !session.is_closed() {
                        self.connector.return_idle(session);
                    }
                }
                Err(error) => self.fail(jobs.into(), error),
            }
        }
    }
}

/// Ends a transaction without writes, and notifies waiters of other processes.
async fn finish(
    session: &Session,
    is_transaction_open: bool,
    notification: Option<PendingNotify>,
) -> Result<(), PgError> {
    if is_transaction_open {
        session.simple_query("ROLLBACK").await?;
    }
    match notification {
        Some(notification) => notification.await,
        None => Ok(()),
    }
}

/// Groups the operations by statement. Releases come first, because waiters depend on them and none
/// depends on a join; the first release and the first join share one statement.
fn pair_up(mut jobs: Vec<Job>) -> Vec<Vec<Job>> {
    let joins = |job: &Job| !matches!(job.op, LockOp::Release(_));
    jobs.sort_by_key(joins);
    let first =
        jobs.iter().position(joins).filter(|position| *position > 0).map(|position| jobs.remove(position));
    let mut steps: Vec<_> = jobs.into_iter().map(|job| vec![job]).collect();
    if let Some(step) = steps.first_mut() {
        step.extend(first);
    }
    steps
}
