//! One connection and the statements that it has prepared.

use std::time::Duration;

use tokio::sync::OnceCell;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::sql::{Sql, Texts};
use super::trouble::Fail;

/// No single piece of work takes longer. The server gives up before that, by its own timeouts.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// One connection.
pub(super) struct Session {
    client: Client,
    texts: Texts,
    statements: Statements,
}

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
    pub(super) fn new(client: Client, texts: Texts, named: bool) -> Self {
        let statements = if named {
            Statements::Named(Box::new(std::array::from_fn(|_| OnceCell::new())))
        } else {
            Statements::Unnamed
        };
        Self { client, texts, statements }
    }

    /// Whether it is known to be gone.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
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
        if let Some(statement) = self.prepared(what).await? {
            return self.client.query(statement, params).await;
        }
        let text = self.texts.get(what);
        let params: Vec<_> = params.iter().copied().zip(text.types.iter().cloned()).collect();
        self.client.query_typed(&text.sql, &params).await
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
