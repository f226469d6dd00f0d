//! One connection and its prepared statements.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{OnceCell, RwLock, RwLockReadGuard};
use tokio_postgres::{Client, Row, Statement};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::late_statements::{Backend, ServerClock};
use crate::store::BootInstant;
use crate::store::postgres::columns::Param;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{Sql, SqlTexts};
use crate::store::support::mutex::lock;

/// Maximum duration of one unit of work. The server gives up earlier, by its own timeouts.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum time after sending a statement before the client gives up.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_millis(4500);

pub(crate) struct Session {
    pub(crate) client: Client,
    texts: Arc<SqlTexts>,
    /// Prepared statements by [`Sql::key`]; `None` behind a pooler, where the next statement may go to another
    /// server process.
    prepared: Option<Mutex<HashMap<usize, Arc<OnceCell<Statement>>>>>,
    /// Server process of this connection; `None` if it cannot be known.
    pub(crate) backend: Option<Backend>,
    pub(crate) clock: ServerClock,
    /// Locked for writing while a transaction is open. A caller that does not own the connection locks it
    /// for reading while it sends a statement, so that the statement is never part of a transaction of
    /// the owner.
    pub(crate) transaction: RwLock<()>,
    /// Time of the last use, in µs.
    last_used: AtomicU64,
    pub(crate) discarded: CancellationToken,
}

impl Session {
    pub(crate) fn new(
        client: Client,
        texts: Arc<SqlTexts>,
        prepared: bool,
        backend: Option<Backend>,
    ) -> Self {
        let prepared = prepared.then(Mutex::default);
        let (clock, last_used) = (ServerClock::default(), AtomicU64::new(BootInstant::now().as_micros()));
        let (transaction, discarded) = (RwLock::new(()), CancellationToken::new());
        Self { client, texts, prepared, backend, clock, transaction, last_used, discarded }
    }

    /// Whether the connection is known to be closed, or was discarded.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.discarded.is_cancelled()
    }

    /// Marks the connection as unusable: a transaction may be open on it, or an answer in flight.
    pub(crate) fn discard(&self) {
        self.discarded.cancel();
    }

    /// Returns a guard that discards the connection when dropped, unless it is disarmed first: a caller that
    /// fails, or is dropped, must not keep the connection that listens for notifications.
    pub(crate) fn discard_on_drop(&self) -> DropGuard {
        self.discarded.clone().drop_guard()
    }

    pub(crate) fn idle_for(&self, now: BootInstant) -> Duration {
        now.after(BootInstant::from_micros(self.last_used.load(Ordering::Relaxed)))
    }

    /// Prepares statements, so that each is sent when first polled: inside a transaction the order
    /// matters.
    pub(crate) async fn prepare(&self, statements: &[&'static Sql]) -> Result<(), tokio_postgres::Error> {
        for sql in statements {
            self.prepared_statement(sql).await?;
        }
        Ok(())
    }

    /// Whether a query of this statement is sent when first polled.
    pub(crate) fn is_prepared(&self, sql: &'static Sql) -> bool {
        let Some(prepared) = &self.prepared else { return false };
        lock(prepared).get(&sql.key()).is_some_and(|statement| statement.initialized())
    }

    pub(crate) async fn query(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.last_used.store(BootInstant::now().as_micros(), Ordering::Relaxed);
        if let Some(statement) = self.prepared_statement(sql).await? {
            return self.client.query(&statement, params).await;
        }
        let text = self.texts.get(sql);
        let deadline = if text.has_deadline { Some(self.clock.deadline(&self.client).await?) } else { None };
        let params = params.iter().copied().chain(deadline.as_ref().map(|deadline| deadline as Param<'_>));
        let params: Vec<_> = params.zip(text.types.iter().cloned()).collect();
        self.client.query_typed(&text.sql, &params).await
    }

    /// Executes a statement for a caller that does not own the connection, outside of the transactions of its
    /// owner. Returns `None` if the owner has one open.
    pub(crate) async fn try_query_outside(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Option<Vec<Row>>, tokio_postgres::Error> {
        self.prepare(&[sql]).await?;
        let Ok(outside) = self.transaction.try_read() else { return Ok(None) };
        self.query_under(outside, sql, params).await.map(Some)
    }

    /// Executes a statement as [`try_query_outside`](Self::try_query_outside) does, but waits for the end of an
    /// open transaction.
    pub(crate) async fn query_outside(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.prepare(&[sql]).await?;
        let outside = self.transaction.read().await;
        self.query_under(outside, sql, params).await
    }

    /// Executes a prepared statement. The owner may begin a transaction as soon as the statement is sent, because
    /// the server executes statements in their order: its transaction must not wait for a caller that does not
    /// fetch its answer.
    async fn query_under(
        &self,
        outside: RwLockReadGuard<'_, ()>,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let mut answer = pin!(self.query(sql, params));
        let sent = poll_fn(|context| Poll::Ready(answer.as_mut().poll(context))).await;
        drop(outside);
        match sent {
            Poll::Ready(rows) => rows,
            Poll::Pending => answer.await,
        }
    }

    /// Executes statements by the simple query protocol, such as BEGIN.
    pub(crate) async fn simple_query(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    async fn prepared_statement(
        &self,
        sql: &'static Sql,
    ) -> Result<Option<Statement>, tokio_postgres::Error> {
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let statement = lock(prepared).entry(sql.key()).or_default().clone();
        if let Some(statement) = statement.get() {
            return Ok(Some(statement.clone()));
        }
        let text = self.texts.get(sql);
        let prepare = || self.client.prepare_typed(&text.sql, &text.types);
        statement.get_or_try_init(prepare).await.cloned().map(Some)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Fails with [`PgError::Timeout`] when `limit` has passed.
pub(crate) async fn with_timeout<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, PgError>>,
) -> Result<T, PgError> {
    tokio::time::timeout(limit, work).await.unwrap_or(Err(PgError::Timeout))
}
