//! Connection for tasks, with its prepared statements.

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Row, Statement};

use super::sql::{COUNT, Sql};
use super::text::Texts;
use crate::store::postgres::abandoned::Backend;
use crate::store::postgres::deadline::ServerClock;
use crate::store::postgres::gate::{Gate, Use};
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::Fail;

/// Planner settings: statements are planned once, along the indexes that were made for them.
/// Statistics of a table that was empty at planning time, or that has grown a thousandfold since,
/// must not make the planner sort the backlog.
pub(super) const PLANS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
                     SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// Executor of statements: a link, or a transaction of the caller.
#[async_trait]
pub(super) trait Line: Sync {
    /// Sends one statement and waits for its rows.
    async fn ask(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error>;
}

/// One connection.
pub(in crate::store::postgres) struct Link {
    client: Client,
    texts: Texts,
    /// Prepared statements; `None` behind a pooler, where the next statement may go to another
    /// server process.
    prepared: Option<Box<[OnceCell<Statement>; COUNT]>>,
    /// Server process of this connection; `None` if it cannot be known.
    backend: Option<Backend>,
    clock: ServerClock,
}

impl Link {
    /// Opens a connection on the current runtime, where it lives.
    pub(super) async fn open(gate: &Gate, texts: Texts) -> Result<Self, Fail> {
        let (client, wire) = gate.connect(Use::Tasks).await?;
        tokio::spawn(async move {
            if let Err(error) = wire.await {
                tracing::debug!(%error, "a connection to PostgreSQL has ended");
            }
        });
        if gate.is_pooled() {
            return Ok(Self { client, texts, prepared: None, backend: None, clock: ServerClock::default() });
        }
        client.batch_execute(PLANS).await?;
        let backend = Backend::of(&client).await?;
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
    pub(in crate::store::postgres) const fn client(&self) -> &Client {
        &self.client
    }

    /// Executes statements by the simple query protocol, such as BEGIN.
    pub(super) async fn say(&self, words: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(words).await
    }

    /// Prepares statements, so that each is sent when first polled: inside a transaction the order
    /// matters.
    pub(super) async fn ready(&self, what: &[Sql]) -> Result<(), tokio_postgres::Error> {
        for what in what {
            self.statement(*what).await?;
        }
        Ok(())
    }

    /// Sends one statement and waits for its rows.
    pub(in crate::store::postgres) async fn query(
        &self,
        what: Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if let Some(statement) = self.statement(what).await? {
            return self.client.query(statement, params).await;
        }
        let text = self.texts.get(what);
        let until = match &text.with_deadline {
            Some(_) => Some(self.clock.until(&self.client).await?),
            None => None,
        };
        let deadline = until.as_ref().map(|until| until as Param<'_>);
        let params = params.iter().copied().chain(deadline);
        let params: Vec<_> = params.zip(text.types.iter().cloned()).collect();
        self.client.query_typed(text.with_deadline.as_ref().unwrap_or(&text.sql), &params).await
    }

    async fn statement(&self, what: Sql) -> Result<Option<&Statement>, tokio_postgres::Error> {
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let text = self.texts.get(what);
        let types = &text.types[..text.types.len() - usize::from(text.with_deadline.is_some())];
        let prepare = || self.client.prepare_typed(&text.sql, types);
        prepared[what as usize].get_or_try_init(prepare).await.map(Some)
    }
}

#[async_trait]
impl Line for Link {
    async fn ask(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.query(what, params).await
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
