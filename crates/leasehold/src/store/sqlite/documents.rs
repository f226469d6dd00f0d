//! Documents: a table and a version comparison inside a transaction.

use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, params};

use super::connection::{WriteOptions, Writer};
use super::schema::{meta, micros};
use super::tasks::TaskTransaction;
use crate::Result;
use crate::model::Timestamp;
use crate::store::document_store::{RESERVED_PREFIX, is_listed};
use crate::store::lock_store::page_size;
use crate::store::{Capabilities, Cursor, Document, DocumentStore, NewDocument, Page, PutIf, Time};

#[derive(Debug)]
pub(super) struct SqliteDocs {
    pub(super) writer: Arc<Writer>,
    pub(super) capabilities: Capabilities,
}

/// Average number of writes between sweeps of expired documents (chosen at random), and the maximum
/// number of documents per sweep.
const SWEEP_EVERY: u32 = 64;
const SWEEP_LIMIT: u32 = 256;

const GET: &str =
    "SELECT version, body FROM leasehold_docs WHERE key = ?1 AND (expires_at IS NULL OR expires_at > ?2)";
/// Lists the keys from ?1 to before ?2, or all from ?1 on: a blob sorts after every text.
const LIST: &str = "SELECT key, version, body FROM leasehold_docs \
    WHERE key >= ?1 AND key < coalesce(?2, x'') AND (expires_at IS NULL OR expires_at > ?3) ORDER BY key LIMIT ?4";
/// Finds the version of an expired document, too.
const VERSION: &str = "SELECT version FROM leasehold_docs WHERE key = ?";
const PUT: &str = "INSERT INTO leasehold_docs (key, version, body, expires_at) VALUES (?1, ?2, ?3, ?4) \
    ON CONFLICT (key) DO UPDATE \
    SET version = excluded.version, body = excluded.body, expires_at = excluded.expires_at";
const EXPIRED: &str =
    "SELECT rowid, version FROM leasehold_docs WHERE expires_at <= ? ORDER BY expires_at LIMIT ?";
const DELETE: &str = "DELETE FROM leasehold_docs WHERE rowid = ?";
/// Key of the highest version of a removed document.
const MIN_VERSION: &str = "docs_min_version";
const SET_MIN_VERSION: &str = "INSERT INTO leasehold_meta (key, value) VALUES ('docs_min_version', ?) \
    ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)";

#[async_trait]
impl DocumentStore for SqliteDocs {
    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn url(&self) -> String {
        self.writer.url()
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let key = key.to_owned();
        self.writer.read(move |tx| get(tx, &key)).await
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        let keys = keys.to_vec();
        self.writer.read(move |tx| keys.iter().map(|key| get(tx, key)).collect()).await
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, document: NewDocument) -> Result<PutIf> {
        let key = key.to_owned();
        // The answer of a conflict depends on writes of other callers.
        let options = WriteOptions { weight: 1, always_sync: true };
        self.writer.transact(options, move |tx| put_if(tx, &key, expected, &document)).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let (prefix, limit) = (prefix.to_owned(), page_size(limit));
        let after = after.map(|after| after.0).unwrap_or_default();
        let items = self.writer.read(move |tx| list(tx, &prefix, &after, limit)).await?;
        Ok(Page::of(items, limit as usize, |(key, _)| Cursor(key.clone())))
    }

    async fn time(&self) -> Result<Time> {
        Ok(Time::Exact(self.writer.clock.now()))
    }
}

fn get(tx: &TaskTransaction<'_>, key: &str) -> rusqlite::Result<Option<Document>> {
    let (conn, now) = tx.parts();
    let mut select = conn.prepare_cached(GET)?;
    select.query_row(params![key, micros(now)], |row| document(row, 0)).optional()
}

fn put_if(
    tx: &TaskTransaction<'_>,
    key: &str,
    expected: Option<u64>,
    document: &NewDocument,
) -> rusqlite::Result<PutIf> {
    let current = get(tx, key)?;
    if current.as_ref().map(|doc| doc.version) != expected {
        return Ok(PutIf::Conflict(current));
    }
    let (conn, now) = tx.parts();
    let before: Option<i64> = conn.prepare_cached(VERSION)?.query_row([key], |row| row.get(0)).optional()?;
    // Based on the clock, too, and above the versions of all removed documents: a document that
    // replaces a removed one must not get the same version, even if the clock was set back.
    let min_version: Option<i64> = meta(conn, MIN_VERSION)?;
    let next = before.max(min_version).map_or(0, |version| version + 1).max(micros(now));
    let until = document.keep.map(|keep| micros(now.plus(keep)));
    conn.prepare_cached(PUT)?.execute(params![key, next, document.body, until])?;
    if fastrand::u32(..SWEEP_EVERY) == 0 {
        sweep(conn, now)?;
    }
    Ok(PutIf::Written(next.cast_unsigned()))
}

