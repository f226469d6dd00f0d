//! Maintenance: expiry of leases, promotion of due tasks, folding of counts, and retention.

use std::collections::BTreeSet;
use std::sync::Weak;

use tokio_postgres::Row;

use super::codec::read_id;
use super::notifier::QueueChange;
use super::pool::Pool;
use super::transaction::change_all;
use crate::error::Result;
use crate::model::{Chain, Recovered, TaskId, TaskOp, TaskTable};
use crate::store::postgres::columns::{first_row, lock_name, queue_name};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, MAX_COUNTS, MAX_ROWS, SMALL, Sql, TEXT};
use crate::store::repeat::Repeat;

/// Maximum number of batches of one folding.
const MAX_FOLD_BATCHES: usize = 100;

pub(super) struct RecoveryPass {
    pub(super) recovered: Recovered,
    pub(super) changes: Vec<QueueChange>,
    /// Progress of the check for expired leases, and the time.
    pub(super) expired: (i64, i64),
    /// Progress of promoting due tasks, and the time.
    pub(super) due: (i64, i64),
}

/// Ends expired leases and makes due tasks pending, from these times on.
pub(super) async fn recover(
    session: &Session,
    limit: u32,
    since: (i64, i64),
    now: Option<i64>,
) -> Result<RecoveryPass, PgError> {
    let mut pass = expire_since(session, limit, since.0, now).await?;
    (pass.recovered.promoted, pass.due) = promote(session, since.1, now).await?;
    Ok(pass)
}

/// Ends at most `limit` expired leases, among those to be checked from `since` on.
pub(super) async fn expire_since(
    session: &Session,
    limit: u32,
    since: i64,
    now: Option<i64>,
) -> Result<RecoveryPass, PgError> {
    let rows = session.query(&EXPIRED, &[&since, &now]).await?;
    let first = first_row(&rows)?;
    let at: i64 = first.try_get(7)?;
    let (mut until, mut expired, mut checked) = (at, Vec::new(), 0);
    for row in &rows {
        let Some(check_at) = row.try_get::<_, Option<i64>>(3)? else { continue };
        checked += 1;
        let (ends, is_expired, is_rescheduled): (i64, bool, bool) =
            (row.try_get(4)?, row.try_get(5)?, row.try_get(6)?);
        if is_expired {
            expired.push((ends, read_id(row, 0)?, check_at, row));
        } else if !is_rescheduled {
            until = until.min(check_at);
        }
        if checked >= MAX_ROWS {
            until = until.min(check_at);
        }
    }
    expired.sort_unstable_by_key(|(ends, id, ..)| (*ends, *id));
    let remaining = expired.split_off(expired.len().min(limit as usize));
    until = remaining.iter().map(|(_, _, check_at, _)| *check_at).fold(until, i64::min);
    let mut pass = RecoveryPass {
        recovered: Recovered::default(),
        changes: Vec::new(),
        expired: (until, at),
        due: (0, at),
    };
    if expired.is_empty() {
        return Ok(pass);
    }
    let (ids, chains) = ids_and_chains(expired.iter().map(|(_, _, _, row)| *row))?;
    let ended = change_all(session, &ids, chains, &TaskOp::Expire, now).await?;
    for state in ended.states {
        pass.recovered.count(state);
    }
    pass.changes = ended.changes;
    let skipped = expired.iter().filter(|(_, id, ..)| ended.skipped.contains(id));
    pass.expired.0 = skipped.map(|(_, _, check_at, _)| *check_at).fold(until, i64::min);
    Ok(pass)
}

/// Makes due tasks of all queues pending, paused or not, from `since` on. Returns their number and
/// the progress.
async fn promote(session: &Session, since: i64, now: Option<i64>) -> Result<(u32, (i64, i64)), PgError> {
    let rows = session.query(&PROMOTE_ALL, &[&since, &now]).await?;
    let row = first_row(&rows)?;
    let (at, promoted): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let rows = session.query(&ALL_DUE_LOCKED, &[&since, &now]).await?;
    let full =
        promoted >= i64::from(TaskTable::MAX_PROMOTED) || rows.len() >= TaskTable::MAX_PROMOTED as usize;
    let (locked, conflict) = promote_locked(session, &rows, now).await?;
    let until = if full || conflict { since } else { at };
    Ok((u32::try_from(promoted).unwrap_or(u32::MAX).saturating_add(locked), (until, at)))
}

