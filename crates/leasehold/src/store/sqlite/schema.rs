//! Tables, their versions, and what a restart of the machine does to them.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::options::SqliteOptions;
use super::tables;
use super::tail::Numbers;
use super::tasks;
use super::trouble::{explain, is_busy};
use crate::error::{Error, Result, Trouble};
use crate::model::{BootId, LockOp, Restarted, Timestamp, Token};
use crate::store::clock::{boot_id, wall_offset};
use crate::store::{Clock, Moment};

/// Marks a file as ours: "lshd".
const APPLICATION_ID: i32 = 0x6c73_6864;

/// Each entry brings the schema one version further. Never change one that has been released: add the next.
const MIGRATIONS: [&str; 3] = ["
    -- Facts about the store itself.
    CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
    -- One row per lock, for ever: the record as JSON, with its token. `wake_at` is never later than the next end of
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
", tasks::TABLES];

/// Tokens up to this one may have been given before the machine started anew.
const FLOOR: &str = "token_floor";
/// Tokens up to this one may be given: it has reached the disk.
pub(super) const CEILING: &str = "token_ceiling";

/// What the file told us.
pub(super) struct Opened {
    pub(super) clock: Clock,
    /// No token up to here may be given again.
    pub(super) floor: Token,
    /// No token above this may be given before a higher ceiling is on the disk.
    pub(super) ceiling: Token,
}

/// Brings an open file to the newest schema and to this boot. Safe when many start at once.
pub(super) fn prepare(conn: &mut Connection, path: &Path, options: &SqliteOptions) -> Result<Opened> {
    let explain = |error| explain(path, error);
    let boot = options.boot.or_else(boot_id);
    // In one transaction: somebody may be making the tables just now.
    let look = conn.transaction().map_err(explain)?;
    let version = check_ours(&look, path)?;
    drop(look);
    keep_a_log(conn, options).map_err(explain)?;
    if version < MIGRATIONS.len() {
        migrate(conn, path)?;
    }
    let known: Option<String> = meta(conn, "boot").map_err(explain)?;
    if known.is_none() || known != boot.map(|boot| boot.0.to_string()) {
        start_anew(conn, boot, options).map_err(explain)?;
    }
    let offset = match boot {
        Some(_) => meta(conn, "clock_offset").map_err(explain)?.unwrap_or_else(wall_offset),
        None => wall_offset(),
    };
    let clock = options.clock.clone().unwrap_or_else(|| Clock::with_offset(offset));
    let (floor, ceiling) = (token(conn, FLOOR).map_err(explain)?, token(conn, CEILING).map_err(explain)?);
    Ok(Opened { clock, floor, ceiling })
}

/// Refuses a file of another program or of a newer leasehold; says which version it has.
fn check_ours(conn: &Connection, path: &Path) -> Result<usize> {
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
                Trouble::Misconfigured,
                message,
                "name another file with --store sqlite:PATH",
            ));
        }
    }
    let version = usize::try_from(version).unwrap_or(usize::MAX);
    if version > MIGRATIONS.len() {
        let message = format!(
            "the store {at} has schema version {version}, made by a newer leasehold; this one knows {}",
            MIGRATIONS.len()
        );
        return Err(Error::store(Trouble::Misconfigured, message, "upgrade leasehold, or name another file"));
    }
    Ok(version)
}

/// Sets the journal to WAL, which is written into the file, so only now that it is known to be ours. When several do
/// that to a new file at once, SQLite tells the slower ones that it is busy without asking its busy handler.
fn keep_a_log(conn: &Connection, options: &SqliteOptions) -> rusqlite::Result<()> {
    let patience = Moment::now().plus(options.busy);
    loop {
        match conn.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if is_busy(&error) && Moment::now() < patience => {
                std::thread::sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

fn migrate(conn: &mut Connection, path: &Path) -> Result<()> {
    let explain = |error| explain(path, error);
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(explain)?;
    // Looked at again under the lock: somebody may have done it meanwhile.
    let version = check_ours(&tx, path)?;
    for step in &MIGRATIONS[version..] {
        tx.execute_batch(step).map_err(explain)?;
    }
    tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(explain)?;
    let newest = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
    tx.pragma_update(None, "user_version", newest).map_err(explain)?;
    tx.commit().map_err(explain)
}

/// The first opening after a start of the machine. The processes of the boot before are gone, and so are their leases;
/// the last writes may be gone too, so tokens go on above the ceiling that was on the disk.
fn start_anew(conn: &mut Connection, boot: Option<BootId>, options: &SqliteOptions) -> rusqlite::Result<()> {
    conn.pragma_update(None, "synchronous", "FULL")?;
    let tx = conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let before: Option<String> = meta(&tx, "boot")?;
    let name = boot.map_or_else(|| "unknown".to_owned(), |boot| boot.0.to_string());
    if before.as_ref() == Some(&name) {
        return Ok(());
    }
    let offset = wall_offset();
    let now = options.clock.clone().unwrap_or_else(|| Clock::with_offset(offset)).now();
    if let Some(dead) = before.as_deref().and_then(|boot| uuid::Uuid::parse_str(boot).ok()) {
        free_the_dead(&tx, BootId(dead), now)?;
    }
    tasks::start_anew(&tx, now)?;
    let ceiling = token(&tx, CEILING)?;
    set_meta(&tx, "boot", &name)?;
    set_meta(&tx, "clock_offset", offset)?;
    set_token(&tx, FLOOR, ceiling)?;
    tx.commit()
}

fn free_the_dead(conn: &Connection, boot: BootId, now: Timestamp) -> rusqlite::Result<()> {
    let op = LockOp::Restarted(Restarted { boot });
    // All that has happened before is brought home, so that the numbers of what follows can go on from there.
    tables::gather(conn, now)?;
    let mut numbers = Numbers::after(tables::newest_event(conn)?);
    for mut row in tables::with_something_live(conn)? {
        let applied = row.record.apply(&op, now);
        row.tell(&applied.events, now, &mut numbers)?;
        if applied.changed {
            tables::save_tidy(conn, &mut row, now)?;
        }
    }
    Ok(())
}

pub(super) fn token(conn: &Connection, key: &str) -> rusqlite::Result<Token> {
    let number: i64 = meta(conn, key)?.unwrap_or(0);
    Ok(u64::try_from(number).ok().and_then(|number| Token::new(number).ok()).unwrap_or_default())
}

pub(super) fn set_token(conn: &Connection, key: &str, token: Token) -> rusqlite::Result<()> {
    set_meta(conn, key, i64::try_from(token.get()).unwrap_or(i64::MAX))
}

fn meta<T: rusqlite::types::FromSql>(conn: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    conn.query_row("SELECT value FROM meta WHERE key = ?", [key], |row| row.get(0)).optional()
}

fn set_meta(conn: &Connection, key: &str, value: impl rusqlite::ToSql) -> rusqlite::Result<()> {
    let sql =
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    conn.execute(sql, params![key, value]).map(drop)
}
