//! PostgreSQL without leasehold: a conditional upsert acquires a lock, an update releases it, both prepared,
//! with one connection per client. For a contended lock, clients poll every 10 ms.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio_postgres::{Client as PgClient, NoTls, Statement};

use super::Client;

/// Poll interval for a contended lock.
const POLL: Duration = Duration::from_millis(10);

pub(crate) struct RawPostgres {
    client: PgClient,
    acquire: Statement,
    release: Statement,
    name: String,
    holder: String,
}

pub(crate) async fn create(url: &str, schema: &str) -> Result<()> {
    let client = connect(url).await?;
    let sql = format!(
        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.raw (name text PRIMARY KEY, holder text, \
         token bigint NOT NULL, expires_at timestamptz) WITH (fillfactor = 50)"
    );
    Ok(client.batch_execute(&sql).await?)
}

pub(crate) async fn remove(url: &str, schema: &str) -> Result<()> {
    let client = connect(url).await?;
    client
        .batch_execute(&format!("SET client_min_messages = error; DROP SCHEMA IF EXISTS {schema} CASCADE"))
        .await?;
    Ok(())
}

/// Returns the number of statements that clients have sent to this database so far; `None` if the server
/// does not count them.
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

pub(crate) async fn connect(url: &str) -> Result<PgClient> {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.context("PostgreSQL cannot be reached")?;
    tokio::spawn(connection);
    Ok(client)
}

/// Statement that acquires a free lock; parameters: name, holder.
pub(crate) fn acquire_sql(schema: &str) -> String {
    format!(
        "INSERT INTO {schema}.raw AS l (name, holder, token, expires_at) \
         VALUES ($1, $2, 1, clock_timestamp() + interval '30 s') ON CONFLICT (name) DO UPDATE \
         SET holder = excluded.holder, token = l.token + 1, expires_at = clock_timestamp() + interval '30 s' \
         WHERE l.holder IS NULL OR l.expires_at <= clock_timestamp() RETURNING token"
    )
}

pub(crate) fn release_sql(schema: &str) -> String {
    format!("UPDATE {schema}.raw SET holder = NULL WHERE name = $1 AND holder = $2")
}

impl RawPostgres {
    pub(crate) async fn open(url: &str, schema: &str, name: String, number: u32) -> Result<Self> {
        let client = connect(url).await?;
        let (acquire, release) =
            (client.prepare(&acquire_sql(schema)).await?, client.prepare(&release_sql(schema)).await?);
        Ok(Self { client, acquire, release, name, holder: format!("bench-{number}") })
    }
}

impl Client for RawPostgres {
    async fn acquire(&mut self) -> Result<u64> {
        loop {
            if let Some(row) = self.client.query_opt(&self.acquire, &[&self.name, &self.holder]).await? {
                return Ok(row.get::<_, i64>(0).unsigned_abs());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn release(&mut self) -> Result<()> {
        match self.client.execute(&self.release, &[&self.name, &self.holder]).await? {
            1 => Ok(()),
            _ => bail!("the lock could not be released"),
        }
    }
}
