//! Opening the connection, and how long it waits for other writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::batch::Ledger;
use super::file::StoreFile;
use super::options::SqliteOptions;
use super::schema;
use super::trouble::explain;
use crate::error::Result;
use crate::store::Moment;

/// How long a caller that uses the connection on the spot waits for another process: it has other things to do.
const LITTLE: Duration = Duration::from_micros(150);

/// How long to wait for other writers: as long as the store's settings say, or hardly at all.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    little: Arc<AtomicBool>,
}

impl Patience {
    /// Does something with little patience. Only whoever has the connection may.
    pub(super) fn with_little<T>(&self, act: impl FnOnce() -> T) -> T {
        self.little.store(true, Ordering::Relaxed);
        let done = act();
        self.little.store(false, Ordering::Relaxed);
        done
    }

    /// Waits in short steps: a transaction takes microseconds, and SQLite's own steps are milliseconds.
    fn apply_to(&self, conn: &mut Connection, most: Duration) -> rusqlite::Result<()> {
        let (little, mut since) = (self.little.clone(), Moment::now());
        conn.busy_handler(Some(move |tries: i32| {
            let now = Moment::now();
            if tries == 0 {
                since = now;
            }
            let patience = if little.load(Ordering::Relaxed) { LITTLE } else { most };
            let patient = now.after(since) < patience;
            if patient {
                let step = (50 * u64::from(tries.unsigned_abs() + 1)).min(1_000);
                std::thread::sleep(Duration::from_micros(fastrand::u64(step / 2..=step)));
            }
            patient
        }))
    }
}

pub(super) fn open(options: &SqliteOptions) -> Result<(StoreFile, Ledger, Patience)> {
    let mut file = StoreFile::prepare(&options.path)?;
    let path = file.path().to_owned();
    let explain = |error| explain(&path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(&path, flags).map_err(explain)?;
    let patience = Patience::default();
    patience.apply_to(&mut conn, options.busy).map_err(explain)?;
    // A checkpoint at each close would cost short-lived processes more than all their work; the log is folded in when
    // it has grown.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
    conn.set_prepared_statement_cache_capacity(96);
    let opened = schema::prepare(&mut conn, &path, options)?;
    let presence = file.opened()?;
    let ledger = Ledger::new(conn, opened, presence, options).map_err(explain)?;
    Ok((file, ledger, patience))
}