fn list(
    tx: &TaskTransaction<'_>,
    prefix: &str,
    after: &str,
    limit: u32,
) -> rusqlite::Result<Vec<(String, Document)>> {
    let (conn, now) = tx.parts();
    // Reserved keys sort before all others; there may be many.
    let first = if prefix.is_empty() { end_of_prefix(&RESERVED_PREFIX.to_string()) } else { None };
    // One bound on each side, computed here: of two conditions on the key, SQLite uses only one to find the
    // first row.
    let from = first.unwrap_or_else(|| prefix.to_owned()).max(format!("{after}\0"));
    let values = params![from, end_of_prefix(prefix), micros(now), limit];
    let mut select = conn.prepare_cached(LIST)?;
    let docs = select.query_map(values, |row| Ok((row.get(0)?, document(row, 1)?)))?;
    let docs: rusqlite::Result<Vec<(String, _)>> = docs.collect();
    docs.inspect(|docs| debug_assert!(docs.iter().all(|(key, _)| is_listed(key, prefix))))
}

/// Returns the first text after all texts with this prefix; `None` if there is none.
fn end_of_prefix(prefix: &str) -> Option<String> {
    let next = |(at, last): (usize, char)| (last..=char::MAX).nth(1).map(|next| (at, next));
    let (at, next) = prefix.char_indices().rev().find_map(next)?;
    Some(format!("{}{next}", &prefix[..at]))
}

/// Removes expired documents and stores the highest version among them.
fn sweep(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let mut select = conn.prepare_cached(EXPIRED)?;
    let expired =
        select.query_map(params![micros(now), SWEEP_LIMIT], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let expired = expired.collect::<rusqlite::Result<Vec<(i64, i64)>>>()?;
    for (row, _) in &expired {
        conn.prepare_cached(DELETE)?.execute([row])?;
    }
    if let Some(highest) = expired.iter().map(|(_, version)| *version).max() {
        conn.prepare_cached(SET_MIN_VERSION)?.execute([highest])?;
    }
    Ok(())
}

fn document(row: &rusqlite::Row<'_>, at: usize) -> rusqlite::Result<Document> {
    Ok(Document { version: row.get::<_, i64>(at)?.cast_unsigned(), body: row.get(at + 1)? })
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;
    use crate::store::sqlite::schema::TABLES;
    use crate::store::sqlite::tasks::QueueIds;

    const NOW: Timestamp = Timestamp::from_micros(1);

    #[test]
    fn the_end_of_a_prefix_is_after_all_keys_with_it() {
        let ends = ["a/", "\u{1}", "a\u{d7ff}", "a\u{10ffff}", "\u{10ffff}", ""].map(end_of_prefix);
        let ends = ends.each_ref().map(Option::as_deref);
        assert_eq!(ends, [Some("a0"), Some("\u{2}"), Some("a\u{e000}"), Some("b"), None, None]);
    }

    /// Lists documents; returns their keys and the steps of SQLite's virtual machine.
    fn listed(conn: &Connection, prefix: &str, after: &str) -> (Vec<String>, i32) {
        let steps = || conn.prepare_cached(LIST).unwrap().reset_status(StatementStatus::VmStep);
        steps();
        let mut queues = QueueIds::default();
        let tx = TaskTransaction::new(conn, &mut queues, NOW);
        let found = list(&tx, prefix, after, 100).unwrap();
        (found.into_iter().map(|(key, _)| key).collect(), steps())
    }

    #[test]
    fn the_cost_of_a_list_does_not_depend_on_documents_with_other_prefixes() {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch(TABLES).unwrap();
        let put = |key: &str| conn.execute(PUT, params![key, 1, "", None::<i64>]).unwrap();
        for key in ["a", "m/1", "m/2", "\u{10ffff}1"] {
            put(key);
        }
        let list = |prefix, after| listed(&conn, prefix, after);
        let all = list("", "");
        let few = [list("m/", ""), list("m/", "m/1"), list("\u{10ffff}", "")];
        assert_eq!(all.0, ["a", "m/1", "m/2", "\u{10ffff}1"]);
        assert_eq!(few.each_ref().map(|(keys, _)| keys.join(" ")), ["m/1 m/2", "m/2", "\u{10ffff}1"]);
        for number in 0..1000 {
            put(&format!("\u{1}{number}"));
        }
        assert_eq!(list("", ""), all, "without reserved keys");
        assert_eq!(list("\u{1}", "").0.len(), 100);
        for number in 0..1000 {
            put(&format!("l/{number}"));
            put(&format!("n/{number}"));
        }
        assert_eq!([list("m/", ""), list("m/", "m/1"), list("\u{10ffff}", "")], few);
    }
}
