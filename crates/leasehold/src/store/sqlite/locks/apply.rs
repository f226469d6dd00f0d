//! Lock operations: many in one transaction, synced only if a result must survive a power cut.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use super::queries;
use super::row::LockRow;
use super::tickets::{self, Body, StoredLock};
use crate::model::{
    Applied, Lease, LeaseId, LeaseStatus, LockName, LockOp, LockRecord, LockRequest, Outcome, Sweep,
    Timestamp, Token, TokenFloor, TookOver, Ttl,
};
use crate::store::sqlite::connection::Database;
use crate::store::sqlite::options::Durability;
use crate::store::sqlite::schema;
use crate::store::{self, Peek};

/// Period for which a range of tokens is reserved on the disk ahead of use.
const TOKEN_RESERVE: Ttl = Ttl::from_secs(60);
/// Minimum number of locks in one transaction from which events move to the events table together.
const MIN_LOCKS_TO_MOVE: usize = 4;

pub(crate) struct OpResult {
    pub(crate) outcome: Outcome,
    pub(crate) handed_over: Vec<Lease>,
}

impl OpResult {
    /// Whether a caller holds a lease because of this result. No caller may then rely on it before the
    /// file was checked: a release in a file that was just replaced does no harm, a grant does.
    pub(crate) fn grants_lease(&self) -> bool {
        matches!(self.outcome, Outcome::Granted(_) | Outcome::Renewed(_)) || !self.handed_over.is_empty()
    }
}

/// Operations whose transaction is committed.
pub(crate) struct Committed {
    pub(crate) results: Vec<OpResult>,
    /// Whether the log must be synced before a caller may rely on the results.
    pub(crate) needs_sync: bool,
}

/// How a transaction gets to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum DiskSync {
    /// Not before a later sync.
    None,
    /// By a sync of the log after the commit, during which other connections may write.
    AfterCommit,
    /// Within the commit: no connection sees the transaction before it is on the disk.
    InCommit,
}

/// Operation on the lock of this name.
type NamedOp<'a> = (&'a LockName, &'a LockOp);

/// Operations that are applied in a transaction that is not committed yet.
struct AppliedBatch {
    results: Vec<OpResult>,
    rows: Vec<LockRow>,
    /// Durability that the batch needs.
    durability: Durability,
    /// Whether a result depends on what this batch, or another connection just before, has written.
    is_write: bool,
    newest_token: Token,
    /// New reservation of tokens, if the batch needed one.
    reserved_until: Option<Token>,
}

impl Database {
    /// Whether the next transaction is expected to wait for the disk.
    pub(crate) fn expects_sync(&self) -> bool {
        self.last_needed.max(self.min_durability) == Durability::Full
    }

    /// Applies one operation without waiting for the disk. Returns `None`, without any change, if
    /// the operation must be synced.
    pub(crate) fn commit_without_sync(
        &mut self,
        name: &LockName,
        op: &LockOp,
    ) -> rusqlite::Result<Option<OpResult>> {
        let committed = self.try_commit(&[(name, op)], DiskSync::None)?;
        Ok(committed.and_then(|mut committed| committed.results.pop()))
    }

