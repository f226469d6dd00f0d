//! A connection made for tasks, with the statements that it has prepared.

use async_trait::async_trait;
use tokio::sync::OnceCell;
use tokio_postgres::{Client, Row, Statement};

use super::sql::{COUNT, Sql};
use super::text::Texts;
use crate::store::postgres::gate::Gate;
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::Fail;

/// How statements are planned: along the indexes that were made for them, once. What a planner thinks of a table that was
/// empty when it looked, or that has grown a thousandfold since, must not make it sort the backlog.
pub(super) const PLANS: &str = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; \
                     SET enable_mergejoin = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// Whoever can be asked: a link, or a transaction of the caller.
#[async_trait]
pub(super) trait Line: Sync {
    /// Sends one statement and waits for its rows.
    async fn ask(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error>;
}

/// One connection.
pub(in crate::store::postgres) struct Link {
    client: Client,
    texts: Texts,
    /// None behind a pooler, where the next statement may go to another server process.
    prepared: Option<Box<[OnceCell<Statement>; COUNT]>>,
}

impl Link {
    /// Opens one. To be called where it is to live.
    pub(super) async fn open(gate: &Gate, texts: Texts) -> Result<Self, Fail> {
        let (client, wire) = gate.connect().await?;
        tokio::spawn(async move {
            if let Err(error) = wire.await {
                tracing::debug!(%error, "a connection to PostgreSQL has ended");
            }
        });
        let prepared = if gate.is_pooled() {
            None
        } else {
            client.batch_execute(PLANS).await?;
            Some(Box::new(std::array::from_fn(|_| OnceCell::new())))
        };
        Ok(Self { client, texts, prepared })
    }

    /// Whether it is known to be gone.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// The bare connection.
    pub(in crate::store::postgres) const fn client(&self) -> &Client {
        &self.client
    }

    /// Sends a few plain words, such as BEGIN.
    pub(super) async fn say(&self, words: &str) -> Result<(), tokio_postgres::Error> {
        self.client.batch_execute(words).await
    }

    /// Prepares what follows, so that it is sent the moment it is first polled: inside a transaction the order counts.
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
        let params: Vec<_> = params.iter().copied().zip(text.types.iter().cloned()).collect();
        self.client.query_typed(&text.sql, &params).await
    }

    async fn statement(&self, what: Sql) -> Result<Option<&Statement>, tokio_postgres::Error> {
        let Some(prepared) = &self.prepared else { return Ok(None) };
        let text = self.texts.get(what);
        let prepare = || self.client.prepare_typed(&text.sql, &text.types);
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
