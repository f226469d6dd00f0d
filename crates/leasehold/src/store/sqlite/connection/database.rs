//! Connection of this process with its clock, its durability and its transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::turn::Turn;
use super::wal_limit::{self, LogLimit};
use crate::error::Result;
use crate::model::{Timestamp, Token};
use crate::store::sqlite::boot::{self, BootEvidence, RecordedBoot};
use crate::store::sqlite::error::{busy, explain, is_busy};
use crate::store::sqlite::file::{Presence, StoreFile};
use crate::store::sqlite::locks::{EventNumbers, RowCache, queries};
use crate::store::sqlite::options::{Durability, SqliteOptions};
use crate::store::sqlite::schema;
use crate::store::sqlite::tasks::{LeasedTasks, QueueIds};
use crate::store::{Boot, BootInstant, Clock};

/// Numbers of WAL pages at which SQLite checkpoints, for short-lived and long-lived processes, and
/// the number of commits that separates the two. A process that opens the store while no other
/// process has it open reads the whole log, so a process with few transactions keeps the log short;
/// a long-lived process gains from fewer waits for the disk.
const SHORT_LOG: u32 = 64;
const LONG_LOG: u32 = 1000;
const SHORT_LIVED: u32 = 64;

/// Database connection with the state that is needed to write to its tables.
pub(crate) struct Database {
    pub(crate) conn: Connection,
    pub(crate) clock: Clock,
    /// Boot to assume instead of the one that the system reports.
    boot: Option<Boot>,
    presence: Presence,
    /// Set once this process may write; from then on it uses the clock of the other writers.
    pub(crate) write_state: Option<WriteState>,
    /// Tokens up to this one must not be issued again.
    pub(crate) min_token: Token,
    /// Highest token that may be issued before a higher reservation has been synced.
    pub(crate) reserved_until: Token,
    pub(crate) min_durability: Durability,
    /// Durability to which the connection is currently set.
    current_durability: Option<Durability>,
    /// Durability that the last batch needed: an estimate for the next one.
    pub(crate) last_needed: Durability,
    pub(crate) max_events: u32,
    pub(crate) long_queue: usize,
    /// Name of the last lock that was examined by `forget`.
    pub(crate) forget_after: String,
    /// Time from which the next sweep prunes the events.
    pub(crate) prune_due: BootInstant,
    commit_count: u32,
    log_limit: LogLimit,
    pub(crate) cache: RowCache,
    pub(crate) event_numbers: EventNumbers,
    pub(super) queues: QueueIds,
    pub(super) leased: LeasedTasks,
    pub(crate) turn: Turn,
    busy_timeout: BusyTimeout,
}

/// Boot state of a process that may write.
pub(crate) struct WriteState {
    knows_boot: bool,
    stamp_due: BootInstant,
    /// Next due time of the stamp, if the transaction in progress renews it; valid once that
    /// transaction is committed.
    renewed: Option<BootInstant>,
}

impl Database {
    pub(crate) fn open(options: &SqliteOptions) -> Result<(StoreFile, Self, BusyTimeout)> {
        let mut file = StoreFile::prepare(&options.path)?;
        let path = file.path().to_owned();
        let explain = |error| explain(&path, error);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut conn = Connection::open_with_flags(&path, flags).map_err(explain)?;
        let busy_timeout = BusyTimeout::default();
        busy_timeout.install(&mut conn, options.busy_timeout).map_err(explain)?;
        // A checkpoint at each close would cost short-lived processes more than all their work; the
        // log is checkpointed when it has grown.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
        // Statements keep their plans: otherwise SQLite prepares some of them again whenever a
        // parameter such as a limit has a new value.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(explain)?;
        conn.set_prepared_statement_cache_capacity(96);
        schema::prepare(&mut conn, &path, options)?;
        let known = RecordedBoot::load(&conn).map_err(explain)?;
        let boot = options.boot.unwrap_or_else(Boot::read);
        known.check_clock(&boot, &path)?;
        let presence = file.record_side_files()?;
        conn.pragma_update(None, "wal_autocheckpoint", SHORT_LOG).map_err(explain)?;
        // A log that was longer, for example because of a large transaction, is cut when SQLite writes it from
        // its beginning again.
        let usual_log = schema::to_integer(options.max_log / 2);
        conn.pragma_update(None, "journal_size_limit", usual_log).map_err(explain)?;
        let event_numbers = EventNumbers::after(queries::newest_event(&conn).map_err(explain)?);
        let mut database = Self {
            conn,
            clock: options.clock.clone().unwrap_or_else(|| Clock::with_offset(0)),
            boot: options.boot,
            presence,
            write_state: None,
            min_token: Token::default(),
            reserved_until: Token::default(),
            min_durability: options.durability,
            current_durability: None,
            last_needed: options.durability,
            max_events: options.max_events,
            long_queue: options.long_queue,
            forget_after: String::new(),
            prune_due: BootInstant::now(),
            commit_count: 0,
            log_limit: LogLimit::new(options.max_log),
            cache: RowCache::default(),
            event_numbers,
            queues: QueueIds::default(),
            leased: LeasedTasks::default(),
            turn: Turn::new(&path),
            busy_timeout: busy_timeout.clone(),
        };
        database.adopt_boot(&known, &boot).map_err(explain)?;
        Ok((file, database, busy_timeout))
    }

