//! PostgreSQL without leasehold: one conditional upsert takes a lock, one update gives it back, both prepared, on a
//! connection of the client's own. For a lock that all want, the same every 10 ms.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client as PgClient, NoTls, Statement};

use super::Client;

/// How long a client of the same lock pauses before it asks again.
const POLL: Duration = Duration::from_millis(10);

/// A client with a connection of its own.
pub(crate) struct RawPostgres {
    client: PgClient,
    take: Statement,
    give: Statement,
    name: String,
    holder: String,
}

/// Makes the schema and the table.
pub(crate) async fn create(url: &str, schema: &str) -> Result<()> {
    let client = connect(url).await?;
    let sql = format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.raw (name text PRIMARY KEY, holder text, \
         token bigint NOT NULL, expires_at timestamptz) WITH (fillfactor = 50)"
    );
    Ok(client.batch_execute(&sql).await?)
}

/// Removes a schema with all that is in it.
pub(crate) async fn remove(url: &str, schema: &str) -> Result<()> {
    let client = connect(url).await?;
    client
        .batch_execute(&format!("SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE"))
        .await?;
    Ok(())
}

/// How many statements clients have sent to this database so far; none if the server does not count them.
pub(crate) async fn commands_sent(url: &str) -> Result<Option<u64>> {
    let client = connect(url).await?;
    let counts = "SELECT 1 FROM pg_extension WHERE extname = 'pg_stat_statements'";
    if client.query_opt(counts, &[]).await?.is_none() {
        return Ok(None);
    }
    let sum = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid \
               WHERE d.datname = current_database()";
    Ok(Some(client.query_one(sum, &[]).await?.get::<_, i64>(0).unsigned_abs()))
}

async fn connect(url: &str) -> Result<PgClient> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.context("PostgreSQL cannot be reached")?;
    tokio::spawn(connection);
    Ok(client)
}

/// Takes a lock that nobody has, by name and holder.
pub(crate) fn take(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.raw AS l (name, holder, token, expires_at) \
         VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') ON CONFLICT (name) DO UPDATE \
         SET holder = excluded.holder, token = l.token + 1, expires_at = clock_timestamp() + interval '30 s' \
         WHERE l.holder IS NULL OR l.expires_at <= clock_timestamp() RETURNING token"
    )
}

/// Gives it back.
pub(crate) fn give(schema: &str) -> String {
    format!("UPDATE {schema}.raw SET holder = NULL WHERE name = $1 AND holder = $2")
}

impl RawPostgres {
    pub(crate) async fn open(url: &str, schema: &str, name: String, number: u32) -> Result<Self> {
        let client = connect(url).await?;
        let (take, give) = (client.prepare(&take(schema)).await?, client.prepare(&give(schema)).await?);
        Ok(Self { client, take, give, name, holder: format!("bench-{number}") })
    }
}

impl Client for RawPostgres {
    async fn acquire(&mut self) -> Result<u64> {
        loop {
            if let Some(row) = self.client.query_opt(&self.take, &[&self.name, &self.holder]).await? {
                return Ok(row.get::<_, i64>(0).unsigned_abs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn release(&mut self) -> Result<()> {
        match self.client.execute(&self.give, &[&self.name, &self.holder]).await? {
            1 => Ok(()),
            _ => bail!("an own lock could not be released"),
        }
    }
}