/// Makes due tasks with a lock pending, on the slow path. Returns their number, and whether another
/// transaction had locked some of the rows.
pub(super) async fn promote_locked(
    session: &Session,
    rows: &[Row],
    now: Option<i64>,
) -> Result<(u32, bool), PgError> {
    let (ids, chains) = ids_and_chains(rows)?;
    if ids.is_empty() {
        return Ok((0, false));
    }
    let promoted = change_all(session, &ids, chains, &TaskOp::Promote, now).await?;
    Ok((u32::try_from(promoted.states.len()).unwrap_or(u32::MAX), promoted.had_conflict))
}

/// Reads the first three columns: a task, its lock and its queue.
fn ids_and_chains<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
) -> Result<(Vec<TaskId>, BTreeSet<Chain>), PgError> {
    let (mut ids, mut chains) = (Vec::new(), BTreeSet::new());
    for row in rows {
        ids.push(read_id(row, 0)?);
        if row.try_get::<_, Option<&str>>(1)?.is_some() {
            chains.insert((lock_name(row, 1)?, queue_name(row, 2)?));
        }
    }
    Ok((ids, chains))
}

/// Folds counts, batch by batch, for as long as there may be many, and as the pool exists.
pub(super) async fn fold(pool: &Weak<Pool>) -> Result<()> {
    for _ in 0..MAX_FOLD_BATCHES {
        let Some(pool) = pool.upgrade() else { break };
        let rows = pool.query(Repeat::Safe, &FOLD, Vec::new()).await?;
        let folded = first_row(&rows).and_then(FoldedBatch::read);
        if !pool.connector.map_error(folded)?.expects_more() {
            break;
        }
    }
    Ok(())
}

/// Answer to [`FOLD`].
struct FoldedBatch {
    /// Whether this session had the turn to fold counts.
    is_mine: bool,
    counts: i64,
    sums: i64,
}

impl FoldedBatch {
    fn read(row: &Row) -> Result<Self, PgError> {
        Ok(Self { is_mine: row.try_get(0)?, counts: row.try_get(1)?, sums: row.try_get(2)? })
    }

    /// Whether this session should fold another batch. Not if another session has the turn: that one goes on by
    /// itself. Nor if the batch hardly became smaller: with very many queues the sums alone fill a batch, and
    /// folding them again changes nothing.
    const fn expects_more(&self) -> bool {
        self.is_mine && self.counts >= MAX_COUNTS && self.sums <= MAX_COUNTS / 10 * 9
    }
}

// --- statements -----------------------------------------------------------------------------------

