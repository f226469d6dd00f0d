//! Applies many operations in one transaction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::Connection;

use super::boot::{self, Known, Presence};
use super::cache::Cache;
use super::options::{Durability, SqliteOptions};
use super::schema::{self, Opened};
use super::tables::{self, Body, LockRow, Stored};
use super::tail::Numbers;
use super::tasks::Queues;
use super::tickets;
use crate::model::{
    Applied, Ask, Lease, LeaseId, LockName, LockOp, LockRecord, Outcome, Status, Sweep, Timestamp, Token,
    TokenFloor, TookOver, Ttl,
};
use crate::store::{Boot, BootInstant, Clock, Peek, is_gone, this_process};

/// Period for which a range of tokens is reserved on the disk ahead of use.
const RESERVE: Ttl = Ttl::from_secs(60);
/// Average number of moved events between prunings. Pruning is random so that processes that write
/// only one event do their share, too.
const PRUNE_EVERY: u32 = 8192;
/// Minimum number of locks in one transaction from which events move to the events table together.
const MANY: usize = 4;
/// Maximum age of an event.
const MAX_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);

/// Minimum number of locks that one pass of `forget` examines.
const LOOKED_AT: u32 = 2_000;

/// Numbers of WAL pages at which SQLite checkpoints, for short-lived and long-lived processes, and
/// the number of commits that separates the two. A process that opens the store while no other
/// process has it open reads the whole log, so a process with few transactions keeps the log short;
/// a long-lived process gains from fewer waits for the disk.
const SHORT_LOG: u32 = 64;
const LONG_LOG: u32 = 1000;
const SHORT_LIVED: u32 = 64;

/// Database connection with the state that is needed to write to its tables.
pub(super) struct Ledger {
    conn: Connection,
    pub(super) clock: Clock,
    /// Boot to assume instead of the one that the system reports.
    boot: Option<Boot>,
    presence: Presence,
    /// Set once this process may write.
    writes: Option<WriteState>,
    floor: Token,
    ceiling: Token,
    least: Durability,
    /// Durability to which the connection is currently set.
    set_to: Option<Durability>,
    /// Durability that the last batch needed: an estimate for the next one.
    needed: Durability,
    max_events: u32,
    long_queue: usize,
    /// Name of the last lock that was examined by `forget`.
    forget_after: String,
    commits: u32,
    cache: Cache,
    numbers: Numbers,
    queues: Queues,
}

/// Boot state of a process that may write.
struct WriteState {
    knows_boot: bool,
    stamp_due: BootInstant,
    /// Next due time of the stamp, if the transaction in progress renews it; valid once that
    /// transaction is committed.
    renewed: Option<BootInstant>,
}

/// Result of one operation.
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    pub(super) handed_over: Vec<Lease>,
}

/// Result of a transaction that is not committed yet.
struct Work {
    answers: Vec<Answer>,
    rows: Vec<LockRow>,
    needs: Durability,
    newest: Token,
    ceiling: Option<Token>,
}

impl Ledger {
    pub(super) fn new(
        conn: Connection,
        opened: Opened,
        presence: Presence,
        options: &SqliteOptions,
    ) -> rusqlite::Result<Self> {
        let Opened { clock, floor, ceiling } = opened;
        conn.pragma_update(None, "wal_autocheckpoint", SHORT_LOG)?;
        let numbers = Numbers::after(tables::newest_event(&conn)?);
        Ok(Self {
            conn,
            clock,
            boot: options.boot,
            presence,
            writes: None,
            floor,
            ceiling,
            least: options.durability,
            set_to: None,
            needed: options.durability,
            max_events: options.max_events,
            long_queue: options.long_queue,
            forget_after: String::new(),
            commits: 0,
            cache: Cache::default(),
            numbers,
            queues: Queues::default(),
        })
    }

    /// Whether the next transaction is expected to wait for the disk.
    pub(super) fn waits_for_the_disk(&self) -> bool {
        self.needed.max(self.least) == Durability::Full
    }

    /// Applies one operation without waiting for the disk. Returns `None`, without any change, if
    /// the operation must be synced.
    pub(super) fn commit_lightly(
        &mut self,
        name: &LockName,
        op: &LockOp,
    ) -> rusqlite::Result<Option<Answer>> {
        let answers = self.try_commit(&std::iter::once((name, op)), Durability::Holders)?;
        Ok(answers.and_then(|mut answers| answers.pop()))
    }