    /// Begins a transaction that holds the write lock.
    pub(crate) fn begin(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if !self.conn.is_autocommit() {
            // A disk error may have kept the last transaction from ending.
            self.conn.execute_batch("ROLLBACK")?;
        }
        self.prepare_first_write()?;
        self.set_durability(durability)?;
        self.take_write_lock()?;
        self.renew_stamp().inspect_err(|_| self.roll_back())
    }

    /// Begins a transaction. If other processes write, waits for the [turn](Turn) of this one first, if it needs
    /// one; a caller that uses the connection on its own thread gets the error "busy" instead.
    fn take_write_lock(&mut self) -> rusqlite::Result<()> {
        let (now, is_synced) = (BootInstant::now(), self.expects_sync());
        self.turn.record_request(now);
        let (may_wait, is_alone) = (!self.busy_timeout.is_short(), !self.turn.is_needed(now, is_synced));
        if !may_wait && !is_alone {
            return Err(busy());
        }
        if may_wait && is_alone && !self.turn.is_held() {
            let limit = self.busy_timeout.clone();
            let done = limit.with_limit(Duration::ZERO, || self.begin_immediate());
            if !done.as_ref().is_err_and(is_busy) {
                return done;
            }
        }
        if may_wait && self.turn.is_needed(now, is_synced) {
            self.turn.wait();
        }
        self.begin_immediate()
    }

    /// Begins a transaction, or waits for the write lock until the busy timeout.
    fn begin_immediate(&mut self) -> rusqlite::Result<()> {
        let begun = self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([]).map(drop);
        match &begun {
            Ok(()) => self.turn.record_begin(),
            Err(error) if is_busy(error) => self.turn.met_writer(BootInstant::now()),
            Err(_) => {}
        }
        begun
    }

    /// Determines whether the machine was restarted, before the first write of this process. A
    /// process that only reads changes nothing.
    pub(crate) fn prepare_first_write(&mut self) -> rusqlite::Result<()> {
        if self.write_state.is_some() {
            return Ok(());
        }
        self.set_durability(Durability::Full)?;
        let read = || self.boot.unwrap_or_else(Boot::read);
        let prepared = boot::prepare_first_write(&mut self.conn, &self.presence, read, &self.clock)?;
        self.adopt_boot(&prepared.known, &prepared.now)?;
        self.cache.clear();
        let stamp_due = BootInstant::now().plus(prepared.known.stamp_due_in(&prepared.now));
        self.write_state = Some(WriteState { knows_boot: prepared.knows_boot, stamp_due, renewed: None });
        Ok(())
    }

    /// Loads what another process may have determined about the boot meanwhile. Must be called
    /// before a read.
    pub(super) fn refresh_boot(&mut self) -> rusqlite::Result<()> {
        if self.write_state.is_some() {
            return Ok(());
        }
        // The order matters: the stamp may be renewed at any time and must not be newer than the
        // clock reading.
        let known = RecordedBoot::load(&self.conn)?;
        self.adopt_boot(&known, &self.boot())
    }

    pub(crate) fn boot(&self) -> Boot {
        self.boot.unwrap_or_else(Boot::read)
    }

    /// Runs `act` under the write lock, without writing.
    pub(crate) fn with_write_lock<T>(&mut self, act: impl FnOnce() -> T) -> rusqlite::Result<T> {
        let tx = self.conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let done = act();
        tx.rollback()?;
        Ok(done)
    }

    /// Sets the clock and the range of tokens from what is recorded about the boot. After a restart a
    /// reader gets the minimum token that the first writer will set.
    fn adopt_boot(&mut self, known: &RecordedBoot, now: &Boot) -> rusqlite::Result<()> {
        self.clock.follow_kernel(known.clock_offset(now));
        self.reserved_until = schema::token(&self.conn, schema::RESERVED_UNTIL)?;
        let is_restarted = known.evidence(now) == BootEvidence::Restarted;
        self.min_token =
            if is_restarted { self.reserved_until } else { schema::token(&self.conn, schema::MIN_TOKEN)? };
        Ok(())
    }

    fn renew_stamp(&mut self) -> rusqlite::Result<()> {
        let Some(state) = &mut self.write_state else { return Ok(()) };
        let moment = BootInstant::now();
        state.renewed = None;
        if moment >= state.stamp_due {
            let now = self.boot.unwrap_or_else(Boot::read);
            boot::stamp(&self.conn, &now, state.knows_boot)?;
            state.renewed = Some(moment.plus(boot::STAMP_INTERVAL));
        }
        Ok(())
    }

