//! Ordering and batching of operations on a connection.
//!
//! While an operation on a lock is in flight, the next one takes the same connection, so that an
//! operation that its caller dropped is done before the next one. A caller that finds its connection
//! idle uses it directly. Operations that arrive while the connection is in use are executed
//! together afterwards: one statement and one commit for any number of locks. They do not depend on the
//! runtime of a caller that uses the connection directly: if that caller does not go on, they are executed
//! as soon as its statement is done.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;

use super::fast_path;
use super::router::{InFlight, LockLayout, Router};
use crate::error::Result;
use crate::model::{Acquire, LockName, LockOp, Outcome, Token};
use crate::store::BootInstant;
use crate::store::batch_queue::{BatchQueue, BatchSize, Pending};
use crate::store::postgres::connection::{
    ConnectionOwner, Connector, RELEASE_AFTER, STATEMENT_TIMEOUT, Session, with_timeout,
};
use crate::store::postgres::error::{PgError, Retry, may_retry};
use crate::store::support::mutex::lock;
use crate::store::wake::Waiters;

/// Maximum number of operations in one statement.
const MAX_BATCH: BatchSize = BatchSize::count(128);
/// Maximum time to wait for further calls of callers that have just been answered.
const MAX_COALESCE_DELAY: Duration = Duration::from_micros(500);
/// Time after which the queue no longer waits for a caller that uses the connection directly: the
/// caller's runtime may be blocked.
const TAKE_OVER_AFTER: Duration = Duration::from_millis(100);
/// Extra time to wait for the answer to a statement whose caller has given up.
const DROPPED_CALL_GRACE: Duration = Duration::from_millis(200);

/// One connection and its queue of operations.
#[derive(Debug)]
pub(crate) struct BatchingConnection {
    pub(crate) connector: Arc<Connector>,
    pub(super) router: Arc<Router>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Queue, and whether the connection is in use: its user is the only worker, and must serve the
    /// queue afterwards.
    pub(super) queue: BatchQueue<Job>,
    session: Option<Arc<Session>>,
    /// Locks whose rows another session has locked, and the pending operations on them.
    pub(crate) blocked: HashMap<LockName, VecDeque<Job>>,
    /// Number of the direct use by a caller, while that is the user of the connection.
    direct_use: Option<u64>,
    /// Whether the statement of that direct use was sent. Once the direct use has ended, it is not sent any more.
    is_sent: bool,
    /// Number of direct uses so far.
    direct_uses: u64,
    /// Whether a task watches the direct uses.
    is_watched: bool,
}

/// Operation of a caller that waits for the answer.
pub(crate) type Job = Pending<QueuedOp, Result<Outcome>>;

#[derive(Debug)]
pub(crate) struct QueuedOp {
    /// Lock of the operation; marks the operation as in flight.
    pub(crate) in_flight: InFlight,
    pub(crate) op: LockOp,
    /// Time before the store could have granted anything: a handed-over lease is counted from it.
    pub(super) since: BootInstant,
    /// Whether the fast path could not decide the operation.
    pub(super) needs_slow_path: bool,
    retried: bool,
}

impl BatchingConnection {
    pub(crate) fn new(connector: Arc<Connector>, router: Arc<Router>) -> Arc<Self> {
        Arc::new(Self { connector, router, state: Mutex::default() })
    }

    /// Applies one operation; with `needs_slow_path`, the fast path could not decide it. The caller
    /// must bound the time that this takes.
    pub(crate) async fn apply(
        self: &Arc<Self>,
        in_flight: InFlight,
        op: &LockOp,
        needs_slow_path: bool,
    ) -> Result<Outcome> {
        let (op, since) = (op.clone(), BootInstant::now());
        let (job, answer) = Job::new(QueuedOp { in_flight, op, since, needs_slow_path, retried: false });
        if let Some(mut direct) = self.start_or_queue(job) {
            let done = direct.execute().await;
            let Some(mut job) = direct.job.take() else {
                return Err(PgError::Timeout.into_error(&self.connector.description));
            };
            match done {
                Ok(Some(outcome)) => {
                    // The connection must be free before the router counts it as such.
                    drop(direct);
                    drop(job);
                    return Ok(outcome);
                }
                Ok(None) => job.needs_slow_path = true,
                Err(error) if error.is_lock_timeout() => {
                    drop(direct);
                    self.push_blocked(job);
                    return self.wait_for_answer(answer).await;
                }
                Err(error) => {
                    self.discard_if_broken(&direct.session, &error);
                    if job.retried || !may_retry(&job.op, &error) {
                        return Err(error.into_error(&self.connector.description));
                    }
                    job.retried = true;
                }
            }
            let must_start = {
                let mut state = lock(&self.state);
                state.queue.calls.push_front(job);
                // After a takeover another caller may use the connection.
                if state.direct_use.is_some_and(|current| current != direct.number) {
                    self.watch(&mut state);
                }
                // `false` while this call uses the connection, and then hands it off.
                state.queue.start_worker(1)
            };
            if must_start {
                self.hand_off();
            }
        }
        self.wait_for_answer(answer).await
    }

