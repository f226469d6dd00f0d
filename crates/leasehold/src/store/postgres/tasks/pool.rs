//! Connections for tasks and documents. The connections and their thread are
//! separate from those of the locks, so that the renewal of a lock never waits for work on tasks.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio_postgres::Row;

use super::inline_connection::{InlineConnection, InlineTurn};
use crate::error::Result;
use crate::model::Timestamp;
use crate::store::BootInstant;
use crate::store::background::Background;
use crate::store::postgres::columns::{OwnedParam, Param, only_time, params};
use crate::store::postgres::connection::{
    CLOSE_DEDICATED_AFTER, ConnectionOwner, Connector, OPERATION_TIMEOUT, Opened, Purpose, STATEMENT_TIMEOUT,
    Session, drive, with_timeout,
};
use crate::store::postgres::error::{PgError, Retry};
use crate::store::postgres::sql::{NOW, Sql};
use crate::store::repeat::Repeat;
use crate::store::support::mutex::lock;

/// Maximum number of attempts if other transactions conflict.
const MAX_ATTEMPTS: u32 = 4;

/// Executor of statements: a session, or a transaction of the caller.
#[async_trait]
pub(super) trait Executor: Sync {
    async fn query(&self, sql: &'static Sql, params: &[Param<'_>])
    -> Result<Vec<Row>, tokio_postgres::Error>;
}

#[async_trait]
impl Executor for Session {
    async fn query(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.query(sql, params).await
    }
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) connector: Arc<Connector>,
    permits: Semaphore,
    /// One more connection, for heartbeats while all others are in use: heartbeats must not wait
    /// behind other work of this process.
    heartbeat_permit: Semaphore,
    idle: Mutex<Vec<(Arc<Session>, BootInstant)>>,
    background: Mutex<Option<Arc<Background>>>,
    pub(super) inline: Arc<InlineConnection>,
}

impl Pool {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        Arc::new(Self {
            permits: Semaphore::new(connector.options.pool),
            heartbeat_permit: Semaphore::new(1),
            idle: Mutex::default(),
            background: Mutex::default(),
            inline: InlineConnection::new(connector.clone()),
            connector,
        })
    }

    /// Executes work with a connection, to its end even if the caller is dropped. The work is
    /// repeated with another connection if transactions conflict or the connection turns out to be
    /// closed; it gets a clone of the input each time.
    pub(crate) async fn run<I: Clone + Send + Sync + 'static, T: Send + 'static, F>(
        self: &Arc<Self>,
        repeat: impl Into<Repeat>,
        input: I,
        work: impl Fn(Arc<Session>, I) -> F + Send + Sync + 'static,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, PgError>> + Send,
    {
        self.run_with_permit(false, repeat.into(), move |session| work(session, input.clone())).await
    }

    /// Executes one statement, like [`run`](Self::run).
    pub(crate) async fn query(
        self: &Arc<Self>,
        repeat: impl Into<Repeat>,
        sql: &'static Sql,
        values: Vec<OwnedParam<'static>>,
    ) -> Result<Vec<Row>> {
        let values = Arc::new(values);
        let query = move |session: Arc<Session>| {
            let values = values.clone();
            async move { Ok(session.query(sql, &params(&values)).await?) }
        };
        self.run_with_permit(sql.is_heartbeat, repeat.into(), query).await
    }

    pub(crate) async fn now(self: &Arc<Self>) -> Result<Timestamp> {
        let rows = self.query(Repeat::Safe, &NOW, vec![Box::new(self.connector.now())]).await?;
        self.connector.map_error(only_time(&rows))
    }

    /// Heartbeats do not wait until another call returns its connection.
    async fn run_with_permit<T: Send + 'static, F: Future<Output = Result<T, PgError>> + Send>(
        self: &Arc<Self>,
        is_heartbeat: bool,
        repeat: Repeat,
        work: impl Fn(Arc<Session>) -> F + Send + Sync + 'static,
    ) -> Result<T> {
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
            pool.connector.map_error(done.await)
        };
        self.background()?.run(run).await
    }

    async fn run_with_retries<T, F: Future<Output = Result<T, PgError>> + Send>(
        &self,
        repeat: Repeat,
        work: &(impl Fn(Arc<Session>) -> F + Sync),
    ) -> Result<T, PgError> {
        let mut attempts = 0;
        loop {
            let session = self.checkout().await?;
            let mut in_flight = AbandonOnDrop { connector: &self.connector, session: Some(session.clone()) };
            // After an error a transaction may be open: the connection is dropped, which ends the
            // transaction.
            let error = match with_timeout(STATEMENT_TIMEOUT, Box::pin(work(session.clone()))).await {
                Ok(done) => {
                    in_flight.session = None;
                    let mut idle = lock(&self.idle);
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
                lock(&self.idle).clear();
            }
        }
    }

    async fn checkout(&self) -> Result<Arc<Session>, PgError> {
        let session = loop {
            let idle = lock(&self.idle).pop();
            match idle {
                Some((session, _)) if session.is_closed() => {}
                Some((session, _)) => break session,
                None => break Arc::new(self.open(Purpose::Tasks).await?),
            }
        };
        // An abandoned statement must not take effect after the statements that follow.
        self.connector.abandoned.terminate_all(&session.client).await?;
        Ok(session)
    }

    /// Opens another connection on the current runtime, where it lives.
    pub(super) async fn open(&self, purpose: Purpose) -> Result<Session, PgError> {
        let Opened { client, driver, is_direct, backend } = self.connector.connect(purpose).await?;
        drive(driver);
        Ok(self.connector.session(client, is_direct, backend))
    }

    /// Takes the connection on the caller's runtime for one statement, if that is possible.
    pub(super) fn try_enter_inline(self: &Arc<Self>) -> Option<InlineTurn> {
        let pool = self.clone();
        self.inline.try_enter(|| async move { pool.open(Purpose::Tasks).await })
    }

    /// Returns the background thread, which is started on first use.
    pub(super) fn background(&self) -> Result<Arc<Background>> {
        let mut background = lock(&self.background);
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
        let mut idle = lock(&self.idle);
        idle.retain(|(session, used)| !session.is_closed() && now.after(*used) < CLOSE_DEDICATED_AFTER);
        idle.len() + self.inline.release_idle(now)
    }
}

/// Connection with a statement in flight. Dropping it before the answer has arrived abandons the
/// connection.
struct AbandonOnDrop<'a> {
    connector: &'a Connector,
    session: Option<Arc<Session>>,
}

impl Drop for AbandonOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            self.connector.abandoned.add(session.backend.as_ref());
        }
    }
}
