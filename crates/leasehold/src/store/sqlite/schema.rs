//! Tables, schema versions, and the stored form of values.

use std::path::Path;
use std::time::Duration;

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::de::DeserializeOwned;

use super::error::{explain, is_busy};
use super::options::SqliteOptions;
use crate::error::{Error, Result, StoreErrorKind, StoreRemedy};
use crate::model::{Timestamp, Token};
use crate::store::BootInstant;

/// Application id that marks a file as a leasehold store: "lshd".
const APPLICATION_ID: i32 = 0x6c73_6864;

/// Schema migrations, one version each. Never change a released entry: add the next one.
const MIGRATIONS: [&str; 2] = [TABLES, ONE_INDEX];

/// Version 1. The names have a prefix because a program that enqueues tasks in its own transactions
/// has its own tables in this file. Times are in microseconds since 1970. States are numbered as in
/// [`TaskState::ALL`](crate::model::TaskState::ALL).
pub(super) const TABLES: &str = "
    -- Properties of the store.
    CREATE TABLE leasehold_meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    -- One row per lock: the record as JSON, with its token. `wake_at` is never later than the next
    -- expiry of a lease or a ticket; it may be earlier, so that the fast path need not update its
    -- index. `inline_events` are the newest events of the lock, one per line; a row with inline
    -- events has a `wake_at`. `last_event` is the newest event of the lock in `leasehold_events`.
    CREATE TABLE leasehold_locks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, record TEXT NOT NULL,
        wake_at INTEGER, last_event INTEGER, inline_events TEXT NOT NULL DEFAULT '');
    CREATE INDEX leasehold_locks_wake_at ON leasehold_locks (wake_at) WHERE wake_at IS NOT NULL;
    -- A long queue: one row per ticket, in the order of `position`, so that refreshing one does not
    -- write the others. The lock's `record` states that its tickets are rows.
    CREATE TABLE leasehold_tickets (lock INTEGER NOT NULL, lease_id BLOB NOT NULL, position INTEGER NOT NULL,
        expires_at INTEGER NOT NULL, ticket_ttl INTEGER NOT NULL, refreshes INTEGER NOT NULL,
        ticket TEXT NOT NULL, PRIMARY KEY (lock, lease_id)) WITHOUT ROWID;
    -- Append only. `previous` is the event before this one of the same lock: the history of a lock
    -- is a chain that needs no index.
    CREATE TABLE leasehold_events (seq INTEGER PRIMARY KEY, previous INTEGER, event TEXT NOT NULL);
    -- Rows are never deleted. The counts exclude archived tasks.
    CREATE TABLE leasehold_queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, pause TEXT,
        scheduled INTEGER NOT NULL DEFAULT 0, blocked INTEGER NOT NULL DEFAULT 0,
        pending INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
        succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
        aborted INTEGER NOT NULL DEFAULT 0);
    -- `ttl` is the last extension of the lease. `prefetched`: the worker has leased the task and
    -- not started it yet; meaningless without a lease. `extra` is JSON with fields that most tasks
    -- do not have. A payload that is not short is in a table of its own, so that it is written
    -- once.
    CREATE TABLE leasehold_tasks (id BLOB NOT NULL PRIMARY KEY, queue INTEGER NOT NULL,
        state INTEGER NOT NULL, priority INTEGER NOT NULL, rank INTEGER NOT NULL,
        run_at INTEGER NOT NULL, ready_at INTEGER NOT NULL, key TEXT, fingerprint INTEGER NOT NULL,
        lock TEXT, attempt INTEGER NOT NULL, token INTEGER NOT NULL, version INTEGER NOT NULL,
        worker BLOB, leased_at INTEGER, lease_expires_at INTEGER, ttl INTEGER,
        created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, finished_at INTEGER,
        archived INTEGER NOT NULL, prefetched INTEGER NOT NULL DEFAULT 0,
        expiries INTEGER NOT NULL DEFAULT 0, runner_deadline INTEGER, extra TEXT, payload TEXT, result TEXT);
    CREATE INDEX leasehold_tasks_scheduled ON leasehold_tasks (queue, run_at, id) WHERE state = 0;
    CREATE INDEX leasehold_tasks_due ON leasehold_tasks (run_at, id) WHERE state = 0;
    CREATE INDEX leasehold_tasks_blocked ON leasehold_tasks (lock, queue, rank, run_at, id) WHERE state = 1;
    CREATE INDEX leasehold_tasks_ready ON leasehold_tasks (queue, rank, run_at, id) WHERE state = 2;
    CREATE INDEX leasehold_tasks_running ON leasehold_tasks (lease_expires_at, id) WHERE state = 3;
    CREATE INDEX leasehold_tasks_runner_deadline ON leasehold_tasks (runner_deadline, id)
        WHERE runner_deadline IS NOT NULL AND state < 3;
    CREATE INDEX leasehold_tasks_by_state ON leasehold_tasks (archived, queue, state, id) WHERE state >= 4;
    CREATE INDEX leasehold_tasks_finished ON leasehold_tasks (archived, finished_at, id) WHERE state >= 4;
    -- At most one task of a queue runs with a lock or is next to run.
    CREATE UNIQUE INDEX leasehold_tasks_lock_owner ON leasehold_tasks (lock, queue)
        WHERE lock IS NOT NULL AND state IN (2, 3);
    CREATE UNIQUE INDEX leasehold_tasks_key ON leasehold_tasks (queue, key) WHERE key IS NOT NULL;
    CREATE INDEX leasehold_tasks_lock ON leasehold_tasks (lock, id) WHERE lock IS NOT NULL;
    CREATE TABLE leasehold_payloads (id BLOB NOT NULL PRIMARY KEY, payload TEXT NOT NULL);
    CREATE TABLE leasehold_workers (id BLOB NOT NULL PRIMARY KEY, info TEXT NOT NULL,
        started_at INTEGER NOT NULL, seen_at INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE leasehold_docs (key TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL,
        expires_at INTEGER);
    CREATE INDEX leasehold_docs_expires_at ON leasehold_docs (expires_at) WHERE expires_at IS NOT NULL;
";

/// Version 2. The lists of tasks that calls read are one index instead of a partial index each: every
/// change of a state moves one entry, and SQLite need not evaluate the conditions of all the others.
/// `list` states the list of a task, `sort` and `tie` its place there:
///
/// | tasks    | `list`                        | `sort`             | `tie`    |
/// |----------|-------------------------------|--------------------|----------|
/// | scheduled| -8 - queue                    | `run_at`           |          |
/// | blocked  | the text: queue, space, lock  | rank               | `run_at` |
/// | pending  | queue                         | rank               | `run_at` |
/// | running  | 0                             | `lease_expires_at` |          |
/// | finished | -1, archived -2               | `finished_at`      |          |
///
/// The partial indexes that are left contain few tasks.
pub(super) const ONE_INDEX: &str = "
    DROP INDEX leasehold_tasks_scheduled;
    DROP INDEX leasehold_tasks_blocked;
    DROP INDEX leasehold_tasks_ready;
    DROP INDEX leasehold_tasks_running;
    DROP INDEX leasehold_tasks_by_state;
    DROP INDEX leasehold_tasks_finished;
    ALTER TABLE leasehold_tasks RENAME COLUMN rank TO sort;
    ALTER TABLE leasehold_tasks ADD COLUMN list;
    ALTER TABLE leasehold_tasks ADD COLUMN tie INTEGER;
    UPDATE leasehold_tasks SET
        list = CASE state WHEN 0 THEN -8 - queue WHEN 1 THEN queue || ' ' || lock WHEN 2 THEN queue WHEN 3 THEN 0
            ELSE -1 - archived END,
        sort = CASE state WHEN 0 THEN run_at WHEN 1 THEN sort WHEN 2 THEN sort
            WHEN 3 THEN coalesce(lease_expires_at, 0) ELSE coalesce(finished_at, 0) END,
        tie = CASE WHEN state IN (1, 2) THEN run_at END;
    CREATE INDEX leasehold_tasks_list ON leasehold_tasks (list, sort, tie, id);
    -- Lists of the tasks of a queue that failed or were aborted.
    CREATE INDEX leasehold_tasks_by_state ON leasehold_tasks (archived, queue, state, id) WHERE state >= 5;
";

/// Key of a token above every token of a deleted lock.
pub(super) const FORGOTTEN_MIN_TOKEN: &str = "forgotten_min_token";
/// Key of the highest token that may have been issued before the machine was, or may have been,
/// restarted.
pub(super) const MIN_TOKEN: &str = "min_token";
/// Key of the highest token that may be issued: the value has been synced.
pub(super) const RESERVED_UNTIL: &str = "token_reserved_until";

/// Migrates an open file to the newest schema. Safe when many processes start at once.
pub(super) fn prepare(conn: &mut Connection, path: &Path, options: &SqliteOptions) -> Result<()> {
    let explain = |error| explain(path, error);
    // In one transaction: another process may be creating the tables concurrently.
    let tx = conn.transaction().map_err(explain)?;
    let version = check_schema(&tx, path, MIGRATIONS.len())?;
    drop(tx);
    enable_wal(conn, options).map_err(explain)?;
    if version < MIGRATIONS.len() {
        migrate(conn, path, &MIGRATIONS)?;
    }
    Ok(())
}

/// Rejects a file of another program and a schema above version `newest`; returns the version.
fn check_schema(conn: &Connection, path: &Path, newest: usize) -> Result<usize> {
    let explain = |error| explain(path, error);
    let number = |pragma| conn.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0)).map_err(explain);
    let (id, version) = (number("application_id")?, number("user_version")?);
    let at = path.display();
    if id != APPLICATION_ID {
        let tables: i32 =
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(explain)?;
        if tables > 0 {
            let message = format!("{at} is a database of another program");
            let other = Error::store(StoreErrorKind::Misconfigured, message, "name another file");
            return Err(other.with_remedy(StoreRemedy::OtherFile));
        }
    }
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > newest {
        let message = format!(
            "the store {at} has schema version {version}, made by a newer leasehold; \
             this one supports versions up to {newest}"
        );
        let hint = "upgrade leasehold, or name another file";
        return Err(Error::store(StoreErrorKind::Misconfigured, message, hint));
    }
    Ok(version)
}

