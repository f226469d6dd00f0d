//! Leasing of tasks, in one statement. Due tasks are made pending first; if some are expected, both
//! statements are sent together.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use super::bench::{Bench, IMPATIENT, OneByOne, VERY_IMPATIENT};
use super::columns::duration;
use super::cursors::Places;
use super::link::Link;
use super::rows::{self, TASK_COLUMNS, unreadable};
use super::sql::Sql;
use super::upkeep::{Pass, expire_since};
use crate::model::{
    Chain, LeaseTasks, Leased, LockName, QueueName, Task, TaskAnswer, TaskId, TaskOp, TaskTable,
};
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::{Fail, is_in_the_way};

/// Response of the server.
pub(super) struct Answer {
    /// Result of expiring leases, if some had expired.
    pub(super) ended: Option<Pass>,
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
    link: &Link,
    ask: &LeaseTasks,
    places: &Places,
    now: Option<i64>,
) -> Result<Answer, Fail> {
    // Expired leases must be ended before tasks are leased.
    let answer = lease_since(link, ask, places, Some(places.expired_since), now).await?;
    if !answer.expired_first()? {
        let none_expired = answer.rows.first().map(|row| row.try_get(TASK_COLUMNS + 1)).transpose()?;
        return Ok(Answer { none_expired, ..answer });
    }
    let ended = match expire_since(link, TaskTable::RECOVER, places.expired_since, now).await {
        // A row that cannot be read must not prevent other tasks from being leased.
        Err(Fail::Unreadable(error)) => {
            tracing::warn!(%error, "leases that ran out could not be ended");
            link.say("ROLLBACK").await?;
            None
        }
        ended => Some(ended?),
    };
    let answer = lease_since(link, ask, places, None, now).await?;
    Ok(Answer { ended, ..answer })
}

async fn lease_since(
    link: &Link,
    ask: &LeaseTasks,
    places: &Places,
    expired_since: Option<i64>,
    now: Option<i64>,
) -> Result<Answer, Fail> {
    let (max, ttl, begin) = (i64::from(ask.max), duration(ask.ttl), i64::from(ask.begin));
    let full = i64::try_from(LeaseTasks::FULL).unwrap_or(i64::MAX);
    let lease = |due_first: &'static bool| -> [Param<'_>; 17] {
        [
            &places.queues,
            &places.due,
            &max,
            ask.worker.as_uuid(),
            &ttl,
            &places.level_queue,
            &places.level_priority,
            &places.level_since,
            &places.level_moved,
            due_first,
            &places.level_run_at,
            &places.level_id,
            &begin,
            &ask.idle,
            &expired_since,
            &full,
            &now,
        ]
    };
    let answer = |promoted, due, rows| Answer { ended: None, none_expired: None, promoted, due, rows };
    if !places.expects_due {
        let rows = link.query(Sql::Lease, &lease(&true)).await?;
        if expired_first(&rows)? {
            return Ok(answer(None, false, rows));
        }
        if !due_first(&rows)? {
            let promoted = nothing_due(&rows)?.map(|now| (now, ask.queues.clone()));
            return Ok(answer(promoted, false, rows));
        }
    }
    link.ready(&[Sql::Promote, Sql::LeaseRest]).await?;
    let promote: [Param<'_>; 4] = [&places.queues, &places.due, &expired_since, &now];
    let rest = lease(&true);
    let (promoted, leased) =
        tokio::join!(biased; link.query(Sql::Promote, &promote), link.query(Sql::LeaseRest, &rest));
    let (promoted, rows) = (promoted?, leased?);
    let due = promoted.first().map_or(Ok(0), |row| row.try_get::<_, i64>(1))? > 0;
    if expired_first(&rows)? {
        return Ok(answer(None, true, rows));
    }
    if !due_first(&rows)? {
        return Ok(answer(complete(&promoted)?, due, rows));
    }
    let locked = link.query(Sql::DueLocked, &[&places.queues, &now]).await?;
    promote_locked(link, &locked, now).await?;
    let rows = link.query(Sql::LeaseRest, &lease(&false)).await?;
    Ok(answer(None, true, rows))
}

impl Answer {
    fn expired_first(&self) -> Result<bool, Fail> {
        expired_first(&self.rows)
    }

