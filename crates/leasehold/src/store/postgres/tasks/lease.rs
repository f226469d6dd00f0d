//! Leasing of tasks, in one statement. Due tasks are made pending first; if some are expected, both
//! statements are sent together.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use super::codec::{TASK_COLUMNS, maybe_time, read_id, read_task};
use super::cursors::Positions;
use super::maintenance::{RecoveryPass, expire_since};
use super::pool::TaskSession;
use super::sql::Sql;
use super::transaction::{BEGIN_SHORT_WAIT, BEGIN_SHORTEST_WAIT, OneByOneLimit, TaskTransaction};
use crate::model::{
    Chain, LeaseTasks, Leased, LockName, QueueName, Task, TaskAnswer, TaskId, TaskOp, TaskTable,
};
use crate::store::postgres::columns::{invalid_row, time, ttl_micros};
use crate::store::postgres::connection::Param;
use crate::store::postgres::error::{PgError, is_conflict};

/// Response of the server to a lease call.
pub(super) struct LeaseResponse {
    /// Result of expiring leases, if some had expired.
    pub(super) expired: Option<RecoveryPass>,
    /// Time at which no lease had expired.
    pub(super) none_expired: Option<i64>,
    /// Time at which all due tasks were made pending, and the queues concerned. `None` if more are
    /// due.
    pub(super) promoted: Option<(i64, Vec<QueueName>)>,
    /// Whether tasks were due.
    pub(super) due: bool,
    rows: Vec<Row>,
}

/// Leases the next tasks.
pub(super) async fn lease(
    session: &TaskSession,
    request: &LeaseTasks,
    positions: &Positions,
    now: Option<i64>,
) -> Result<LeaseResponse, PgError> {
    // Expired leases must be ended before tasks are leased.
    let response = lease_since(session, request, positions, Some(positions.expired_since), now).await?;
    if !response.must_expire_first()? {
        let none_expired = response.rows.first().map(|row| row.try_get(TASK_COLUMNS + 1)).transpose()?;
        return Ok(LeaseResponse { none_expired, ..response });
    }
    let expired = match expire_since(session, TaskTable::RECOVER, positions.expired_since, now).await {
        // A row that cannot be read must not prevent other tasks from being leased.
        Err(PgError::InvalidRow(error)) => {
            tracing::warn!(%error, "expired leases could not be ended");
            session.simple_query("ROLLBACK").await?;
            None
        }
        expired => Some(expired?),
    };
    let response = lease_since(session, request, positions, None, now).await?;
    Ok(LeaseResponse { expired, ..response })
}

async fn lease_since(
    session: &TaskSession,
    request: &LeaseTasks,
    positions: &Positions,
    expired_since: Option<i64>,
    now: Option<i64>,
) -> Result<LeaseResponse, PgError> {
    let (max, ttl, begin) = (i64::from(request.max), ttl_micros(request.ttl), i64::from(request.begin));
    let full = i64::try_from(LeaseTasks::FULL).unwrap_or(i64::MAX);
    let lease = |due_first: &'static bool| -> [Param<'_>; 17] {
        [
            &positions.queues,
            &positions.due,
            &max,
            request.worker.as_uuid(),
            &ttl,
            &positions.level_queue,
            &positions.level_priority,
            &positions.level_since,
            &positions.level_moved,
            due_first,
            &positions.level_run_at,
            &positions.level_id,
            &begin,
            &request.idle,
            &expired_since,
            &full,
            &now,
        ]
    };
    let response =
        |promoted, due, rows| LeaseResponse { expired: None, none_expired: None, promoted, due, rows };
    if !positions.expects_due {
        let rows = session.query(Sql::Lease, &lease(&true)).await?;
        if must_expire_first(&rows)? {
            return Ok(response(None, false, rows));
        }
        if !must_promote_first(&rows)? {
            let promoted = nothing_due(&rows)?.map(|now| (now, request.queues.clone()));
            return Ok(response(promoted, false, rows));
        }
    }
    session.prepare(&[Sql::Promote, Sql::LeaseLockedDue]).await?;
    let promote: [Param<'_>; 4] = [&positions.queues, &positions.due, &expired_since, &now];
    let lease_locked = lease(&true);
    let (promoted, leased) = tokio::join!(biased; session.query(Sql::Promote, &promote), session.query(Sql::LeaseLockedDue, &lease_locked));
    let (promoted, rows) = (promoted?, leased?);
    let due = promoted.first().map_or(Ok(0), |row| row.try_get::<_, i64>(1))? > 0;
    if must_expire_first(&rows)? {
        return Ok(response(None, true, rows));
    }
    if !must_promote_first(&rows)? {
        return Ok(response(fully_promoted(&promoted)?, due, rows));
    }
    let locked = session.query(Sql::DueLocked, &[&positions.queues, &now]).await?;
    promote_locked(session, &locked, now).await?;
    let rows = session.query(Sql::LeaseLockedDue, &lease(&false)).await?;
    Ok(response(None, true, rows))
}

impl LeaseResponse {
    fn must_expire_first(&self) -> Result<bool, PgError> {
        must_expire_first(&self.rows)
    }