/// Sets the journal to WAL. The mode is written into the file, so this happens only after the file
/// has been identified as a leasehold store. When several processes do so to a new file at once,
/// SQLite returns "busy" to the slower ones without calling the busy handler.
fn enable_wal(conn: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    let deadline = BootInstant::now().plus(options.busy_timeout);
    loop {
        match conn.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if is_busy(&error) && BootInstant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Runs the migrations that the file lacks, in one transaction.
fn migrate(conn: &mut Connection, path: &Path, migrations: &[&str]) -> Result<()> {
    let explain = |error| explain(path, error);
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(explain)?;
    // Checked again under the lock: another process may have migrated meanwhile.
    let version = check_schema(&tx, path, migrations.len())?;
    for step in &migrations[version..] {
        tx.execute_batch(step).map_err(explain)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(explain)?;
    let newest = i32::try_from(migrations.len()).unwrap_or(i32::MAX);
    tx.pragma_update(None, "user_version", newest).map_err(explain)?;
    tx.commit().map_err(explain)
}

pub(super) fn token(conn: &Connection, key: &str) -> rusqlite::Result<Token> {
    let number: i64 = meta(conn, key)?.unwrap_or(0);
    Ok(u64::try_from(number).ok().and_then(|number| Token::new(number).ok()).unwrap_or_default())
}

pub(super) fn set_token(conn: &Connection, key: &str, token: Token) -> rusqlite::Result<()> {
    set_meta(conn, key, to_integer(token.get()))
}

pub(super) fn meta<T: rusqlite::types::FromSql>(conn: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    let sql = "SELECT value FROM leasehold_meta WHERE key = ?";
    conn.prepare_cached(sql)?.query_row([key], |row| row.get(0)).optional()
}

pub(super) fn set_meta(conn: &Connection, key: &str, value: impl rusqlite::ToSql) -> rusqlite::Result<()> {
    let sql = "INSERT INTO leasehold_meta (key, value) VALUES (?, ?) \
               ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)?.execute(params![key, value]).map(drop)
}

pub(super) fn micros(time: Timestamp) -> i64 {
    to_integer(time.as_micros())
}

pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// Returns a number in its stored form: SQLite's integers are signed.
pub(super) fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn to_json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|error| unreadable(column, error))
}

pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    from_json(row.get_ref(column)?.as_str()?, column)
}