    pub(crate) fn roll_back(&self) {
        if !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("ROLLBACK"); // Retried by the next `begin`.
        }
    }

    /// Counts a commit: its stamp is valid, a long-lived process gets a longer log, and from time to time
    /// the size of the log is checked. Does not fail: the transaction is committed.
    pub(crate) fn count_commit(&mut self) {
        if let Some(state) = &mut self.write_state
            && let Some(due) = state.renewed.take()
        {
            state.stamp_due = due;
        }
        self.commit_count = self.commit_count.wrapping_add(1);
        if self.commit_count == SHORT_LIVED {
            // Without it the log stays short, and commits are slower.
            let _ = self.conn.pragma_update(None, "wal_autocheckpoint", LONG_LOG);
        }
        // Also at the first commit: there may be many short-lived processes at a time.
        if self.commit_count % wal_limit::CHECK_EVERY == 1 {
            self.log_limit.record(self.presence.log_size());
        }
    }

    /// Whether the log has become too long: [`Database::shrink_log`] must be called, on the writer thread.
    pub(super) const fn has_long_log(&self) -> bool {
        self.log_limit.is_exceeded()
    }

    /// Empties the log. May wait for the disk and for other processes.
    pub(super) fn shrink_log(&mut self) {
        let emptied = self.busy_timeout.with_limit(wal_limit::MAX_WAIT, || wal_limit::empty_log(&self.conn));
        let pause = emptied.unwrap_or_else(|error| {
            tracing::debug!(%error, "the log could not be emptied; it will be retried");
            wal_limit::MAX_WAIT
        });
        self.log_limit.record_attempt(pause);
        self.turn.end();
    }

    /// Runs `work` in one transaction and commits it.
    pub(crate) fn commit_work<T>(
        &mut self,
        durability: Durability,
        work: impl FnOnce(&mut Self, Timestamp) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.begin(durability)?;
        // Read while holding the write lock: the wait for it must not count against a lease.
        let now = self.clock.now();
        let done = work(self, now).and_then(|done| {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(done)
        });
        match done {
            Ok(done) => {
                self.count_commit();
                Ok(done)
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    fn set_durability(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.current_durability != Some(durability) {
            let synchronous = match durability {
                Durability::Holders => "NORMAL",
                Durability::Full => "FULL",
            };
            self.conn.pragma_update(None, "synchronous", synchronous)?;
            self.current_durability = Some(durability);
        }
        Ok(())
    }
}

/// Busy timeout of a caller that uses the connection on its own thread: longer waits are left to
/// the writer thread.
const SHORT_BUSY_TIMEOUT: Duration = Duration::from_micros(150);

/// Period in which a busy connection is polled without a sleep: most transactions are shorter, and a
/// sleep takes at least twice as long.
const BUSY_SPIN: Duration = Duration::from_micros(20);

/// Busy timeout for other writers, in microseconds: the configured one unless it is set lower.
#[derive(Debug, Clone)]
pub(crate) struct BusyTimeout {
    limit: Arc<AtomicU64>,
}

impl Default for BusyTimeout {
    fn default() -> Self {
        Self { limit: Arc::new(AtomicU64::new(u64::MAX)) }
    }
}

impl BusyTimeout {
    /// Runs `act` with the short busy timeout. Only the owner of the connection may call this.
    pub(super) fn with_short_timeout<T>(&self, act: impl FnOnce() -> T) -> T {
        self.with_limit(SHORT_BUSY_TIMEOUT, act)
    }

    fn with_limit<T>(&self, limit: Duration, act: impl FnOnce() -> T) -> T {
        self.limit.store(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let done = act();
        self.limit.store(u64::MAX, Ordering::Relaxed);
        done
    }

    fn is_short(&self) -> bool {
        self.limit.load(Ordering::Relaxed) != u64::MAX
    }

    /// Installs a busy handler that waits in short steps: a transaction takes microseconds, and the
    /// steps of SQLite's own handler are milliseconds.
    fn install(&self, conn: &mut Connection, configured: Duration) -> rusqlite::Result<()> {
        let (limit, mut since) = (self.limit.clone(), BootInstant::now());
        conn.busy_handler(Some(move |tries: i32| {
            let now = BootInstant::now();
            if tries == 0 {
                since = now;
            }
            let timeout = Duration::from_micros(limit.load(Ordering::Relaxed)).min(configured);
            let waited = now.after(since);
            let waits = waited < timeout;
            if waits && waited < BUSY_SPIN {
                std::thread::yield_now();
            } else if waits {
                let step = (50 * u64::from(tries.unsigned_abs() + 1)).min(1_000);
                std::thread::sleep(Duration::from_micros(fastrand::u64(step / 2..=step)));
            }
            waits
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that has written keeps a shared lock of the log, which must not exclude its own turns.
    #[test]
    fn two_processes_that_have_written_take_turns() {
        let folder = tempfile::tempdir().unwrap();
        let mut options = SqliteOptions::new(folder.path().join("a.db"));
        options.durability = Durability::Full;
        let mut processes = [(); 2].map(|()| {
            let mut database = Database::open(&options).unwrap().1;
            database.commit_work(Durability::Full, |_, _| Ok(())).unwrap();
            database
        });
        for _ in 0..2 {
            for Database { turn, .. } in &mut processes {
                turn.met_writer(BootInstant::now());
                turn.wait();
                assert!(turn.is_held());
                turn.end();
            }
        }
    }
}
