//! Connections for tasks, with their prepared statements. The connections and their thread are
//! separate from those of the locks, so that the renewal of a lock never waits for work on tasks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::{OnceCell, Semaphore};
use tokio_postgres::{Client, Row, Statement};

use super::sql::{Sql, SqlTexts};
use crate::error::Result;
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::postgres::connection::{
    Backend, CLOSE_DEDICATED_AFTER, ConnectionOwner, Connector, OPERATION_TIMEOUT, Param, Purpose,
    STATEMENT_TIMEOUT, ServerClock, with_timeout,
};
use crate::store::postgres::error::{PgError, Retry};
use crate::store::repeat::Repeat;

/// Planner settings: statements are planned once, along the indexes that were made for them.
/// Statistics of a table that was empty at planning time, or that has grown a thousandfold since,
/// must not make the planner sort the backlog.
pub(super) const PLANNER_SETTINGS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
                     SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";
/// Maximum number of attempts if other transactions conflict.
const MAX_ATTEMPTS: u32 = 4;

/// Executor of statements: a session, or a transaction of the caller.
#[async_trait]
pub(super) trait Executor: Sync {
    /// Sends one statement and waits for its rows.
    async fn query(&self, sql: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error>;
}

/// One connection for tasks.
pub(crate) struct TaskSession {
    client: Client,
    texts: SqlTexts,
    /// Prepared statements; `None` behind a pooler, where the next statement may go to another
    /// server process.
    prepared: Option<Box<[OnceCell<Statement>; SqlTexts::COUNT]>>,
    /// Server process of this connection; `None` if it cannot be known.
    backend: Option<Backend>,
    clock: ServerClock,
}

impl TaskSession {
    /// Opens a connection on the current runtime, where it lives.
    pub(super) async fn open(connector: &Connector, texts: SqlTexts) -> Result<Self, PgError> {
        let (client, driver) = connector.connect(Purpose::Tasks).await?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a connection to PostgreSQL was closed");
            }
        });
        if connector.is_pooled() {
            return Ok(Self { client, texts, prepared: None, backend: None, clock: ServerClock::default() });
        }
        client.batch_execute(PLANNER_SETTINGS).await?;
        let backend = Backend::current(&client).await?;
        let prepared = Some(Box::new(std::array::from_fn(|_| OnceCell::new())));
        Ok(Self { client, texts, prepared, backend, clock: ServerClock::default() })
    }

    /// Whether the connection is known to be closed.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Returns the server process of this connection.
    pub(super) const fn backend(&self) -> Option<&Backend> {
        self.backend.as_ref()
    }

    /// Returns the underlying client.
    pub(crate) const fn client(&self) -> &Client {
        &self.client
    }

    /// Executes statements by the simple query protocol, such as BEGIN.
    pub(super) async fn simple_query(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    /// Prepares statements, so that each is sent when first polled: inside a transaction the order
    /// matters.
    pub(super) async fn prepare(&self, statements: &[Sql]) -> Result<(), tokio_postgres::Error> {
        for sql in statements {
            self.prepared_statement(*sql).await?;
        }
        Ok(())
    }

    /// Sends one statement and waits for its rows.
    pub(crate) async fn query(
        &self,
        sql: Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if let Some(statement) = self.prepared_statement(sql).await? {
            return self.client.query(statement, params).await;
        }
        let text = self.texts.get(sql);
        let deadline = match &text.with_deadline {
            Some(_) => Some(self.clock.deadline(&self.client).await?),
            None => None,
        };
        let params = params.iter().copied().chain(deadline.as_ref().map(|deadline| deadline as Param<'_>));
        let params: Vec<_> = params.zip(text.types.iter().cloned()).collect();
        self.client.query_typed(text.with_deadline.as_ref().unwrap_or(&text.sql), &params).await
    }

    async fn prepared_statement(&self, sql: Sql) -> Result<Option<&Statement>, tokio_postgres::Error> {
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let text = self.texts.get(sql);
        let types = &text.types[..text.types.len() - usize::from(text.with_deadline.is_some())];
        let prepare = || self.client.prepare_typed(&text.sql, types);
        prepared[sql as usize].get_or_try_init(prepare).await.map(Some)
    }
}

#[async_trait]
impl Executor for TaskSession {
    async fn query(&self, sql: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.query(sql, params).await
    }
}

impl std::fmt::Debug for TaskSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskSession").finish_non_exhaustive()
    }
}