    async fn wait_for_answer(&self, answer: oneshot::Receiver<Result<Outcome>>) -> Result<Outcome> {
        answer.await.unwrap_or_else(|_| Err(PgError::Timeout.into_error(&self.connector.description)))
    }

    /// Takes the connection for one statement if it is idle and one fast-path statement suffices;
    /// otherwise queues the job. The statement must be prepared, so that it is sent when first polled.
    fn start_or_queue(self: &Arc<Self>, job: Job) -> Option<DirectUse> {
        let is_simple = !job.needs_slow_path && self.router.layout(&job.in_flight.name) == LockLayout::Simple;
        let statement = fast_path::statement(&job.op).filter(|_| is_simple);
        let mut state = lock(&self.state);
        if state.blocked.contains_key(&job.in_flight.name) {
            drop(state);
            self.push_blocked(job);
            return None;
        }
        if !state.queue.start_worker(1) {
            state.queue.calls.push_back(job);
            if state.direct_use.is_some() {
                self.watch(&mut state);
            }
            return None;
        }
        let statement = statement.filter(|_| self.connector.abandoned.is_empty());
        let is_ready = |session: &Arc<Session>| {
            !session.is_closed() && statement.is_some_and(|statement| session.is_prepared(statement))
        };
        match state.session.clone().filter(is_ready) {
            Some(session) => {
                state.direct_uses += 1;
                let number = state.direct_uses;
                (state.direct_use, state.is_sent) = (Some(number), false);
                Some(DirectUse { connection: self.clone(), session, number, job: Some(job) })
            }
            None => {
                state.queue.calls.push_back(job);
                drop(state);
                self.hand_off();
                None
            }
        }
    }

    /// Hands the connection to the queued jobs, or marks it as idle.
    fn hand_off(self: &Arc<Self>) {
        let idle = lock(&self.state).queue.stop_if_empty();
        if !idle {
            self.connector.runtime().spawn(self.clone().run());
        }
    }

    /// Ends a direct use, unless it has ended before, and hands the connection off.
    fn end_direct_use(self: &Arc<Self>, number: u64) {
        let ended = lock(&self.state).direct_use.take_if(|current| *current == number);
        if ended.is_some() {
            self.hand_off();
        }
    }

    /// Starts the watch of the direct uses, unless there is one.
    fn watch(self: &Arc<Self>, state: &mut State) {
        if !std::mem::replace(&mut state.is_watched, true) {
            self.connector.runtime().spawn(self.clone().watch_direct_uses());
        }
    }

    /// Takes the connection over from callers that use it directly and do not go on, for as long as queued
    /// operations wait for such a caller.
    async fn watch_direct_uses(self: Arc<Self>) {
        let mut last = None;
        while let Some(number) = self.awaited_direct_use() {
            if last.replace(number) == Some(number) {
                self.take_over(number).await;
            } else {
                tokio::time::sleep(TAKE_OVER_AFTER).await;
            }
        }
    }

    /// Returns the direct use that queued operations wait for. Without one, ends the watch.
    fn awaited_direct_use(&self) -> Option<u64> {
        let mut state = lock(&self.state);
        let awaited = state.direct_use.filter(|_| !state.queue.calls.is_empty());
        state.is_watched = awaited.is_some();
        awaited
    }

    /// Ends a direct use when its statement is done, whether or not its caller has read the answer; at once if the
    /// statement was not sent.
    async fn take_over(self: &Arc<Self>, number: u64) {
        let (is_unsent, session) = {
            let mut state = lock(&self.state);
            let is_unsent =
                !state.is_sent && state.direct_use.take_if(|current| *current == number).is_some();
            (is_unsent, state.session.clone())
        };
        if is_unsent {
            return self.hand_off();
        }
        // Without a session, the caller has just discarded it.
        if let Some(session) = session {
            // The server answers in order: the answer to this query implies that the statement is done.
            let done = with_timeout(STATEMENT_TIMEOUT, async { Ok(session.simple_query("").await?) }).await;
            if let Err(error) = done {
                self.discard_if_broken(&session, &error);
            }
        }
        self.end_direct_use(number);
    }

    async fn run(self: Arc<Self>) {
        loop {
            let Some(jobs) = lock(&self.state).queue.next_batch(MAX_BATCH, BatchSize::one) else { return };
            let (count, begun) = (jobs.len(), BootInstant::now());
            self.execute_batch(jobs).await;
            if count > 1 {
                self.coalesce(count, BootInstant::now().after(begun)).await;
            }
        }
    }

