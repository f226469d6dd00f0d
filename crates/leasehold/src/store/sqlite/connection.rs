//! Opening the connection, and its timeout for other writers.

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
use crate::store::BootInstant;

/// Busy timeout of a caller that uses the connection on its own thread: longer waits are left to
/// the writer thread.
const LITTLE: Duration = Duration::from_micros(150);

/// Busy timeout for other writers: the configured one, or `LITTLE`.
#[derive(Debug, Clone, Default)]
pub(super) struct Patience {
    little: Arc<AtomicBool>,
}

impl Patience {
    /// Runs `act` with the short busy timeout. Only the owner of the connection may call this.
    pub(super) fn with_little<T>(&self, act: impl FnOnce() -> T) -> T {
        self.little.store(true, Ordering::Relaxed);
        let done = act();
        self.little.store(false, Ordering::Relaxed);
        done
    }

    /// Installs a busy handler that waits in short steps: a transaction takes microseconds, and the
    /// steps of SQLite's own handler are milliseconds.
    fn apply_to(&self, conn: &mut Connection, most: Duration) -> rusqlite::Result<()> {
        let (little, mut since) = (self.little.clone(), BootInstant::now());
        conn.busy_handler(Some(move |tries: i32| {
            let now = BootInstant::now();
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
    // A checkpoint at each close would cost short-lived processes more than all their work; the log
    // is checkpointed when it has grown.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
    conn.set_prepared_statement_cache_capacity(96);
    let opened = schema::prepare(&mut conn, &path, options)?;
    let presence = file.opened()?;
    let ledger = Ledger::new(conn, opened, presence, options).map_err(explain)?;
    Ok((file, ledger, patience))
}
