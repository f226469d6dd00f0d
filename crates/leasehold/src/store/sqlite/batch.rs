//! Many operations, one transaction.

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
use crate::store::{Boot, Clock, Moment, Peek, is_gone, this_process};

/// How far ahead of its use a range of tokens is reserved on the disk.
const RESERVE: Ttl = Ttl::from_secs(60);
/// Events are pruned once in so many, by chance: processes that live for one of them do their part too.
const PRUNE_EVERY: u32 = 8192;
/// So many locks in one transaction are many.
const MANY: usize = 4;
/// No event is kept for longer than this.
const MAX_AGE: Ttl = Ttl::from_secs(90 * 24 * 3600);

/// Locks that one pass of forgetting examines.
const LOOKED_AT: u32 = 2_000;

/// The log is folded into the file when it has so many pages. Whoever opens the store while nobody else has it open
/// reads the whole log, so a process that lives for a few transactions keeps it short; one that goes on is better off
/// with fewer waits for the disk.
const SHORT_LOG: u32 = 64;
const LONG_LOG: u32 = 1000;
const SHORT_LIVED: u32 = 64;

/// The tables and what has to be known to write to them.
pub(super) struct Ledger {
    conn: Connection,
    pub(super) clock: Clock,
    /// The boot to believe in; else what the system says.
    boot: Option<Boot>,
    presence: Presence,
    /// Once this process may write.
    writes: Option<WriteState>,
    floor: Token,
    ceiling: Token,
    least: Durability,
    /// What the connection is set to.
    set_to: Option<Durability>,
    /// What the last batch needed: a good guess for the next.
    needed: Durability,
    max_events: u32,
    long_queue: usize,
    /// The name of the last lock that was looked at to be forgotten.
    forget_after: String,
    commits: u32,
    cache: Cache,
    numbers: Numbers,
    queues: Queues,
}

/// What a process that may write remembers of the boot.
struct WriteState {
    knows_boot: bool,
    stamp_due: Moment,
    /// When the stamp will be due once the transaction under way, which renews it, is committed.
    renewed: Option<Moment>,
}

/// One operation and what came of it.
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    pub(super) handed_over: Vec<Lease>,
}