    pub(super) fn conn(&self) -> &Connection {
        &self.conn
    }

    /// Applies all operations in one transaction, in order. After an error none of them is applied,
    /// as far as can be determined.
    pub(super) fn commit<'a>(
        &mut self,
        ops: &(impl Iterator<Item = (&'a LockName, &'a LockOp)> + Clone),
    ) -> rusqlite::Result<Vec<Answer>> {
        let mut durability = self.needed.max(self.least);
        loop {
            match self.try_commit(ops, durability)? {
                Some(answers) => return Ok(answers),
                // The required durability is known only once the operations have been applied.
                // Start over with it.
                None => durability = Durability::Full,
            }
        }
    }

    /// Returns `None`, without any change, if the operations need more than `durability`.
    fn try_commit<'a>(
        &mut self,
        ops: &(impl Iterator<Item = (&'a LockName, &'a LockOp)> + Clone),
        durability: Durability,
    ) -> rusqlite::Result<Option<Vec<Answer>>> {
        self.begin(durability)?;
        let answers = self.work(ops.clone()).and_then(|work| self.settle(work, durability));
        if answers.is_err() {
            self.roll_back();
        }
        answers
    }

    fn begin(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if !self.conn.is_autocommit() {
            // A disk error may have kept the last transaction from ending.
            self.conn.execute_batch("ROLLBACK")?;
        }
        self.enter()?;
        self.set_durability(durability)?;
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.renew_stamp().inspect_err(|_| self.roll_back())
    }

    /// Determines whether the machine was restarted, before the first write of this process. A
    /// process that only reads changes nothing.
    fn enter(&mut self) -> rusqlite::Result<()> {
        if self.writes.is_some() {
            return Ok(());
        }
        self.set_durability(Durability::Full)?;
        let read = || self.boot.unwrap_or_else(Boot::read);
        let entered = boot::enter(&mut self.conn, &self.presence, read, &self.clock)?;
        self.follow(&entered.known, &entered.now)?;
        self.cache.clear();
        let stamp_due = BootInstant::now().plus(entered.known.stamp_due_in(&entered.now));
        self.writes = Some(WriteState { knows_boot: entered.knows_boot, stamp_due, renewed: None });
        Ok(())
    }

    /// Whether this process may write and therefore uses the clock of the other writers.
    pub(super) fn has_entered(&self) -> bool {
        self.writes.is_some()
    }

    /// Loads what another process may have determined about the boot meanwhile. Must be called
    /// before a read.
    pub(super) fn catch_up(&mut self) -> rusqlite::Result<()> {
        if self.writes.is_some() {
            return Ok(());
        }
        // The order matters: the stamp may be renewed at any time and must not be newer than the
        // clock reading.
        let known = Known::load(&self.conn)?;
        self.follow(&known, &self.boot())
    }

    /// Returns the boot in which this process runs.
    pub(super) fn boot(&self) -> Boot {
        self.boot.unwrap_or_else(Boot::read)
    }

    /// Runs `act` under the write lock, without writing.
    pub(super) fn while_nobody_writes<T>(&mut self, act: impl FnOnce() -> T) -> rusqlite::Result<T> {
        let tx = self.conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let done = act();
        tx.rollback()?;
        Ok(done)
    }

    fn follow(&mut self, known: &Known, now: &Boot) -> rusqlite::Result<()> {
        self.clock.follow_kernel(known.clock_offset(now));
        (self.floor, self.ceiling) = schema::tokens(&self.conn, known.judge(now))?;
        Ok(())
    }

    fn renew_stamp(&mut self) -> rusqlite::Result<()> {
        let Some(state) = &mut self.writes else { return Ok(()) };
        let moment = BootInstant::now();
        state.renewed = None;
        if moment >= state.stamp_due {
            let now = self.boot.unwrap_or_else(Boot::read);
            boot::stamp(&self.conn, &now, state.knows_boot)?;
            state.renewed = Some(moment.plus(boot::STAMP_EVERY));
        }
        Ok(())
    }

    fn roll_back(&self) {
        if !self.conn.is_autocommit() {
            let _ = self.conn.execute_batch("ROLLBACK"); // Retried by the next `begin`.
        }
    }

    fn count_commit(&mut self) -> rusqlite::Result<()> {
        if let Some(state) = &mut self.writes
            && let Some(due) = state.renewed.take()
        {
            state.stamp_due = due;
        }
        self.commits = self.commits.saturating_add(1);
        if self.commits == SHORT_LIVED {
            self.conn.pragma_update(None, "wal_autocheckpoint", LONG_LOG)?;
        }
        Ok(())
    }

    /// Runs `work` on tasks or documents in one transaction, without waiting for the disk.
    pub(super) fn transact<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Queues, Timestamp) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.begin(Durability::Holders)?;
        // Read while holding the write lock: the wait for it must not count against a lease.
        let now = self.clock.now();
        let done = work(&self.conn, &mut self.queues, now).and_then(|done| {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(done)
        });
        match done {
            Ok(done) => self.count_commit().map(|()| done),
            Err(error) => {
                self.roll_back();
                self.queues.forget();
                Err(error)
            }
        }
    }

    /// Returns the connection, the queues and the current time for reads of tasks.
    pub(super) fn parts(&mut self) -> (&Connection, &mut Queues, Timestamp) {
        (&self.conn, &mut self.queues, self.clock.now())
    }

    fn work<'a>(&mut self, ops: impl Iterator<Item = (&'a LockName, &'a LockOp)>) -> rusqlite::Result<Work> {
        // Read while holding the write lock: the wait for it must not count against a lease.
        let now = self.clock.now();
        let mut work = Work {
            answers: Vec::new(),
            rows: Vec::new(),
            needs: self.least,
            newest: Token::default(),
            ceiling: None,
        };
        self.cache.check(&self.conn)?;
        let mut rows: HashMap<&LockName, (LockRow, bool)> = HashMap::new();
        for (name, op) in ops {
            let is_loaded = rows.contains_key(name) || self.cache.has(name);
            if !is_loaded && let Some(outcome) = tickets::refresh(&self.conn, name, op, now, is_dead)? {
                work.answers.push(Answer { outcome, handed_over: Vec::new() });
                continue;
            }
            let (row, changed) = match rows.entry(name) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert((self.load(name)?, false)),
            };
            let mut applied = apply_to_living(&mut row.record, op, now);
            row.tell(&applied.events, now, &mut self.numbers)?;
            *changed |= applied.changed;
            // A lease retained for `at_least` outlives its process, too.
            let kept = matches!(op, LockOp::Release(release) if release.at_least.is_some());
            let granted = match &applied.outcome {
                Outcome::Granted(lease) => Some(lease),
                _ => None,
            };
            if kept || granted.into_iter().chain(&applied.handed_over).any(|lease| outlives_us(&lease.ask)) {
                work.needs = Durability::Full;
            }
            if applied.changed {
                work.newest = work.newest.max(row.record.token);
            }
            let handed_over = std::mem::take(&mut applied.handed_over);
            work.answers.push(Answer { outcome: applied.outcome, handed_over });
        }
        // Events of many locks share pages if they move to the events table together; events of a
        // few locks are cheaper in their rows.
        let many = rows.len() >= MANY;
        for (mut row, changed) in rows.into_values() {
            if changed {
                if many || row.tail.is_long() {
                    let moved = tables::move_out(&self.conn, &mut row)?;
                    if fastrand::u32(..PRUNE_EVERY) < moved {
                        self.prune(now)?;
                    }
                }
                tables::save(&self.conn, &mut row, now)?;
            }
            work.rows.push(row);
        }
        if work.newest > self.ceiling {
            work.needs = Durability::Full;
            work.ceiling = Some(self.raise_ceiling(work.newest.max(Token::default().next(now)))?);
        }
        Ok(work)
    }

    /// Reserves tokens ahead of their use. This transaction is synced, so after a power cut the
    /// range of tokens that may have been issued is known, whatever else was lost.
    fn raise_ceiling(&self, newest: Token) -> rusqlite::Result<Token> {
        let ahead = newest.next(Timestamp::from_micros(newest.get()).plus(RESERVE));
        let ceiling = ahead.max(schema::token(&self.conn, schema::CEILING)?);
        schema::set_token(&self.conn, schema::CEILING, ceiling)?;
        Ok(ceiling)
    }

    /// Commits, or rolls back and returns `None` if the work needs more than `durability`.
    fn settle(&mut self, work: Work, durability: Durability) -> rusqlite::Result<Option<Vec<Answer>>> {
        self.needed = if work.ceiling.is_some() { self.least } else { work.needs };
        if work.needs > durability {
            self.conn.execute_batch("ROLLBACK")?;
            return Ok(None);
        }
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        work.rows.into_iter().for_each(|row| self.cache.put(row));
        self.ceiling = work.ceiling.unwrap_or(self.ceiling);
        self.count_commit()?;
        Ok(Some(work.answers))
    }

    fn load(&mut self, name: &LockName) -> rusqlite::Result<LockRow> {
        if let Some(row) = self.cache.take(name) {
            return Ok(row);
        }
        let mut row = match tables::load(&self.conn, name)? {
            Some(row) => row,
            // Read in the transaction that creates the lock: `forget` raises this floor in the
            // transaction that removes a lock.
            None => LockRow::new(name.clone(), TokenFloor::at(schema::token(&self.conn, schema::FORGOTTEN)?)),
        };
        row.record.token = row.record.token.max(self.floor);
        row.long_queue = self.long_queue;
        Ok(row)
    }

    /// Returns one record as stored.
    pub(super) fn get(&self, name: &LockName) -> rusqlite::Result<Option<LockRecord>> {
        let row = tables::load(&self.conn, name)?;
        Ok(row.map(|row| LockRecord { token: row.record.token.max(self.floor), ..row.record }))
    }

    /// Returns the state of a lock that a waiter needs, without the tickets of a long queue.
    pub(super) fn peek(&self, name: &LockName, waiter: &LeaseId) -> rusqlite::Result<Peek> {
        let now = self.clock.now();
        let found = tables::without_tickets(&self.conn, name)?;
        Ok(match found {
            Some(Stored { body: Body::Listed(lock), wake_at, .. }) => Peek {
                lease: lock.record.lease(waiter).cloned(),
                wake_at,
                holder_is_gone: lock.record.holders.iter().any(|lease| is_dead(&lease.ask)),
                now,
            },
            Some(Stored { body: Body::Whole(record), .. }) => Peek::of(Some(&record), waiter, now),
            None => Peek::of(None, waiter, now),
        })
    }

    /// Moves the newest events of all locks into the events table and reads them there in order. A
    /// process that has written commits the move; a process that only reads rolls it back.
    pub(super) fn gathered<T>(
        &mut self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let tx = self.conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let moved = tables::gather(&tx, self.clock.now())?;
        let found = read(&tx)?;
        if self.writes.is_none() {
            tx.rollback()?;
            return Ok(found);
        }
        if moved {
            self.cache.clear();
        }
        tx.commit()?;
        Ok(found)
    }

    fn set_durability(&mut self, durability: Durability) -> rusqlite::Result<()> {
        if self.set_to != Some(durability) {
            let synchronous = match durability {
                Durability::Holders => "NORMAL",
                Durability::Full => "FULL",
            };
            self.conn.pragma_update(None, "synchronous", synchronous)?;
            self.set_to = Some(durability);
        }
        Ok(())
    }

    /// Returns up to `limit` locks with an expired or dead lease or ticket. Also moves the newest
    /// events into the events table and corrects rows whose `wake_at` was too early.
    pub(super) fn find_ended(&mut self, limit: u32) -> rusqlite::Result<Vec<LockName>> {
        self.enter()?;
        let tx = self.conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let now = self.clock.now();
        let mut ended = Vec::new();
        self.cache.clear();
        tables::gather(&tx, now)?;
        for mut row in tables::due(&tx, now, limit)? {
            if row.record.next_end().is_some_and(|end| end <= now) {
                ended.push(row.record.name);
            } else {
                tables::save_tidy(&tx, &mut row, now)?;
            }
        }
        let live = tables::with_something_live(&tx)?.into_iter().map(|row| row.record);
        let dead = live.filter(|record| !all_dead(record).is_empty()).map(|record| record.name);
        let found = ended.into_iter().chain(dead).take(limit as usize).collect();
        tx.commit()?;
        self.prune(now)?;
        Ok(found)
    }

    /// Removes idle locks among the next ones by name and raises the floor above their tokens in
    /// the same transaction.
    pub(super) fn forget(&mut self, idle: Ttl, limit: u32) -> rusqlite::Result<u32> {
        self.begin(Durability::Holders)?;
        let now = self.clock.now();
        let forgotten = self.forget_some(now, idle, limit).and_then(|forgotten| {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(forgotten)
        });
        // The cache check detects only writes of other connections, not those of this one.
        self.cache.clear();
        match forgotten {
            Ok(forgotten) => self.count_commit().map(|()| forgotten),
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    fn forget_some(&mut self, now: Timestamp, idle: Ttl, limit: u32) -> rusqlite::Result<u32> {
        let before = TokenFloor::at(schema::token(&self.conn, schema::FORGOTTEN)?);
        let floor = before.raised(now, idle);
        let page = tables::idle(&self.conn, &self.forget_after, limit.max(LOOKED_AT))?;
        self.forget_after = if page.len() < limit.max(LOOKED_AT) as usize {
            String::new()
        } else {
            page.last().map(|(_, record)| record.name.as_str().to_owned()).unwrap_or_default()
        };
        let mut forgotten = 0;
        for (id, record) in page {
            if forgotten < limit && record.is_forgettable(floor) {
                tables::remove(&self.conn, id)?;
                forgotten += 1;
            }
        }
        if forgotten > 0 && floor > before {
            schema::set_token(&self.conn, schema::FORGOTTEN, floor.token())?;
        }
        Ok(forgotten)
    }

    /// Removes events beyond the maximum number and age.
    fn prune(&self, now: Timestamp) -> rusqlite::Result<()> {
        let before = now.as_micros().saturating_sub(MAX_AGE.as_micros());
        tables::prune(&self.conn, self.max_events, Timestamp::from_micros(before))
    }
}

/// Whether the holder may survive a power cut of this machine.
fn outlives_us(ask: &Ask) -> bool {
    ask.process.is_none()
}

/// Applies an operation after expiring the conflicting leases and tickets whose process is
/// certainly dead.
fn apply_to_living(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let dead = match op {
        LockOp::Acquire(_) | LockOp::Release(_) | LockOp::Leave(_) | LockOp::ForceRelease(_) => {
            dead_in_the_way(record)
        }
        LockOp::Sweep(_) => all_dead(record),
        LockOp::Renew(_) | LockOp::RenewLogged(_) | LockOp::RequestRelease(_) | LockOp::Restarted(_) => {
            Vec::new()
        }
    };
    if dead.is_empty() {
        return record.apply(op, now);
    }
    let is_dead = |lease: &&Lease| lease.status != Status::Released && dead.contains(&lease.ask.lease_id);
    let first_dead = record.holders.iter().find(is_dead).map(|lease| Box::new(TookOver::of(lease)));
    let buried = record.apply(&LockOp::Sweep(Sweep { dead }), now);
    let mut applied = record.apply(op, now);
    if let Outcome::Granted(lease) = &mut applied.outcome
        && lease.acquired_at == now
        && first_dead.is_some()
    {
        lease.took_over = first_dead;
    }
    applied.events.splice(0..0, buried.events);
    applied.handed_over.splice(0..0, buried.handed_over);
    applied.changed |= buried.changed;
    if let (Outcome::Swept(all), Outcome::Swept(first)) = (&mut applied.outcome, buried.outcome) {
        *all += first;
    }
    applied
}

/// Returns dead holders, and dead waiters that would be granted the lock next.
fn dead_in_the_way(record: &LockRecord) -> Vec<LeaseId> {
    let holders = record.holders.iter().map(|lease| &*lease.ask).filter(|ask| is_dead(ask));
    let waiters = record.waiters.iter().map(|ticket| &*ticket.ask).take_while(|ask| is_dead(ask));
    holders.chain(waiters).map(|ask| ask.lease_id).collect()
}

fn all_dead(record: &LockRecord) -> Vec<LeaseId> {
    let holders = record.holders.iter().map(|lease| &*lease.ask);
    let asks = holders.chain(record.waiters.iter().map(|ticket| &*ticket.ask));
    asks.filter(|ask| is_dead(ask)).map(|ask| ask.lease_id).collect()
}

fn is_dead(ask: &Ask) -> bool {
    match &ask.process {
        None => false,
        process if *process == this_process() => false,
        Some(process) => is_gone(process),
    }
}
