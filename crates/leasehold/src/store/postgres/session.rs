//! One connection and the statements that it has prepared.

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
use crate::store::Moment;

/// No single piece of work takes longer. The server gives up before that, by its own timeouts.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// One connection.
pub(super) struct Session {
    client: Client,
    texts: Texts,
    statements: Statements,
    /// Who this connection is on the server; none if that cannot be known.
    backend: Option<Backend>,
    clock: ServerClock,
    /// When it was last used, in µs.
    used: AtomicU64,
    given_up: CancellationToken,
}

/// A client does not give up before this time after it has sent a statement.
pub(super) const STEP: Duration = Duration::from_millis(4500);
/// How statements reach the server.
enum Statements {
    /// Prepared once, then called by name.
    Named(Box<[OnceCell<Statement>; Texts::COUNT]>),
    /// Sent whole each time: behind a pooler the next one may go to another server process.
    Unnamed,
}

/// What a statement is given.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

impl Session {
    pub(super) fn new(client: Client, texts: Texts, named: bool, backend: Option<Backend>) -> Self {
        let statements = if named {
            Statements::Named(Box::new(std::array::from_fn(|_| OnceCell::new())))
        } else {
            Statements::Unnamed
        };
        let (clock, used) = (ServerClock::default(), AtomicU64::new(Moment::now().as_micros()));
        Self { client, texts, statements, backend, clock, used, given_up: CancellationToken::new() }
    }

    /// Whether it is known to be gone.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.given_up.is_cancelled()
    }

    /// It is of no more use: a transaction may be open on it, or an answer on its way.
    pub(super) fn give_up(&self) {
        self.given_up.cancel();
    }

    /// Ends when it is given up.
    pub(super) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }

    /// How long nobody has used it.
    pub(super) fn unused_for(&self, now: Moment) -> Duration {
        now.after(Moment::from_micros(self.used.load(Ordering::Relaxed)))
    }

    fn is_used(&self) {
        self.used.store(Moment::now().as_micros(), Ordering::Relaxed);
    }

    /// Who this connection is on the server.
    pub(super) const fn backend(&self) -> Option<&Backend> {
        self.backend.as_ref()
    }

    /// The bare connection, for what is not asked often.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Prepares what follows, so that it is sent the moment it is first polled: inside a transaction the order counts.
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

    /// Forgets what is known of the server's clock: it may have been set.
    pub(super) fn forget_clock(&self) {
        self.clock.forget();
    }

    /// Sends a few plain words, such as BEGIN.
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

/// Gives up when the time is over.
pub(super) async fn within<T>(
    time: Duration,
    work: impl Future<Output = Result<T, Fail>>,
) -> Result<T, Fail> {
    tokio::time::timeout(time, work).await.unwrap_or(Err(Fail::Late))
}