    /// Waits for further calls. Callers that were answered in one batch tend to issue their next
    /// call at the same time. The first of these would get a statement and a commit of its own, for
    /// which the others would wait. A delay of up to 1/8 of the last batch's duration, at most
    /// [`MAX_COALESCE_DELAY`], lets them share one statement.
    async fn coalesce(&self, answered: usize, took: Duration) {
        let until = BootInstant::now().plus((took / 8).min(MAX_COALESCE_DELAY));
        let all = answered + lock(&self.state).queue.calls.len();
        while lock(&self.state).queue.calls.len() < all.min(MAX_BATCH.count) && BootInstant::now() < until {
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }

    /// Puts these jobs, in this order, at the front of the queue that serves their lock.
    pub(super) fn requeue(&self, jobs: Vec<Job>) {
        let mut state = lock(&self.state);
        for job in jobs.into_iter().rev() {
            match state.blocked.get_mut(&job.in_flight.name) {
                Some(blocked) => blocked.push_front(job),
                None => state.queue.calls.push_front(job),
            }
        }
    }

    /// Retries, once, the jobs that may be retried; answers the others with the error.
    pub(crate) fn retry_or_fail(&self, session: &Arc<Session>, jobs: Vec<Job>, error: PgError) {
        self.discard_if_broken(session, &error);
        let (retry, failed): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| !job.retried && may_retry(&job.op, &error));
        let mark = |mut job: Job| {
            job.retried = true;
            job
        };
        self.requeue(retry.into_iter().map(mark).collect());
        self.fail(failed, error);
    }

    pub(super) fn fail(&self, jobs: Vec<Job>, error: PgError) {
        Job::answer_all(jobs, &Err(error.into_error(&self.connector.description)));
    }

    /// Returns the connection; opens one if necessary.
    pub(super) async fn session(&self) -> Result<Arc<Session>, PgError> {
        let open = lock(&self.state).session.clone().filter(|session| !session.is_closed());
        let session = match open {
            Some(session) => session,
            None => {
                let session = self.connector.open().await?;
                lock(&self.state).session = Some(session.clone());
                session
            }
        };
        // An abandoned statement must not take effect after the statements that follow.
        let terminated =
            with_timeout(STATEMENT_TIMEOUT, self.connector.abandoned.terminate_all(&session.client)).await;
        terminated.inspect_err(|error| self.discard_if_broken(&session, error))?;
        Ok(session)
    }

    /// Discards the connection if it is unusable after this error.
    pub(crate) fn discard_if_broken(&self, session: &Arc<Session>, error: &PgError) {
        self.connector.observe_error(error);
        let (is_timeout, retry) = (matches!(error, PgError::Timeout), error.retry());
        if is_timeout {
            // The statement may still run, and must not take effect because no caller waits for its
            // answer.
            self.connector.cancel(session);
        }
        if is_timeout || retry == Retry::IfIdempotent {
            self.connector.abandoned.add(session.backend.as_ref());
        }
        if is_timeout || retry != Retry::Never {
            self.discard(session);
        }
    }

    pub(super) fn discard(&self, session: &Arc<Session>) {
        let mut state = lock(&self.state);
        if state.session.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            state.session = None;
        }
        session.discard();
    }
}

impl ConnectionOwner for BatchingConnection {
    /// Returns the connection to the pool if it has been unused for [`RELEASE_AFTER`].
    fn release_idle(&self, now: BootInstant) -> usize {
        let mut state = lock(&self.state);
        let unused = |session: &Arc<Session>| session.idle_for(now) >= RELEASE_AFTER;
        if state.queue.is_idle() && state.session.as_ref().is_some_and(unused) {
            state.session.take().into_iter().for_each(|session| self.connector.return_idle(session));
        }
        usize::from(state.session.is_some())
    }
}

impl Job {
    /// Answers the caller, and registers a queued request with the lock's newest token: the lease
    /// of that request will have a higher token.
    pub(crate) fn answer_and_register(self, waiters: Waiters, outcome: Outcome, token: Token) {
        if let (Outcome::Queued(_), LockOp::Acquire(Acquire { request, .. })) = (&outcome, &self.op) {
            waiters.register_request(&self.in_flight.name, &request.lease_id, token.get(), self.since);
        }
        self.answer(Ok(outcome));
    }
}

/// Exclusive use of the connection for one statement. Dropping it, in whatever way, serves the queue, unless
/// the connection was taken over.
struct DirectUse {
    connection: Arc<BatchingConnection>,
    session: Arc<Session>,
    number: u64,
    /// Taken when the statement is done.
    job: Option<Job>,
}