    /// Returns the tasks that were read with a cursor, each with the moves of its level; and all
    /// tasks, with the time at which the next one is due.
    pub(super) fn read(&self) -> Result<(Vec<(Task, i64)>, Leased), PgError> {
        let expired = self.expired.as_ref().map_or(0, |pass| pass.recovered.expired());
        let mut leased = Leased { tasks: Vec::new(), next_due: None, more: false, expired };
        let mut with_moves = Vec::new();
        for row in &self.rows {
            let due = maybe_time(row, TASK_COLUMNS + 4)?;
            leased.next_due =
                due.map(|due| Ok::<_, PgError>((due, time(row, TASK_COLUMNS + 1)?))).transpose()?;
            leased.more = row.try_get(TASK_COLUMNS + 5)?;
            if row.try_get::<_, Option<uuid::Uuid>>(0)?.is_some() {
                let task = read_task(row)?;
                if let Some(moved) = row.try_get::<_, Option<i64>>(TASK_COLUMNS)? {
                    with_moves.push((task.clone(), moved));
                }
                leased.tasks.push(task);
            }
        }
        Ok((with_moves, leased))
    }
}

/// Returns the time at which no task was due in any of the queues, or `None` if one of the queues
/// is not open.
fn nothing_due(rows: &[Row]) -> Result<Option<i64>, PgError> {
    let Some(row) = rows.first() else { return Ok(None) };
    let all_open: bool = row.try_get(TASK_COLUMNS + 3)?;
    Ok(Some(row.try_get(TASK_COLUMNS + 1)?).filter(|_| all_open))
}

/// Whether nothing was leased because due tasks must be made pending first.
fn must_promote_first(rows: &[Row]) -> Result<bool, PgError> {
    Ok(rows.first().map(|row| row.try_get(TASK_COLUMNS + 2)).transpose()?.unwrap_or(false))
}

/// Whether nothing was leased because expired leases must be ended first.
fn must_expire_first(rows: &[Row]) -> Result<bool, PgError> {
    Ok(rows.first().map(|row| row.try_get(TASK_COLUMNS + 6)).transpose()?.unwrap_or(false))
}

/// Returns the time at which all due tasks were made pending, and the queues; `None` if more are due.
fn fully_promoted(promoted: &[Row]) -> Result<Option<(i64, Vec<QueueName>)>, PgError> {
    let Some(row) = promoted.first() else { return Ok(None) };
    if row.try_get::<_, i64>(1)? >= i64::from(TaskTable::PROMOTE) {
        return Ok(None);
    }
    let names: Vec<&str> = row.try_get(2)?;
    let names: Result<_, _> = names.into_iter().map(QueueName::new).collect();
    Ok(Some((row.try_get(0)?, names.map_err(invalid_row)?)))
}

/// Makes due tasks with a lock pending, on the slow path. Returns their number, and whether another
/// transaction had locked some of the rows.
pub(super) async fn promote_locked(
    session: &TaskSession,
    rows: &[Row],
    now: Option<i64>,
) -> Result<(u32, bool), PgError> {
    let (ids, chains) = ids_and_chains(rows)?;
    if ids.is_empty() {
        return Ok((0, false));
    }
    match promote_batch(session, BEGIN_SHORT_WAIT, &ids, chains, now).await {
        // Another transaction has locked a head row. The other tasks do not wait for it.
        Err(PgError::Driver(error)) if is_conflict(&error) => {
            session.simple_query("ROLLBACK").await?;
            let one_by_one = OneByOneLimit::new();
            let mut promoted = 0;
            for id in ids {
                if !one_by_one.has_time_left() {
                    break;
                }
                match promote_batch(session, BEGIN_SHORTEST_WAIT, &[id], BTreeSet::new(), now).await {
                    Err(PgError::Driver(error)) if is_conflict(&error) => {
                        session.simple_query("ROLLBACK").await?;
                    }
                    one => promoted += one?,
                }
            }
            Ok((promoted, true))
        }
        promoted => Ok((promoted?, false)),
    }
}

async fn promote_batch(
    session: &TaskSession,
    begin_sql: &str,
    ids: &[TaskId],
    chains: BTreeSet<Chain>,
    now: Option<i64>,
) -> Result<u32, PgError> {
    let mut transaction = TaskTransaction::begin(session, begin_sql, ids, chains, now).await?;
    let mut promoted = 0;
    for id in ids {
        promoted += u32::from(transaction.change(*id, &TaskOp::Promote) == Some(TaskAnswer::Done));
    }
    transaction.commit(session).await?;
    Ok(promoted)
}

/// Reads the first three columns: a task, its lock and its queue.
pub(super) fn ids_and_chains<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
) -> Result<(Vec<TaskId>, BTreeSet<Chain>), PgError> {
    let (mut ids, mut chains) = (Vec::new(), BTreeSet::new());
    for row in rows {
        ids.push(read_id(row, 0)?);
        if let Some(lock) = row.try_get::<_, Option<&str>>(1)? {
            let queue = QueueName::new(row.try_get::<_, &str>(2)?).map_err(invalid_row)?;
            chains.insert((LockName::new(lock).map_err(invalid_row)?, queue));
        }
    }
    Ok((ids, chains))
}
