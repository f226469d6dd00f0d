//! Maintenance: expiry of leases, promotion of due tasks, folding of counts, and retention.

use std::collections::BTreeSet;

use super::codec::read_id;
use super::lease::{ids_and_chains, promote_locked};
use super::notifier::QueueChange;
use super::pool::TaskSession;
use super::sql::Sql;
use super::transaction::{BEGIN_SHORT_WAIT, BEGIN_SHORTEST_WAIT, OneByOneLimit, TaskTransaction};
use crate::model::{
    Chain, FinishedFilter, Recovered, TaskAnswer, TaskId, TaskOp, TaskState, TaskTable, WorkerStatus,
};
use crate::store::postgres::columns::{first_row, micros, number, ttl_micros};
use crate::store::postgres::connection::Param;
use crate::store::postgres::error::{PgError, is_conflict};

/// Maximum number of leases that are checked at once; must match the statement.
const MAX_CHECKED: usize = 1000;

/// Result and progress of a recovery.
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
    session: &TaskSession,
    limit: u32,
    since: (i64, i64),
    now: Option<i64>,
) -> Result<RecoveryPass, PgError> {
    let mut pass = expire_since(session, limit, since.0, now).await?;
    (pass.recovered.promoted, pass.due) = promote(session, since.1, now).await?;
    session.query(Sql::PurgeWorkers, &[&ttl_micros(WorkerStatus::REMEMBERED), &now]).await?;
    session.query(Sql::PurgeDocuments, &[&now]).await?;
    session.query(Sql::Fold, &[]).await?;
    Ok(pass)
}

/// Ends at most `limit` expired leases, among those to be checked from `since` on.
pub(super) async fn expire_since(
    session: &TaskSession,
    limit: u32,
    since: i64,
    now: Option<i64>,
) -> Result<RecoveryPass, PgError> {
    let rows = session.query(Sql::Expired, &[&since, &now]).await?;
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
        if checked >= MAX_CHECKED {
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
    match expire(session, BEGIN_SHORT_WAIT, &ids, chains, now).await {
        // Another transaction has locked one of the tasks, or the head row of its lock. The others
        // do not wait for it.
        Err(PgError::Driver(error)) if is_conflict(&error) => {
            session.simple_query("ROLLBACK").await?;
            let one_by_one = OneByOneLimit::new();
            for (id, check_at) in ids.into_iter().zip(expired.iter().map(|(_, _, check_at, _)| *check_at)) {
                if !one_by_one.has_time_left() {
                    pass.expired.0 = pass.expired.0.min(check_at);
                    continue;
                }
                match expire(session, BEGIN_SHORTEST_WAIT, &[id], BTreeSet::new(), now).await {
                    Err(PgError::Driver(error)) if is_conflict(&error) => {
                        session.simple_query("ROLLBACK").await?;
                        pass.expired.0 = pass.expired.0.min(check_at);
                    }
                    ended => merge(&mut pass.recovered, &mut pass.changes, ended?),
                }
            }
        }
        ended => merge(&mut pass.recovered, &mut pass.changes, ended?),
    }
    Ok(pass)
}

fn merge(
    recovered: &mut Recovered,
    changes: &mut Vec<QueueChange>,
    (ended, more): (Recovered, Vec<QueueChange>),
) {
    recovered.returned += ended.returned;
    recovered.failed += ended.failed;
    recovered.aborted += ended.aborted;
    changes.extend(more);
}

/// Ends these leases, if they are still expired.
async fn expire(
    session: &TaskSession,
    begin_sql: &str,
    ids: &[TaskId],
    chains: BTreeSet<Chain>,
    now: Option<i64>,
) -> Result<(Recovered, Vec<QueueChange>), PgError> {
    let mut ended = Recovered::default();
    let mut transaction = TaskTransaction::begin(session, begin_sql, ids, chains, now).await?;
    for id in ids {
        // Another session may have ended the lease first.
        if transaction.change(*id, &TaskOp::Expire) == Some(TaskAnswer::Done) {
            match transaction.get(*id).map(|task| task.state) {
                Some(TaskState::Failed) => ended.failed += 1,
                Some(TaskState::Aborted) => ended.aborted += 1,
                _ => ended.returned += 1,
            }
        }
    }
    Ok((ended, transaction.commit(session).await?))
}

/// Makes due tasks of all queues pending, paused or not, from `since` on. Returns their number and
/// the progress.
async fn promote(session: &TaskSession, since: i64, now: Option<i64>) -> Result<(u32, (i64, i64)), PgError> {
    let rows = session.query(Sql::PromoteAll, &[&since, &now]).await?;
    let row = first_row(&rows)?;
    let (at, promoted): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let rows = session.query(Sql::AllDueLocked, &[&since, &now]).await?;
    let full = promoted >= i64::from(TaskTable::PROMOTE) || rows.len() >= TaskTable::PROMOTE as usize;
    let (locked, conflict) = promote_locked(session, &rows, now).await?;
    let until = if full || conflict { since } else { at };
    Ok((u32::try_from(promoted).unwrap_or(u32::MAX).saturating_add(locked), (until, at)))
}

/// Archives or purges tasks, and returns their number.
pub(super) async fn archive_or_purge(
    session: &TaskSession,
    sql: Sql,
    filter: &FinishedFilter,
) -> Result<u64, PgError> {
    let queue = filter.queue.as_ref().map(|queue| queue.as_str().to_owned());
    let state = filter.state.map(|state| state as i16);
    let params: [Param<'_>; 4] = [&queue, &state, &micros(filter.before), &i64::from(filter.limit)];
    let rows = session.query(sql, &params).await?;
    number(first_row(&rows)?, 0)
}