impl DirectUse {
    /// Executes the operation. Returns `None`, with nothing changed, if the operation needs the slow path, or if the
    /// connection was taken over before the statement was sent.
    async fn execute(&self) -> Result<Option<Outcome>, PgError> {
        let Some(job) = &self.job else { return Ok(None) };
        let (name, connector) = (&job.in_flight.name, &self.connection.connector);
        let mut done = pin!(fast_path::execute(&self.session, connector, name, &job.op));
        // The first poll sends the statement, which is prepared. It is under the lock of the state, so that the
        // statement is sent before the direct use ends, or not at all: afterwards it could become part of a
        // transaction of others on this connection, and be rolled back with it.
        let first = poll_fn(|context| {
            let mut state = lock(&self.connection.state);
            let may_send = state.direct_use == Some(self.number);
            state.is_sent |= may_send;
            Poll::Ready(may_send.then(|| done.as_mut().poll(context)))
        })
        .await;
        match first {
            None => Ok(None),
            Some(Poll::Ready(done)) => done,
            Some(Poll::Pending) => done.await,
        }
    }
}

impl Drop for DirectUse {
    fn drop(&mut self) {
        let (connection, number) = (self.connection.clone(), self.number);
        match self.job.take() {
            None => connection.end_direct_use(number),
            // Taken over: the statement is done, abandoned or was never sent, and another caller may use the
            // connection.
            Some(_) if lock(&connection.state).direct_use != Some(number) => {}
            // The caller was dropped while its statement is in flight. The server answers in order:
            // the answer to this query implies that the statement is done. Until then the lock
            // stays assigned to this connection.
            Some(job) => {
                let session = self.session.clone();
                self.connection.connector.runtime().spawn(async move {
                    let remaining =
                        job.since.plus(STATEMENT_TIMEOUT).after(BootInstant::now()) + DROPPED_CALL_GRACE;
                    let waited = with_timeout(remaining, async { Ok(session.simple_query("").await?) }).await;
                    // If it was taken over meanwhile, this may have waited for the statements of others, which
                    // must not be cancelled.
                    let ended = lock(&connection.state).direct_use.take_if(|current| *current == number);
                    if let (Some(_), Err(error)) = (ended, &waited) {
                        connection.discard_if_broken(&session, error);
                    }
                    drop(job);
                    if ended.is_some() {
                        connection.hand_off();
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::AsyncWriteExt;
    use tokio_postgres::NoTls;
    use uuid::Uuid;

    use super::*;
    use crate::model::{LeaseId, Release};
    use crate::store::StoreUrl;
    use crate::store::postgres::PostgresOptions;

    /// Returns a direct use whose statement was not sent, and what must live as long. The server answers no
    /// statement.
    async fn direct_use() -> (DirectUse, impl Sized) {
        let (stream, mut server) = tokio::io::duplex(1 << 16);
        // The server accepts the user, and is ready.
        server.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
        let mut config = tokio_postgres::Config::new();
        let (client, driver) = config.user("u").connect_raw(stream, NoTls).await.unwrap();
        let url = StoreUrl::parse("postgres://u@localhost/d?sslmode=disable").unwrap();
        let connector = Arc::new(Connector::new(PostgresOptions::from_url(&url).unwrap()).unwrap());
        let session = Arc::new(connector.session(client, true, None));
        let (router, since) = (Router::new(1), BootInstant::now());
        let in_flight = router.route(&LockName::new("lock").unwrap());
        let lease_id = LeaseId::from_uuid(Uuid::nil());
        let op = LockOp::Release(Release { lease_id, token: Token::default(), at_least: None });
        let (job, answer) =
            Job::new(QueuedOp { in_flight, op, since, needs_slow_path: false, retried: false });
        let connection = BatchingConnection::new(connector, router);
        {
            let mut state = lock(&connection.state);
            assert!(state.queue.start_worker(1));
            (state.session, state.direct_use) = (Some(session.clone()), Some(1));
        }
        (DirectUse { connection, session, number: 1, job: Some(job) }, (answer, driver, server))
    }

    #[tokio::test]
    async fn a_statement_is_not_sent_once_its_connection_was_taken_over() {
        let (direct, _kept) = direct_use().await;
        direct.connection.take_over(1).await;
        assert!(lock(&direct.connection.state).queue.is_idle(), "others may use the connection");
        assert!(matches!(direct.execute().now_or_never(), Some(Ok(None))));
    }

    #[tokio::test]
    async fn a_statement_that_was_sent_is_done_before_its_connection_is_taken_over() {
        let (direct, _kept) = direct_use().await;
        assert!(direct.execute().now_or_never().is_none(), "it was sent, and is not answered");
        assert!(direct.connection.take_over(1).now_or_never().is_none(), "it waits for the answer");
        assert_eq!(lock(&direct.connection.state).direct_use, Some(1));
        direct.connection.end_direct_use(1);
    }
}