/// A transaction's work, not committed yet.
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

    /// Whether the next transaction is likely to wait for the disk.
    pub(super) fn waits_for_the_disk(&self) -> bool {
        self.needed.max(self.least) == Durability::Full
    }

    /// Applies one operation without waiting for the disk. None, and nothing has happened, if it must be waited for.
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

    /// Applies all operations in one transaction, in order. On an error none of them has happened, as far as can be
    /// known.
    pub(super) fn commit<'a>(
        &mut self,
        ops: &(impl Iterator<Item = (&'a LockName, &'a LockOp)> + Clone),
    ) -> rusqlite::Result<Vec<Answer>> {
        let mut durability = self.needed.max(self.least);
        loop {
            match self.try_commit(ops, durability)? {
                Some(answers) => return Ok(answers),
                // What it takes is known only once the operations have been applied. Start over with it.
                None => durability = Durability::Full,
            }
        }
    }

    /// None, and nothing has happened, if the operations need more than `durability`.
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
            // An error on the disk may have kept the last transaction from ending.
            self.conn.execute_batch("ROLLBACK")?;
        }
        self.enter()?;
        self.set_durability(durability)?;
        self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.renew_stamp().inspect_err(|_| self.roll_back())
    }

    /// Finds out whether the machine was restarted, before the first write of this process. A process that only looks
    /// changes nothing.
    fn enter(&mut self) -> rusqlite::Result<()> {
        if self.writes.is_some() {
            return Ok(());
        }
        self.set_durability(Durability::Full)?;
        let read = || self.boot.unwrap_or_else(Boot::read);
        let entered = boot::enter(&mut self.conn, &self.presence, read, &self.clock)?;
        self.follow(&entered.known, &entered.now)?;
        self.cache.clear();
        let stamp_due = Moment::now().plus(entered.known.stamp_due_in(&entered.now));
        self.writes = Some(WriteState { knows_boot: entered.knows_boot, stamp_due, renewed: None });
        Ok(())
    }

    /// Whether this process may write, and so goes by the clock that the others go by.
    pub(super) fn has_entered(&self) -> bool {
        self.writes.is_some()
    }

    /// Takes over what another process may have found out meanwhile about the boot. To be called before a look.
    pub(super) fn catch_up(&mut self) -> rusqlite::Result<()> {
        if self.writes.is_some() {
            return Ok(());
        }
        // In this order: the stamp may be renewed at any time, and must not be newer than the reading.
        let known = Known::load(&self.conn)?;
        self.follow(&known, &self.boot())
    }

    /// The boot that this process runs in.
    pub(super) fn boot(&self) -> Boot {
        self.boot.unwrap_or_else(Boot::read)
    }

    /// Does something under the write lock, without writing.
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
        let moment = Moment::now();
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
            let _ = self.conn.execute_batch("ROLLBACK"); // Tried again before the next one.
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

    /// Does something with tasks or documents in one transaction, without waiting for the disk.
    pub(super) fn transact<T>(
        &mut self,
        work: impl FnOnce(&Connection, &mut Queues, Timestamp) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.begin(Durability::Holders)?;
        // With the write lock in hand: a lease that had to wait for it is not older for that.
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

    /// What it takes to look at tasks.
    pub(super) fn parts(&mut self) -> (&Connection, &mut Queues, Timestamp) {
        (&self.conn, &mut self.queues, self.clock.now())
    }

    fn work<'a>(&mut self, ops: impl Iterator<Item = (&'a LockName, &'a LockOp)>) -> rusqlite::Result<Work> {
        // Read with the write lock in hand: a lease that had to wait for it is not older for that.
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
            // A lease that only keeps others out for a while outlives its process too.
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
        // The events of many locks share their pages, if they move out together; those of a few are cheaper in their rows.
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

    /// Reserves tokens ahead of their use. The transaction that does so is synced, so after a power cut the tokens that
    /// may have been given are known, whatever else was lost.
    fn raise_ceiling(&self, newest: Token) -> rusqlite::Result<Token> {
        let ahead = newest.next(Timestamp::from_micros(newest.get()).plus(RESERVE));
        let ceiling = ahead.max(schema::token(&self.conn, schema::CEILING)?);
        schema::set_token(&self.conn, schema::CEILING, ceiling)?;
        Ok(ceiling)
    }

    /// Commits, or rolls back if the work needs more than it was begun with.
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
            // Read in the transaction that makes the lock: a process that forgets raises it in the one that removes one.
            None => LockRow::new(name.clone(), TokenFloor::at(schema::token(&self.conn, schema::FORGOTTEN)?)),
        };
        row.record.token = row.record.token.max(self.floor);
        row.long_queue = self.long_queue;
        Ok(row)
    }

    /// One record, as it is.
    pub(super) fn get(&self, name: &LockName) -> rusqlite::Result<Option<LockRecord>> {
        let row = tables::load(&self.conn, name)?;
        Ok(row.map(|row| LockRecord { token: row.record.token.max(self.floor), ..row.record }))
    }

    /// What a waiter needs to know of a lock, without the tickets of a long queue.
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

    /// Brings the newest events of all locks together, so that they can be read in order. A process that has written
    /// leaves them there; one that only looks leaves the file as it is.
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

    /// The locks that have something to clear away, up to `limit`; on the way, the newest events go to the others, and the
    /// rows whose `wake_at` came too early get the right one.
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

    /// Forgets idle locks among the next ones by name, and raises the floor above their tokens in the same transaction.
    pub(super) fn forget(&mut self, idle: Ttl, limit: u32) -> rusqlite::Result<u32> {
        self.begin(Durability::Holders)?;
        let now = self.clock.now();
        let forgotten = self.forget_some(now, idle, limit).and_then(|forgotten| {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
            Ok(forgotten)
        });
        // Rows of this connection's own writing are not dropped by the check for those of others.
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

    /// Bounds the history.
    fn prune(&self, now: Timestamp) -> rusqlite::Result<()> {
        let before = now.as_micros().saturating_sub(MAX_AGE.as_micros());
        tables::prune(&self.conn, self.max_events, Timestamp::from_micros(before))
    }
}

/// A power cut that ends this machine does not end these.
fn outlives_us(ask: &Ask) -> bool {
    ask.process.is_none()
}

/// Applies an operation after clearing away those in its way that are certainly dead.
fn apply_to_living(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let dead = match op {
        LockOp::Acquire(_) | LockOp::Release(_) | LockOp::Leave(_) | LockOp::ForceRelease(_) => {
            dead_in_the_way(record)
        }
        LockOp::Sweep(_) => all_dead(record),
        LockOp::Renew(_) | LockOp::RenewLogged(_) | LockOp::AskRelease(_) | LockOp::Restarted(_) => {
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

/// Dead holders, and dead waiters that would be served next.
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