    /// Applies all operations in one transaction, in order. After an error none of them is applied,
    /// as far as can be determined.
    pub(crate) fn commit(&mut self, ops: &[NamedOp<'_>]) -> rusqlite::Result<Committed> {
        let mut sync = DiskSync::AfterCommit;
        loop {
            match self.try_commit(ops, sync)? {
                Some(committed) => return Ok(committed),
                // What a batch needs is known only once the operations have been applied. Start over
                // with it.
                None => sync = DiskSync::InCommit,
            }
        }
    }

    /// Returns `None`, without any change, if the operations need more than `sync`.
    fn try_commit(&mut self, ops: &[NamedOp<'_>], sync: DiskSync) -> rusqlite::Result<Option<Committed>> {
        self.begin(if sync == DiskSync::InCommit { Durability::Full } else { Durability::Holders })?;
        let committed = self.apply_all(ops).and_then(|batch| self.commit_if_durable(batch, sync));
        match &committed {
            Ok(Some(done)) if done.results.iter().any(|result| !result.handed_over.is_empty()) => {
                self.turn.hand_over();
            }
            Ok(_) => {}
            Err(_) => self.roll_back(),
        }
        committed
    }

    /// Applies the operations inside a transaction and saves the changed rows.
    fn apply_all(&mut self, ops: &[NamedOp<'_>]) -> rusqlite::Result<AppliedBatch> {
        // Read while holding the write lock: the wait for it must not count against a lease.
        let now = self.clock.now();
        let mut batch = AppliedBatch {
            results: Vec::new(),
            rows: Vec::new(),
            durability: self.min_durability,
            is_write: false,
            newest_token: Token::default(),
            reserved_until: None,
        };
        self.cache.check(&self.conn)?;
        let mut rows: HashMap<&LockName, (LockRow, bool)> = HashMap::new();
        for &(name, op) in ops {
            let is_loaded = rows.contains_key(name) || self.cache.rows.contains_key(name);
            if !is_loaded && let Some(outcome) = tickets::refresh(&self.conn, name, op, now, is_dead)? {
                batch.is_write = true;
                batch.results.push(OpResult { outcome, handed_over: Vec::new() });
                continue;
            }
            let (row, changed) = match rows.entry(name) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert((self.load(name)?, false)),
            };
            let lasted = duration_before(&row.record, op);
            let mut applied = apply_without_dead(&mut row.record, op, now);
            row.append_events(&applied.events, now, &mut self.event_numbers)?;
            *changed |= applied.changed;
            batch.is_write |= applied.changed || matches!(applied.outcome, Outcome::Granted(_));
            // A lease retained for `at_least` outlives its process, too.
            let is_retained = matches!(op, LockOp::Release(release) if release.at_least.is_some());
            let granted = match &applied.outcome {
                Outcome::Granted(lease) => Some(lease),
                // After a restart a lease lasts as long again as the disk says. The loss of a renewal
                // therefore matters only if it made the lease longer.
                Outcome::Renewed(lease) if duration(lease) > lasted => Some(lease),
                _ => None,
            };
            let mut granted = granted.into_iter().chain(&applied.handed_over);
            if is_retained || granted.any(|lease| survives_power_loss(&lease.request)) {
                batch.durability = Durability::Full;
            }
            if applied.changed {
                batch.newest_token = batch.newest_token.max(row.record.token);
            }
            let handed_over = std::mem::take(&mut applied.handed_over);
            batch.results.push(OpResult { outcome: applied.outcome, handed_over });
        }
        // Events of many locks share pages if they move to the events table together; events of a
        // few locks are cheaper in their rows.
        let many = rows.len() >= MIN_LOCKS_TO_MOVE;
        for (mut row, changed) in rows.into_values() {
            if changed {
                if many || row.inline_events.is_long() {
                    let moved = queries::move_inline_events(&self.conn, &mut row)?;
                    self.prune_sometimes(moved, now)?;
                }
                queries::save(&self.conn, &mut row, now)?;
            }
            batch.rows.push(row);
        }
        if batch.newest_token > self.reserved_until {
            batch.durability = Durability::Full;
            batch.reserved_until = Some(self.reserve_tokens(batch.newest_token, now)?);
        }
        Ok(batch)
    }

    /// Reserves tokens ahead of their use. This transaction is synced, so after a power cut the
    /// range of tokens that may have been issued is known, whatever else was lost. The reservation
    /// is ahead of the clock, and not of the newest token: each restart continues above it, and
    /// tokens must not depart from the clock with every restart.
    fn reserve_tokens(&self, newest: Token, now: Timestamp) -> rusqlite::Result<Token> {
        let ahead = newest.max(Token::default().next(now.plus(TOKEN_RESERVE)));
        let reserved_until = ahead.max(schema::token(&self.conn, schema::RESERVED_UNTIL)?);
        schema::set_token(&self.conn, schema::RESERVED_UNTIL, reserved_until)?;
        Ok(reserved_until)
    }

    /// Commits, or rolls back and returns `None` if the batch needs more than `sync`.
    fn commit_if_durable(
        &mut self,
        batch: AppliedBatch,
        sync: DiskSync,
    ) -> rusqlite::Result<Option<Committed>> {
        self.last_needed =
            if batch.reserved_until.is_some() { self.min_durability } else { batch.durability };
        let needed = if batch.reserved_until.is_some() {
            // Other processes issue tokens up to a reservation as soon as they see it.
            DiskSync::InCommit
        } else if batch.durability == Durability::Full && batch.is_write {
            DiskSync::AfterCommit
        } else {
            DiskSync::None
        };
        if needed > sync {
            self.conn.execute_batch("ROLLBACK")?;
            return Ok(None);
        }
        self.conn.prepare_cached("COMMIT")?.execute([])?;
        batch.rows.into_iter().for_each(|row| self.cache.put(row));
        self.reserved_until = batch.reserved_until.unwrap_or(self.reserved_until);
        self.count_commit();
        let needs_sync = needed == DiskSync::AfterCommit && sync == DiskSync::AfterCommit;
        Ok(Some(Committed { results: batch.results, needs_sync }))
    }

    fn load(&mut self, name: &LockName) -> rusqlite::Result<LockRow> {
        if let Some(row) = self.cache.rows.remove(name) {
            return Ok(row);
        }
        let mut row = match queries::load(&self.conn, name)? {
            Some(row) => row,
            // Read in the transaction that creates the lock: `forget` raises this minimum in the
            // transaction that removes a lock.
            None => LockRow::new(
                name.clone(),
                TokenFloor::at(schema::token(&self.conn, schema::FORGOTTEN_MIN_TOKEN)?),
            ),
        };
        row.record.token = row.record.token.max(self.min_token);
        row.long_queue = self.long_queue;
        Ok(row)
    }

    pub(crate) fn get(&self, name: &LockName) -> rusqlite::Result<Option<LockRecord>> {
        let row = queries::load(&self.conn, name)?;
        Ok(row.map(|row| self.with_min_token(row.record)))
    }

    /// Returns one range of a list, and the name after which the next range begins.
    pub(crate) fn list(
        &self,
        range: &queries::LockRange,
        now: Timestamp,
    ) -> rusqlite::Result<(Vec<LockRecord>, Option<String>)> {
        let (found, next) = queries::list(&self.conn, range, now)?;
        Ok((found.into_iter().map(|record| self.with_min_token(record)).collect(), next))
    }

    /// Raises the token to the minimum of the store: after a restart of the machine, higher tokens
    /// than the stored one may have been issued.
    fn with_min_token(&self, record: LockRecord) -> LockRecord {
        LockRecord { token: record.token.max(self.min_token), ..record }
    }

    /// Returns the state of a lock that a waiter needs, without the tickets of a long queue.
    pub(crate) fn peek(&self, name: &LockName, waiter: &LeaseId) -> rusqlite::Result<Peek> {
        let now = self.clock.now();
        let found = tickets::load_without_tickets(&self.conn, name)?;
        Ok(match found {
            Some(StoredLock { body: Body::Listed(lock), wake_at, .. }) => Peek {
                lease: lock.record.lease(waiter).cloned(),
                wake_at,
                holder_is_dead: lock.record.holders.iter().any(|lease| is_dead(&lease.request)),
                now,
            },
            Some(StoredLock { body: Body::Whole(record), .. }) => Peek::of(Some(&record), waiter, now),
            None => Peek::of(None, waiter, now),
        })
    }

    /// Whether a holder may rely on this lease only once it is on the disk.
    pub(crate) fn must_be_synced(&self, lease: &Lease) -> bool {
        self.min_durability == Durability::Full || survives_power_loss(&lease.request)
    }
}

/// Whether the holder may survive a power cut of this machine.
fn survives_power_loss(request: &LockRequest) -> bool {
    request.process.is_none()
}

/// Returns the duration of the lease that an operation renews; zero if there is none.
fn duration_before(record: &LockRecord, op: &LockOp) -> Duration {
    match op {
        LockOp::Renew(renew) | LockOp::RenewLogged(renew) => {
            let renewed = record.holders.iter().find(|lease| lease.token == renew.token);
            renewed.map(duration).unwrap_or_default()
        }
        _ => Duration::ZERO,
    }
}

/// Returns the duration of a lease from its last renewal.
fn duration(lease: &Lease) -> Duration {
    lease.expires_at.since(lease.renewed_at)
}

/// Applies an operation after expiring the conflicting leases and tickets whose process is
/// certainly dead.
fn apply_without_dead(record: &mut LockRecord, op: &LockOp, now: Timestamp) -> Applied {
    let dead = match op {
        LockOp::Acquire(_) | LockOp::Release(_) | LockOp::Withdraw(_) | LockOp::ForceRelease(_) => {
            blocking_dead(record)
        }
        LockOp::Sweep(_) => all_dead(record),
        LockOp::Renew(_) | LockOp::RenewLogged(_) | LockOp::RequestRelease(_) | LockOp::Restarted(_) => {
            Vec::new()
        }
    };
    if dead.is_empty() {
        return record.apply(op, now);
    }
    let is_dead =
        |lease: &&Lease| lease.status != LeaseStatus::Released && dead.contains(&lease.request.lease_id);
    let first_dead = record.holders.iter().find(is_dead).map(|lease| Box::new(TookOver::of(lease)));
    let swept = record.apply(&LockOp::Sweep(Sweep { dead }), now);
    let mut applied = record.apply(op, now);
    if let Outcome::Granted(lease) = &mut applied.outcome
        && lease.acquired_at == now
        && first_dead.is_some()
    {
        lease.took_over = first_dead;
    }
    applied.events.splice(0..0, swept.events);
    applied.handed_over.splice(0..0, swept.handed_over);
    applied.changed |= swept.changed;
    if let (Outcome::Swept(all), Outcome::Swept(first)) = (&mut applied.outcome, swept.outcome) {
        *all += first;
    }
    applied
}

/// Returns dead holders, and dead waiters that would be granted the lock next.
fn blocking_dead(record: &LockRecord) -> Vec<LeaseId> {
    let holders = record.holders.iter().map(|lease| &*lease.request).filter(|request| is_dead(request));
    let waiters = record.waiters.iter().map(|ticket| &*ticket.request).take_while(|request| is_dead(request));
    holders.chain(waiters).map(|request| request.lease_id).collect()
}

pub(super) fn all_dead(record: &LockRecord) -> Vec<LeaseId> {
    let holders = record.holders.iter().map(|lease| &*lease.request);
    let requests = holders.chain(record.waiters.iter().map(|ticket| &*ticket.request));
    requests.filter(|request| is_dead(request)).map(|request| request.lease_id).collect()
}

fn is_dead(request: &LockRequest) -> bool {
    request.process.as_ref().is_some_and(store::is_dead)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::model::{Acquire, BootId, Holder, Process, Release, Renew};
    use crate::store::Clock;
    use crate::store::sqlite::options::SqliteOptions;

    const MINUTE: Ttl = Ttl::from_secs(60);
    const HOUR: Ttl = Ttl::from_secs(3600);

    /// Opens a new store whose clock stands still, and reserves tokens there.
    fn open(folder: &tempfile::TempDir) -> Database {
        let mut options = SqliteOptions::new(folder.path().join("a.db"));
        options.clock = Some(Clock::manual(Timestamp::from_micros(1_700_000_000_000_000)));
        let mut database = Database::open(&options).unwrap().1;
        let other = LockName::new("other").unwrap();
        database.commit(&[(&other, &acquire(9, None))]).unwrap();
        database
    }

    /// Requests a lease of an hour, or a ticket of a minute.
    fn acquire(number: u128, process: Option<Process>) -> LockOp {
        let lease_id = LeaseId::from_uuid(Uuid::from_u128(number));
        let mut request = LockRequest::new(lease_id, Holder::new("ada").unwrap(), HOUR);
        request.process = process;
        LockOp::Acquire(Acquire { request: Arc::new(request), queue: Some(MINUTE), steal_after: None })
    }

    /// Applies an operation to the lock; returns its outcome and whether it must be synced.
    fn apply(database: &mut Database, op: &LockOp) -> (Outcome, bool) {
        let Committed { mut results, needs_sync } = database.commit(&[(&lock(), op)]).unwrap();
        (results.remove(0).outcome, needs_sync)
    }

    fn lock() -> LockName {
        LockName::new("lock").unwrap()
    }

    /// Renews the only lease; returns whether that must be synced.
    fn renew(database: &mut Database, ttl: Option<Ttl>) -> bool {
        let lease = database.get(&lock()).unwrap().unwrap().holders.remove(0);
        let renew = Renew { lease_id: lease.request.lease_id, token: lease.token, ttl };
        let (outcome, needs_sync) = apply(database, &LockOp::Renew(renew));
        assert!(matches!(outcome, Outcome::Renewed(_)), "{outcome:?}");
        needs_sync
    }

    #[test]
    fn a_renewal_is_synced_if_its_holder_may_survive_a_power_cut_and_the_lease_becomes_longer() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open(&folder);
        let (outcome, needs_sync) = apply(&mut database, &acquire(1, None));
        assert!(matches!(outcome, Outcome::Granted(_)) && needs_sync, "{outcome:?}");
        let (longer, shorter) = (Some(Ttl::from_secs(7200)), Some(MINUTE));
        let synced = [None, longer, None, shorter, None, longer].map(|ttl| renew(&mut database, ttl));
        assert_eq!(synced, [false, true, false, false, false, true]);
    }

    #[test]
    fn the_first_renewal_after_a_hand_over_is_synced() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open(&folder);
        let (outcome, _) = apply(&mut database, &acquire(1, None));
        let Outcome::Granted(lease) = outcome else { panic!("{outcome:?}") };
        let (outcome, _) = apply(&mut database, &acquire(2, None));
        assert!(matches!(outcome, Outcome::Queued(_)), "{outcome:?}");
        let release = Release { lease_id: lease.request.lease_id, token: lease.token, at_least: None };
        assert!(apply(&mut database, &LockOp::Release(release)).1, "the waiter may survive a power cut");
        assert!(renew(&mut database, None), "from the time of a ticket to the whole ttl");
        assert!(!renew(&mut database, None));
    }

    #[test]
    fn a_renewal_of_a_process_of_this_machine_is_not_synced() {
        let folder = tempfile::tempdir().unwrap();
        let mut database = open(&folder);
        let boot = BootId(Uuid::from_u128(1));
        let process = Process { boot, pid_namespace: 0, members: Vec::new() };
        let (outcome, needs_sync) = apply(&mut database, &acquire(1, Some(process)));
        assert!(matches!(outcome, Outcome::Granted(_)) && !needs_sync, "{outcome:?}");
        assert!(!renew(&mut database, Some(Ttl::from_secs(7200))));
    }
}