    /// Returns the tasks that were read with a cursor, each with the moves of its level; and all
    /// tasks, with the time at which the next one is due.
    pub(super) fn read(&self) -> Result<(Vec<(Task, i64)>, Leased), Fail> {
        let expired = self.ended.as_ref().map_or(0, |ended| ended.recovered.expired());
        let mut leased = Leased { tasks: Vec::new(), next_due: None, more: false, expired };
        let mut with_moves = Vec::new();
        for row in &self.rows {
            let due = rows::maybe_time(row, TASK_COLUMNS + 4)?;
            leased.next_due =
                due.map(|due| Ok::<_, Fail>((due, rows::time(row, TASK_COLUMNS + 1)?))).transpose()?;
            leased.more = row.try_get(TASK_COLUMNS + 5)?;
            if row.try_get::<_, Option<uuid::Uuid>>(0)?.is_some() {
                let task = rows::task(row)?;
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
fn nothing_due(rows: &[Row]) -> Result<Option<i64>, Fail> {
    let Some(row) = rows.first() else { return Ok(None) };
    let all_open: bool = row.try_get(TASK_COLUMNS + 3)?;
    Ok(Some(row.try_get(TASK_COLUMNS + 1)?).filter(|_| all_open))
}

fn due_first(rows: &[Row]) -> Result<bool, Fail> {
    Ok(rows.first().map(|row| row.try_get(TASK_COLUMNS + 2)).transpose()?.unwrap_or(false))
}

fn expired_first(rows: &[Row]) -> Result<bool, Fail> {
    Ok(rows.first().map(|row| row.try_get(TASK_COLUMNS + 6)).transpose()?.unwrap_or(false))
}

fn complete(promoted: &[Row]) -> Result<Option<(i64, Vec<QueueName>)>, Fail> {
    let Some(row) = promoted.first() else { return Ok(None) };
    if row.try_get::<_, i64>(1)? >= i64::from(TaskTable::PROMOTE) {
        return Ok(None);
    }
    let names: Vec<&str> = row.try_get(2)?;
    let names: Result<_, _> = names.into_iter().map(QueueName::new).collect();
    Ok(Some((row.try_get(0)?, names.map_err(unreadable)?)))
}

/// Makes due tasks with a lock pending, on the slow path. Returns their number, and whether another
/// transaction had locked some of the rows.
pub(super) async fn promote_locked(link: &Link, rows: &[Row], now: Option<i64>) -> Result<(u32, bool), Fail> {
    let (ids, chains) = ids_and_chains(rows)?;
    if ids.is_empty() {
        return Ok((0, false));
    }
    match promote_these(link, IMPATIENT, &ids, chains, now).await {
        // Another transaction has locked a head row. The other tasks do not wait for it.
        Err(Fail::Said(error)) if is_in_the_way(&error) => {
            link.say("ROLLBACK").await?;
            let one_by_one = OneByOne::new();
            let mut promoted = 0;
            for id in ids {
                if !one_by_one.goes_on() {
                    break;
                }
                match promote_these(link, VERY_IMPATIENT, &[id], BTreeSet::new(), now).await {
                    Err(Fail::Said(error)) if is_in_the_way(&error) => link.say("ROLLBACK").await?,
                    one => promoted += one?,
                }
            }
            Ok((promoted, true))
        }
        promoted => Ok((promoted?, false)),
    }
}

async fn promote_these(
    link: &Link,
    words: &str,
    ids: &[TaskId],
    chains: BTreeSet<Chain>,
    now: Option<i64>,
) -> Result<u32, Fail> {
    let mut bench = Bench::begin(link, words, ids, chains, now).await?;
    let mut promoted = 0;
    for id in ids {
        promoted += u32::from(bench.change(*id, &TaskOp::Promote) == Some(TaskAnswer::Done));
    }
    bench.commit(link).await?;
    Ok(promoted)
}

/// Reads the first three columns: a task, its lock and its queue.
pub(super) fn ids_and_chains<'a>(
    rows: impl IntoIterator<Item = &'a Row>,
) -> Result<(Vec<TaskId>, BTreeSet<Chain>), Fail> {
    let (mut ids, mut chains) = (Vec::new(), BTreeSet::new());
    for row in rows {
        ids.push(rows::id(row, 0)?);
        if let Some(lock) = row.try_get::<_, Option<&str>>(1)? {
            let queue = QueueName::new(row.try_get::<_, &str>(2)?).map_err(unreadable)?;
            chains.insert((LockName::new(lock).map_err(unreadable)?, queue));
        }
    }
    Ok((ids, chains))
}
