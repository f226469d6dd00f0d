//! Small versioned documents, stored in a table of their own.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::columns::{OwnedParam, int8, number, ttl_micros};
use super::connection::Session;
use super::error::PgError;
use super::locks::prefix_end;
use super::tasks::Pool;
use crate::error::Result;
use crate::store::lock_store::page_size;
use crate::store::postgres::sql::{BIG, BOOL, Sql, TEXT};
use crate::store::protocol::DocCall;
use crate::store::{
    Capabilities, Cursor, Document, DocumentStore, NewDocument, Page, PutIf, RESERVED_PREFIX, Time,
};

#[derive(Debug)]
pub(super) struct PostgresDocuments {
    pub(super) pool: Arc<Pool>,
    pub(super) capabilities: Capabilities,
}

#[async_trait]
impl DocumentStore for PostgresDocuments {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.pool.connector.options.display_url.clone()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let params: Vec<OwnedParam<'_>> = vec![Box::new(key.to_owned()), Box::new(self.pool.connector.now())];
        let rows = self.pool.query(DocCall::Get, &DOC_GET, params).await?;
        self.pool.connector.map_error(first_document(&rows))
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
        let (expected, ttl) = (expected.map(int8), document.keep.map(ttl_micros));
        let (input, now) = (Arc::new((key.to_owned(), document.body)), self.pool.connector.now());
        let put = move |session: Arc<Session>, input: Arc<(String, String)>| async move {
            let (key, body) = &*input;
            let rows = session.query(&DOC_PUT, &[key, &expected, body, &ttl, &now]).await?;
            if let Some(row) = rows.first() {
                return Ok(PutIf::Written(number(row, 0)?));
            }
            let rows = session.query(&DOC_GET, &[key, &now]).await?;
            first_document(&rows).map(PutIf::Conflict)
        };
        self.pool.run(DocCall::PutIf, input, put).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let limit = page_size(limit);
        let params: Vec<OwnedParam<'_>> = vec![
            Box::new(after.map(|after| after.0).unwrap_or_default()),
            Box::new(prefix.to_owned()),
            Box::new(prefix_end(prefix)),
            Box::new(!prefix.starts_with(RESERVED_PREFIX)),
            Box::new(i64::from(limit)),
            Box::new(self.pool.connector.now()),
        ];
        let rows = self.pool.query(DocCall::List, &DOC_LIST, params).await?;
        let read = |row: &Row| Ok((row.try_get::<_, String>(0)?, document_at(row, 1)?));
        let items = self.pool.connector.map_error(rows.iter().map(read).collect())?;
        Ok(Page::of(items, limit as usize, |(key, _)| Cursor(key.clone())))
    }

    async fn time(&self) -> Result<Time> {
        self.pool.now().await.map(Time::Exact)
    }
}

fn first_document(rows: &[Row]) -> Result<Option<Document>, PgError> {
    rows.first().map(|row| document_at(row, 0)).transpose()
}

fn document_at(row: &Row, at: usize) -> Result<Document, PgError> {
    Ok(Document { version: number(row, at)?, body: row.try_get(at + 1)? })
}

// --- statements -----------------------------------------------------------------------------------

pub(crate) static DOC_GET: Sql = Sql::new(
    &[TEXT],
    "SELECT version, body FROM $s.docs WHERE key = $1 AND (expires_at IS NULL OR expires_at > $NOW)",
);

/// Writes the document if its state is as expected: version `$2`, or absent, or expired. A version
/// is never used twice.
pub(crate) static DOC_PUT: Sql = Sql::new(
    &[TEXT, BIG, TEXT, BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    changed AS (
        UPDATE $s.docs d SET version = greatest(d.version + 1, c.now), body = $3, expires_at = c.now + $4 FROM clock c
        WHERE d.key = $1 AND d.version = $2 AND (d.expires_at IS NULL OR d.expires_at > c.now) RETURNING d.version),
    added AS (
        INSERT INTO $s.docs AS d (key, version, body, expires_at) SELECT $1, now, $3, now + $4 FROM clock
        WHERE $2::bigint IS NULL
        ON CONFLICT (key) DO UPDATE SET version = greatest(d.version + 1, excluded.version), body = excluded.body,
            expires_at = excluded.expires_at
        WHERE d.expires_at <= excluded.version RETURNING d.version)
    SELECT version FROM changed UNION ALL SELECT version FROM added",
);

/// Lists documents by key: after `$1`, from the prefix `$2` on and before `$3`; with `$4` without
/// the reserved prefix.
pub(crate) static DOC_LIST: Sql = Sql::new(
    &[TEXT, TEXT, TEXT, BOOL, BIG],
    "SELECT key, version, body FROM $s.docs
    WHERE key > $1 AND key >= $2 AND ($3::text IS NULL OR key < $3) AND NOT ($4 AND key >= E'\\x01' AND key < E'\\x02')
      AND (expires_at IS NULL OR expires_at > $NOW)
    ORDER BY key LIMIT $5",
);

/// Deletes expired documents, but not before the clock has passed their version, so that the next
/// version is higher.
pub(crate) static PURGE_DOCUMENTS: Sql = Sql::new(
    &[],
    "DELETE FROM $s.docs WHERE key IN (
        SELECT key FROM $s.docs WHERE expires_at <= (SELECT $NOW) AND version < (SELECT $NOW) ORDER BY expires_at LIMIT $MAX_ROWS
        FOR UPDATE SKIP LOCKED)",
);