/// Parses a JSON column, if it is not null.
pub(super) fn maybe_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    row.get_ref(column)?.as_str_or_null()?.map(|text| from_json(text, column)).transpose()
}

/// Returns the error for a text column with an invalid value.
pub(super) fn unreadable(
    column: usize,
    error: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "CREATE TABLE one (steps TEXT); INSERT INTO one VALUES ('1');";
    const SECOND: &str = "UPDATE one SET steps = steps || '2';";
    const THIRD: &str = "UPDATE one SET steps = steps || '3';";

    fn steps(conn: &Connection) -> String {
        conn.query_row("SELECT steps FROM one", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn a_file_is_upgraded_by_the_migrations_that_it_lacks_in_order_and_once() {
        let (mut conn, path) = (Connection::open_in_memory().unwrap(), Path::new("a.db"));
        migrate(&mut conn, path, &[FIRST]).unwrap();
        assert_eq!((check_schema(&conn, path, 1).unwrap(), steps(&conn)), (1, "1".to_owned()));
        for _ in 0..2 {
            migrate(&mut conn, path, &[FIRST, SECOND, THIRD]).unwrap();
            assert_eq!((check_schema(&conn, path, 3).unwrap(), steps(&conn)), (3, "123".to_owned()));
        }
        let error = migrate(&mut conn, path, &[FIRST, SECOND]).unwrap_err().to_string();
        assert!(error.contains("has schema version 3, made by a newer leasehold"), "{error}");
        assert!(error.ends_with("supports versions up to 2"), "{error}");
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let (mut conn, path) = (Connection::open_in_memory().unwrap(), Path::new("a.db"));
        migrate(&mut conn, path, &[FIRST]).unwrap();
        migrate(&mut conn, path, &[FIRST, SECOND, "no SQL"]).unwrap_err();
        assert_eq!((check_schema(&conn, path, 1).unwrap(), steps(&conn)), (1, "1".to_owned()));
    }
}
