//! Small versioned documents, stored in a table of their own.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::{first_row, int8, number, time, ttl_micros};
use super::error::PgError;
use super::locks::prefix_end;
use super::tasks::{Pool, Sql, TaskSession};
use crate::error::Result;
use crate::store::lock_store::page_size;
use crate::store::protocol::DocCall;
use crate::store::{
    Capabilities, Cursor, Document, DocumentStore, NewDocument, Page, PutIf, RESERVED_PREFIX, Time,
};

/// Document store in a PostgreSQL database.
#[derive(Debug)]
pub(super) struct PostgresDocuments {
    pool: Arc<Pool>,
    capabilities: Capabilities,
}

impl PostgresDocuments {
    pub(super) const fn new(pool: Arc<Pool>, capabilities: Capabilities) -> Self {
        Self { pool, capabilities }
    }

    fn map_error<T>(&self, read: Result<T, PgError>) -> Result<T> {
        read.map_err(|error| error.into_error(&self.pool.connector().description))
    }
}

#[async_trait]
impl DocumentStore for PostgresDocuments {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.pool.connector().options.display_url.clone()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let (key, now) = (key.to_owned(), self.pool.connector().now());
        let get = move |session: Arc<TaskSession>| {
            let key = key.clone();
            async move { Ok(session.query(Sql::DocGet, &[&key, &now]).await?) }
        };
        let rows = self.pool.run(DocCall::Get, get).await?;
        self.map_error(rows.first().map(|row| document_at(row, 0)).transpose())
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
        let params = Arc::new((key.to_owned(), document.body));
        let expected = expected.map(int8);
        let ttl = document.keep.map(ttl_micros);
        let now = self.pool.connector().now();
        let put = move |session: Arc<TaskSession>| {
            let params = params.clone();
            async move {
                let rows = session.query(Sql::DocPut, &[&params.0, &expected, &params.1, &ttl, &now]).await?;
                if let Some(row) = rows.first() {
                    return Ok(PutIf::Written(number(row, 0)?));
                }
                let rows = session.query(Sql::DocGet, &[&params.0, &now]).await?;
                Ok(PutIf::Conflict(rows.first().map(|row| document_at(row, 0)).transpose()?))
            }
        };
        self.pool.run(DocCall::PutIf, put).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let after = after.map(|after| after.0).unwrap_or_default();
        let exclude_reserved = !prefix.starts_with(RESERVED_PREFIX);
        let params = Arc::new((after, prefix.to_owned(), prefix_end(prefix)));
        let (limit, now) = (page_size(limit), self.pool.connector().now());
        let list = move |session: Arc<TaskSession>| {
            let params = params.clone();
            async move {
                let (after, prefix, end) = &*params;
                let limit = i64::from(limit);
                Ok(session
                    .query(Sql::DocList, &[after, prefix, end, &exclude_reserved, &limit, &now])
                    .await?)
            }
        };
        let rows = self.pool.run(DocCall::List, list).await?;
        let read = |row: &Row| Ok((row.try_get::<_, String>(0)?, document_at(row, 1)?));
        let items: Vec<(String, Document)> = self.map_error(rows.iter().map(read).collect())?;
        let next = items.last().filter(|_| items.len() == limit as usize).map(|(key, _)| Cursor(key.clone()));
        Ok(Page { items, next })
    }

    async fn time(&self) -> Result<Time> {
        let now = self.pool.connector().now();
        let now_query =
            move |session: Arc<TaskSession>| async move { Ok(session.query(Sql::Now, &[&now]).await?) };
        let rows = self.pool.run(DocCall::Time, now_query).await?;
        self.map_error(first_row(&rows).and_then(|row| time(row, 0))).map(Time::Exact)
    }
}

fn document_at(row: &Row, at: usize) -> Result<Document, PgError> {
    Ok(Document { version: number(row, at)?, body: row.try_get(at + 1)? })
}

// --- statements -----------------------------------------------------------------------------------

pub(super) const DOC_GET: &str = "
    SELECT version, body FROM $s.docs WHERE key = $1 AND (expires_at IS NULL OR expires_at > $NOW)";

/// Writes the document if its state is as expected: version `$2`, or absent, or expired. A version
/// is never used twice.
pub(super) const DOC_PUT: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    changed AS (
        UPDATE $s.docs d SET version = greatest(d.version + 1, c.now), body = $3, expires_at = c.now + $4 FROM clock c
        WHERE d.key = $1 AND d.version = $2 AND (d.expires_at IS NULL OR d.expires_at > c.now) RETURNING d.version),
    added AS (
        INSERT INTO $s.docs AS d (key, version, body, expires_at) SELECT $1, now, $3, now + $4 FROM clock
        WHERE $2::bigint IS NULL
        ON CONFLICT (key) DO UPDATE SET version = greatest(d.version + 1, excluded.version), body = excluded.body,
            expires_at = excluded.expires_at
        WHERE d.expires_at <= excluded.version RETURNING d.version)
    SELECT version FROM changed UNION ALL SELECT version FROM added";

/// Lists documents by key: after `$1`, from the prefix `$2` on and before `$3`; with `$4` without
/// the reserved prefix.
pub(super) const DOC_LIST: &str = "
    SELECT key, version, body FROM $s.docs
    WHERE key > $1 AND key >= $2 AND ($3::text IS NULL OR key < $3) AND NOT ($4 AND key >= E'\\x01' AND key < E'\\x02')
      AND (expires_at IS NULL OR expires_at > $NOW)
    ORDER BY key LIMIT $5";

/// Deletes expired documents, but not before the clock has passed their version, so that the next
/// version is higher.
pub(super) const PURGE_DOCUMENTS: &str = "
    DELETE FROM $s.docs WHERE key IN (
        SELECT key FROM $s.docs WHERE expires_at <= (SELECT $NOW) AND version < (SELECT $NOW) ORDER BY expires_at LIMIT 1000
        FOR UPDATE SKIP LOCKED)";