/// Connections for tasks.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) connector: Arc<Connector>,
    pub(super) texts: SqlTexts,
    permits: Semaphore,
    /// One more connection, for heartbeats while all others are in use: heartbeats must not wait
    /// behind other work of this process.
    heartbeat_permit: Semaphore,
    idle: Mutex<Vec<(Arc<TaskSession>, BootInstant)>>,
    background: Mutex<Option<Arc<Background>>>,
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self {
            texts: SqlTexts::new(&connector.options.schema),
            permits: Semaphore::new(connector.options.pool),
            heartbeat_permit: Semaphore::new(1),
            idle: Mutex::default(),
            background: Mutex::default(),
            connector,
        })
    }

    /// Returns the connector, for the address of the server and the time.
    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// Executes work with a connection, to its end even if the caller is dropped. The work is
    /// repeated with another connection if transactions conflict or the connection turns out to be
    /// closed.
    pub(crate) async fn run<T, W, F>(self: &Arc<Self>, repeat: impl Into<Repeat>, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<TaskSession>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, PgError>> + Send,
    {
        self.run_with_permit(false, repeat.into(), work).await
    }

    /// Like [`run`](Self::run), for heartbeats, which must not wait until a connection is free.
    pub(crate) async fn run_heartbeat<T, W, F>(
        self: &Arc<Self>,
        repeat: impl Into<Repeat>,
        work: W,
    ) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<TaskSession>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, PgError>> + Send,
    {
        self.run_with_permit(true, repeat.into(), work).await
    }

    async fn run_with_permit<T, W, F>(
        self: &Arc<Self>,
        is_heartbeat: bool,
        repeat: Repeat,
        work: W,
    ) -> Result<T>
    where
        T: Send + 'static,
        W: Fn(Arc<TaskSession>) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T, PgError>> + Send,
    {
        let pool = self.clone();
        let run = async move {
            let done = with_timeout(OPERATION_TIMEOUT, async {
                let free = if is_heartbeat { pool.permits.try_acquire().ok() } else { None };
                let permits = if is_heartbeat { &pool.heartbeat_permit } else { &pool.permits };
                let _permit = match free {
                    Some(permit) => permit,
                    None => permits.acquire().await.map_err(|_| PgError::Timeout)?,
                };
                pool.run_with_retries(repeat, &work).await
            });
            done.await.map_err(|error| error.into_error(&pool.connector.description))
        };
        self.background()?.run(run).await
    }

    async fn run_with_retries<T, F>(
        &self,
        repeat: Repeat,
        work: &(impl Fn(Arc<TaskSession>) -> F + Sync),
    ) -> Result<T, PgError>
    where
        F: Future<Output = Result<T, PgError>> + Send,
    {
        let mut attempts = 0;
        loop {
            let session = self.checkout().await?;
            let mut in_flight = AbandonOnDrop { connector: &self.connector, session: Some(session.clone()) };
            // After an error a transaction may be open: the connection is dropped, which ends the
            // transaction.
            let error = match with_timeout(STATEMENT_TIMEOUT, Box::pin(work(session.clone()))).await {
                Ok(done) => {
                    in_flight.session = None;
                    let mut idle = self.idle();
                    // The additional connection for heartbeats is not kept.
                    if idle.len() < self.connector.options.pool {
                        idle.push((session, BootInstant::now()));
                    }
                    return Ok(done);
                }
                Err(error) => error,
            };
            if !matches!(error, PgError::Timeout) && error.retry() != Retry::IfIdempotent {
                in_flight.session = None;
            }
            drop(in_flight);
            self.connector.observe_error(&error);
            attempts += 1;
            let retry = match error.retry() {
                Retry::Always => attempts < MAX_ATTEMPTS,
                Retry::IfIdempotent => repeat == Repeat::Safe && attempts < 2,
                Retry::Never => false,
            };
            if !retry {
                return Err(error);
            }
            if matches!(error.retry(), Retry::IfIdempotent) {
                // The other connections are of the same age, and probably closed too.
                self.idle().clear();
            }
        }
    }

    async fn checkout(&self) -> Result<Arc<TaskSession>, PgError> {
        let session = loop {
            let idle = self.idle().pop();
            match idle {
                Some((session, _)) if session.is_closed() => {}
                Some((session, _)) => break session,
                None => break Arc::new(self.open().await?),
            }
        };
        // An abandoned statement must not take effect after the statements that follow.
        self.connector.abandoned.terminate_all(session.client()).await?;
        Ok(session)
    }

    /// Opens another connection on the current runtime, where it lives.
    pub(super) async fn open(&self) -> Result<TaskSession, PgError> {
        TaskSession::open(&self.connector, self.texts.clone()).await
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Arc<TaskSession>, BootInstant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the background thread, which is started on first use.
    pub(super) fn background(&self) -> Result<Arc<Background>> {
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(background) = &*background {
            return Ok(background.clone());
        }
        let started = Arc::new(Background::start("leasehold-tasks")?);
        *background = Some(started.clone());
        Ok(started)
    }
}

impl ConnectionOwner for Pool {
    /// Closes connections that have been idle for [`CLOSE_DEDICATED_AFTER`].
    fn release_idle(&self, now: BootInstant) -> usize {
        let mut idle = self.idle();
        idle.retain(|(session, used)| !session.is_closed() && now.after(*used) < CLOSE_DEDICATED_AFTER);
        idle.len()
    }
}

/// Connection with a statement in flight. Dropping it before the answer has arrived abandons the
/// connection.
struct AbandonOnDrop<'a> {
    connector: &'a Connector,
    session: Option<Arc<TaskSession>>,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            self.connector.abandoned.add(session.backend());
        }
    }
}
