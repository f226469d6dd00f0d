//! Tables and schema versions.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::boot::{BootEvidence, RecordedBoot};
use super::codec::to_integer;
use super::error::{explain, is_busy};
use super::locks::tickets;
use super::options::SqliteOptions;
use super::tasks;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::Token;
use crate::store::{Boot, BootInstant, Clock};

/// Application id that marks a file as a leasehold store: "lshd".
const APPLICATION_ID: i32 = 0x6c73_6864;

/// Schema migrations, one version each. Never change a released entry: add the next one.
const MIGRATIONS: [&str; 7] = ["
    -- Facts about the store itself.
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    -- One row per lock: the record as JSON, with its token. `wake_at` is never later than the next end of
    -- a lease or a ticket; it may be earlier, so that the hot path need not touch its index.
    CREATE TABLE locks (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, record TEXT NOT NULL,
                        wake_at INTEGER, last_event INTEGER);
    CREATE INDEX locks_wake_at ON locks (wake_at) WHERE wake_at IS NOT NULL;
    -- Append only. `previous` is the event before this one of the same lock: a lock's history is a chain that needs
    -- no index.
    CREATE TABLE events (seq INTEGER PRIMARY KEY, previous INTEGER, event TEXT NOT NULL);
", "
    -- The newest events of a lock, a line for each; `last_event` is the newest of those that are in `events`. A row with
    -- a tail has a `wake_at`.
    ALTER TABLE locks ADD COLUMN tail TEXT NOT NULL DEFAULT '';
", tasks::TABLES, "
    -- One boot may have several ids. Readings of the boot clock and the wall clock prove a restart; the newest
    -- event is the best estimate of the boot clock so far.
    INSERT INTO meta SELECT 'boot_ids', value FROM meta WHERE key = 'boot' AND value <> 'unknown';
    INSERT INTO meta SELECT 'wall_offset', value FROM meta WHERE key = 'clock_offset';
    INSERT INTO meta SELECT 'boottime', max(0, (SELECT coalesce(max(seq), 0) / 1024 FROM events) - value)
        FROM meta WHERE key = 'clock_offset';
    DELETE FROM meta WHERE key = 'boot';
", tickets::TABLE, tasks::STARTED_TASKS, tasks::HEAD_PER_QUEUE];

/// Key of a token above every token of a deleted lock.
pub(super) const FORGOTTEN_MIN_TOKEN: &str = "forgotten_floor";
/// Key of the highest token that may have been issued before the machine was restarted.
pub(super) const MIN_TOKEN: &str = "token_floor";
/// Key of the highest token that may be issued: the value has been synced.
pub(super) const RESERVED_UNTIL: &str = "token_ceiling";

/// State read from the file. Opening writes none of it; the first write of this process does.
pub(super) struct FileState {
    pub(super) clock: Clock,
    /// Tokens up to this one must not be issued again.
    pub(super) min_token: Token,
    /// Highest token that may be issued before a higher reservation has been synced.
    pub(super) reserved_until: Token,
}

/// Migrates an open file to the newest schema. Safe when many processes start at once.
pub(super) fn prepare(conn: &mut Connection, path: &Path, options: &SqliteOptions) -> Result<FileState> {
    let explain = |error| explain(path, error);
    // In one transaction: another process may be creating the tables concurrently.
    let tx = conn.transaction().map_err(explain)?;
    let version = check_schema(&tx, path)?;
    drop(tx);
    enable_wal(conn, options).map_err(explain)?;
    if version < MIGRATIONS.len() {
        migrate(conn, path)?;
    }
    let known = RecordedBoot::load(conn).map_err(explain)?;
    let boot = options.boot.unwrap_or_else(Boot::read);
    known.check_clock(&boot, path)?;
    let clock = options.clock.clone().unwrap_or_else(|| Clock::with_offset(0));
    clock.follow_kernel(known.clock_offset(&boot));
    let (min_token, reserved_until) = tokens(conn, known.evidence(&boot)).map_err(explain)?;
    Ok(FileState { clock, min_token, reserved_until })
}

/// Returns the minimum token and the end of the reservation. After a restart a reader gets the
/// minimum that the first writer will set.
pub(super) fn tokens(conn: &Connection, evidence: BootEvidence) -> rusqlite::Result<(Token, Token)> {
    let (min_token, reserved_until) = (token(conn, MIN_TOKEN)?, token(conn, RESERVED_UNTIL)?);
    let is_restarted = evidence == BootEvidence::Restarted;
    Ok((if is_restarted { reserved_until } else { min_token }, reserved_until))
}

/// Rejects a file of another program or of a newer leasehold; returns the schema version.
fn check_schema(conn: &Connection, path: &Path) -> Result<usize> {
    let explain = |error| explain(path, error);
    let number = |pragma| conn.pragma_query_value(None, pragma, |row| row.get::<_, i32>(0)).map_err(explain);
    let (id, version) = (number("application_id")?, number("user_version")?);
    let at = path.display();
    if id != APPLICATION_ID {
        let tables: i32 =
            conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(explain)?;
        if tables > 0 {
            let message = format!("{at} is a database of another program");
            return Err(Error::store(
                StoreErrorKind::Misconfigured,
                message,
                "name another file with --store sqlite:PATH",
            ));
        }
    }
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > MIGRATIONS.len() {
        let message = format!(
            "the store {at} has schema version {version}, made by a newer leasehold; this one supports versions up to {}",
            MIGRATIONS.len()
        );
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "upgrade leasehold, or name another file",
        ));
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

fn migrate(conn: &mut Connection, path: &Path) -> Result<()> {
    let explain = |error| explain(path, error);
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(explain)?;
    // Checked again under the lock: another process may have migrated meanwhile.
    let version = check_schema(&tx, path)?;
    for step in &MIGRATIONS[version..] {
        tx.execute_batch(step).map_err(explain)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(explain)?;
    let newest = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
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
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?")?.query_row([key], |row| row.get(0)).optional()
}

pub(super) fn set_meta(conn: &Connection, key: &str, value: impl rusqlite::ToSql) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    conn.prepare_cached(sql)?.execute(params![key, value]).map(drop)
}
