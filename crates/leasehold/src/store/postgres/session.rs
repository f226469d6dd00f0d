//! One connection and its prepared statements.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tokio_util::sync::CancellationToken;

use super::abandoned::Backend;
use super::deadline::ServerClock;
use super::sql::{Sql, Texts};
use super::trouble::Fail;
use crate::store::BootInstant;

/// Maximum duration of one unit of work. The server gives up earlier, by its own timeouts.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// One connection.
pub(super) struct Session {
    client: Client,
    texts: Texts,
    statements: Statements,
    /// Server process of this connection; `None` if it cannot be known.
    backend: Option<Backend>,
    clock: ServerClock,
    /// Time of the last use, in µs.
    used: AtomicU64,
    given_up: CancellationToken,
}

/// Minimum time after sending a statement before the client gives up.
pub(super) const STEP: Duration = Duration::from_millis(4500);
/// Way in which statements reach the server.
enum Statements {
    /// Prepared once, then executed by name.
    Named(Box<[OnceCell<Statement>; Texts::COUNT]>),
    /// Sent with the full text each time: behind a pooler the next one may go to another server
    /// process.
    Unnamed,
}

/// Parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

impl Session {
    pub(super) fn new(client: Client, texts: Texts, named: bool, backend: Option<Backend>) -> Self {
        let statements = if named {
            Statements::Named(Box::new(std::array::from_fn(|_| OnceCell::new())))
        } else {
            Statements::Unnamed
        };
        let (clock, used) = (ServerClock::default(), AtomicU64::new(BootInstant::now().as_micros()));
        Self { client, texts, statements, backend, clock, used, given_up: CancellationToken::new() }
    }

    /// Whether the connection is known to be closed, or was given up.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.given_up.is_cancelled()
    }

    /// Marks the connection as unusable: a transaction may be open on it, or an answer in flight.
    pub(super) fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Waits until the connection is given up.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// Returns the time since the last use.
    pub(super) fn unused_for(&self, now: BootInstant) -> Duration {
        now.after(BootInstant::from_micros(self.used.load(Ordering::Relaxed)))
    }

    fn is_used(&self) {
        self.used.store(BootInstant::now().as_micros(), Ordering::Relaxed);
    }

    /// Returns the server process of this connection.
    pub(super) const fn backend(&self) -> Option<&Backend> {
        self.backend.as_ref()
    }

    /// Returns the underlying client, for statements that are not prepared.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares statements, so that each is sent when first polled: inside a transaction the order
    /// matters.
    pub(super) async fn ready(&self, what: &[Sql]) -> Result<(), tokio_postgres::Error> {
        for what in what {
            self.prepared(*what).await?;
        }
        Ok(())
    }

    /// Sends one statement and waits for its rows.
    pub(super) async fn query(
        &self,
        what: Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.is_used();
        if let Some(statement) = self.prepared(what).await? {
            return self.client.query(statement, params).await;
        }
        let text = self.texts.get(what);
        let until = if text.has_deadline { Some(self.clock.until(&self.client).await?) } else { None };
        let deadline = until.as_ref().map(|until| until as Param<'_>);
        let params = params.iter().copied().chain(deadline);
        let params: Vec<_> = params.zip(text.types.iter().cloned()).collect();
        self.client.query_typed(&text.sql, &params).await
    }

    /// Discards the reading of the server's clock: the clock may have been set.
    pub(super) fn forget_clock(&self) {
        self.clock.forget();
    }

    /// Executes statements by the simple query protocol, such as BEGIN.
    pub(super) async fn say(&self, words: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(words).await
    }

    async fn prepared(&self, what: Sql) -> Result<Option<&Statement>, tokio_postgres::Error> {
        match &self.statements {
            Statements::Unnamed => Ok(None),
            Statements::Named(statements) => {
                let text = self.texts.get(what);
                let prepare = || self.client.prepare_typed(&text.sql, &text.types);
                statements[what as usize].get_or_try_init(prepare).await.map(Some)
            }
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

/// Fails with [`Fail::Late`] when the time is over.
pub(super) async fn within<T>(
    time: Duration,
    work: impl Future<Output = Result<T, Fail>>,
) -> Result<T, Fail> {
    tokio::time::timeout(time, work).await.unwrap_or(Err(Fail::Late))
}