/// Makes due tasks without a lock pending in all queues, paused or not, from `$1` on. Returns the
/// time and the number of tasks.
pub(crate) static PROMOTE_ALL: Sql = Sql::new(
    &[BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    due AS MATERIALIZED (
        SELECT t.row_id FROM clock c CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id FROM $s.tasks t
            WHERE t.state + 0 = 0 AND t.lock IS NULL AND t.run_at >= $1 AND t.run_at <= c.now
            ORDER BY t.run_at, t.id LIMIT $MAX_ROWS FOR UPDATE SKIP LOCKED) t),
    promoted AS (
        UPDATE $s.tasks t SET state = 2, ready_at = c.now, early = false FROM due d CROSS JOIN clock c
        WHERE t.ctid = d.row_id RETURNING t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM promoted, (VALUES (0::smallint, -1), (2::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT now, (SELECT count(*) FROM promoted) FROM clock",
);

/// Selects due tasks with a lock in any queue, paused or not, from `$1` on.
pub(crate) static ALL_DUE_LOCKED: Sql = Sql::new(
    &[BIG],
    "SELECT t.id, t.lock, t.queue FROM $s.tasks t
    WHERE t.state + 0 = 0 AND t.lock IS NOT NULL AND t.run_at >= $1 AND t.run_at <= (SELECT $NOW)
    ORDER BY t.run_at, t.id LIMIT $MAX_ROWS",
);

/// Selects leases that may have expired, those to be checked from `$1` on, in the order of that
/// time; and the deadlines of runners that have passed, from `$1` on, too: each renewal leaves an
/// entry in their index. A task never begins to wait with a deadline that has passed before.
/// Active leases are checked again at their end. Returns for each whether it has expired, and if
/// not, whether the next check was recorded, which is not done for a row that another session has
/// locked. There is always a row, with the time.
pub(crate) static EXPIRED: Sql = Sql::new(
    &[BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    due AS MATERIALIZED (
        (SELECT t.id, t.lock, t.queue, t.check_at, t.lease_expires_at FROM clock c CROSS JOIN LATERAL (
            SELECT * FROM $s.tasks t WHERE t.state = 3 AND t.check_at >= $1 AND t.check_at <= c.now
            ORDER BY t.check_at, t.id LIMIT $MAX_ROWS) t)
        UNION ALL
        (SELECT t.id, t.lock, t.queue, t.runner_deadline, t.runner_deadline FROM $s.tasks t
            WHERE t.state < 3 AND t.runner_deadline IS NOT NULL AND t.runner_deadline >= $1
              AND t.runner_deadline <= (SELECT now FROM clock)
            ORDER BY t.runner_deadline, t.id LIMIT $MAX_ROWS)),
    active AS MATERIALIZED (
        SELECT t.row_id, t.state = 3 AND t.lease_expires_at > c.now AS is_active
        FROM due d CROSS JOIN clock c CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id, t.state, t.lease_expires_at FROM $s.tasks t
            WHERE t.id = d.id AND d.lease_expires_at > c.now FOR UPDATE SKIP LOCKED) t),
    rescheduled AS (
        UPDATE $s.tasks t SET check_at = t.lease_expires_at FROM active a WHERE t.ctid = a.row_id AND a.is_active
        RETURNING t.id)
    SELECT d.id, d.lock, d.queue, d.check_at, d.lease_expires_at, d.lease_expires_at <= c.now,
        EXISTS (SELECT FROM rescheduled r WHERE r.id = d.id), c.now
    FROM clock c LEFT JOIN due d ON true ORDER BY d.check_at, d.id",
);

/// Finds and locks finished tasks of the queue `$1`, or of all, that ended before `$3`: the first `$4`, with `$2` only
/// those of that state. `$LISTED` states whether archived ones are included.
///
/// The index has a list for each queue, state, and whether archived: `parts` jumps from one to the next, so only
/// what is old enough is read. With many lists, only a few tasks of each can be among the first of all:
///
/// - `heads` are the lists that can have one of them: those whose own first tasks are the first.
/// - `bound` is a task up to which there are enough tasks. It is searched for in the beginnings of the lists, unless
///   the lists are few. If it is not found, most lists are short.
/// - `first` reads each list up to that task, and has the first tasks of all.
///
/// Tasks are locked by their ids, in their order, as soon as it is known which are the first. Rows that another
/// session has locked are skipped, so `first` has some more tasks than `$4`. The conditions on a locked row are
/// written so that no other index can serve them, whatever the statistics.
const OLD: &str = "
    parts AS (
        (SELECT t.queue, t.state FROM $s.tasks t WHERE $1::text IS NULL AND t.finished_at IS NOT NULL
            ORDER BY t.queue, t.state LIMIT 1)
        UNION ALL
        SELECT n.queue, n.state FROM parts p CROSS JOIN LATERAL (
            SELECT t.queue, t.state FROM $s.tasks t
            WHERE t.finished_at IS NOT NULL AND (t.queue, t.state) > (p.queue, p.state)
            ORDER BY t.queue, t.state LIMIT 1) n),
    lists AS (
        SELECT p.queue, p.state FROM parts p
        UNION ALL
        SELECT $1 COLLATE \"C\", s.state FROM unnest('{4,5,6}'::smallint[]) AS s (state) WHERE $1 IS NOT NULL),
    heads AS MATERIALIZED (
        SELECT l.queue, l.state, a.archived FROM lists l CROSS JOIN (VALUES $LISTED) AS a (archived) CROSS JOIN LATERAL (
            SELECT t.finished_at, t.id FROM $s.tasks t
            WHERE t.queue = l.queue AND t.state = l.state AND t.archived = a.archived AND t.finished_at < $3
            ORDER BY t.finished_at, t.id LIMIT 1) t
        WHERE $2::smallint IS NULL OR l.state = $2
        ORDER BY t.finished_at, t.id LIMIT $4 + 100),
    bound AS MATERIALIZED (
        SELECT t.finished_at, t.id FROM heads h CROSS JOIN LATERAL (
            SELECT t.finished_at, t.id FROM $s.tasks t
            WHERE t.queue = h.queue AND t.state = h.state AND t.archived = h.archived AND t.finished_at < $3
            ORDER BY t.finished_at, t.id
            LIMIT (SELECT CASE WHEN count(*) > 8 THEN 2 * ($4 + 100) / count(*) + 2 ELSE 0 END FROM heads)) t
        ORDER BY t.finished_at, t.id OFFSET $4 + 99 LIMIT 1),
    first AS MATERIALIZED (
        SELECT t.id FROM heads h CROSS JOIN LATERAL (
            SELECT t.id, t.finished_at FROM $s.tasks t
            WHERE t.queue = h.queue AND t.state = h.state AND t.archived = h.archived AND t.finished_at < $3
              AND (t.finished_at, t.id) <= (
                coalesce((SELECT b.finished_at FROM bound b), $3),
                coalesce((SELECT b.id FROM bound b), '00000000-0000-0000-0000-000000000000'::uuid))
            ORDER BY t.finished_at, t.id LIMIT $4 + 100) t
        ORDER BY t.finished_at, t.id LIMIT $4 + 100),
    old AS MATERIALIZED (
        SELECT t.row_id FROM first f CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id FROM $s.tasks t
            WHERE t.id = f.id AND coalesce(t.finished_at, $3) < $3 AND ($2::smallint IS NULL OR t.state + 0 = $2)
            FOR UPDATE SKIP LOCKED) t
        LIMIT $4)";

/// Archives the tasks that [`OLD`] finds.
pub(crate) static ARCHIVE: Sql = Sql::built(&[TEXT, SMALL, BIG, BIG], || {
    format!(
        "WITH RECURSIVE {old},
    archived AS (
        UPDATE $s.tasks t SET archived = true FROM old o WHERE t.ctid = o.row_id AND NOT t.archived
        RETURNING t.queue, t.state),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, -count(*) FROM archived GROUP BY queue, state)
    SELECT count(*) FROM archived",
        old = OLD.replace("$LISTED", "(false)")
    )
});

/// Deletes the tasks that [`OLD`] finds, and their keys.
pub(crate) static PURGE: Sql = Sql::built(&[TEXT, SMALL, BIG, BIG], || {
    format!(
        "WITH RECURSIVE {old},
    deleted AS (
        DELETE FROM $s.tasks t USING old o WHERE t.ctid = o.row_id
        RETURNING t.id, t.queue, t.state, t.archived, t.key),
    keys AS (
        DELETE FROM $s.task_keys k USING deleted g
        WHERE g.key IS NOT NULL AND k.queue = g.queue AND k.key = g.key AND k.id = g.id),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, -count(*) FROM deleted WHERE NOT archived GROUP BY queue, state)
    SELECT count(*) FROM deleted",
        old = OLD.replace("$LISTED", "(false), (true)")
    )
});

/// Folds counts into their sums, unless another session is doing so. Rows that another session has locked are
/// skipped. Returns whether this session had the turn, the number of rows, and that of their sums.
pub(crate) static FOLD: Sql = Sql::new(
    &[],
    "WITH turn AS MATERIALIZED (
        SELECT pg_try_advisory_xact_lock(hashtextextended('leasehold counts $s.task_counts', 0)) AS is_mine),
    batch AS MATERIALIZED (
        SELECT ctid FROM $s.task_counts WHERE (SELECT is_mine FROM turn) LIMIT $MAX_COUNTS FOR UPDATE SKIP LOCKED),
    deleted AS (
        DELETE FROM $s.task_counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM batch)) RETURNING queue, state, delta),
    summed AS (
        INSERT INTO $s.task_counts
        SELECT queue, state, sum(delta) FROM deleted GROUP BY queue, state HAVING sum(delta) <> 0 RETURNING queue)
    SELECT is_mine, (SELECT count(*) FROM deleted), (SELECT count(*) FROM summed) FROM turn",
);

pub(crate) static PURGE_WORKERS: Sql = Sql::new(&[BIG], "DELETE FROM $s.workers WHERE seen_at <= $NOW - $1");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folding_goes_on_while_full_batches_become_smaller() {
        let expects_more = |is_mine, counts, sums| FoldedBatch { is_mine, counts, sums }.expects_more();
        assert!(expects_more(true, MAX_COUNTS, 3));
        assert!(!expects_more(true, MAX_COUNTS - 1, 3), "these were all");
        assert!(!expects_more(true, MAX_COUNTS, MAX_COUNTS - 1), "almost all were sums");
        assert!(!expects_more(false, 0, 0), "another session goes on");
    }
}
