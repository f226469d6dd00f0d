//! Who gets what: one statement. If something is due, it is put in line first; where that is expected, both are sent together.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use super::bench::{Bench, IMPATIENT};
use super::columns::duration;
use super::cursors::Places;
use super::link::Link;
use super::rows::{self, TASK_COLUMNS, unreadable};
use super::sql::Sql;
use crate::model::{LeaseTasks, Leased, LockName, QueueName, Task, TaskAnswer, TaskId, TaskOp, TaskTable};
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::{Fail, is_in_the_way};

/// What the server said.
pub(super) struct Answer {
    /// What was due has been put in line: as of when, and in which queues. None if there is more.
    pub(super) promoted: Option<(i64, Vec<QueueName>)>,
    /// Whether something was due.
    pub(super) due: bool,
    rows: Vec<Row>,
}

/// Leases what is next.
pub(super) async fn lease(
    link: &Link,
    ask: &LeaseTasks,
    places: &Places,
    now: Option<i64>,
) -> Result<Answer, Fail> {
    let (max, ttl, paused_too) = (i64::from(ask.max), duration(ask.ttl), false);
    let lease = |due_first: &'static bool| -> [Param<'_>; 13] {
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
            &now,
        ]
    };
    if !places.expects_due {
        let rows = link.query(Sql::Lease, &lease(&true)).await?;
        if !due_first(&rows)? {
            let promoted = nothing_due(&rows)?.map(|now| (now, ask.queues.clone()));
            return Ok(Answer { promoted, due: false, rows });
        }
    }
    link.ready(&[Sql::Promote, Sql::LeaseRest]).await?;
    let promote: [Param<'_>; 4] = [&places.queues, &places.due, &paused_too, &now];
    let rest = lease(&true);
    let (promoted, leased) =
        tokio::join!(biased; link.query(Sql::Promote, &promote), link.query(Sql::LeaseRest, &rest));
    let (promoted, rows) = (promoted?, leased?);
    let due = promoted.first().map_or(Ok(0), |row| row.try_get::<_, i64>(1))? > 0;
    if !due_first(&rows)? {
        return Ok(Answer { promoted: complete(&promoted)?, due, rows });
    }
    match promote_locked(link, &places.queues, paused_too, now).await {
        // Somebody keeps the head of a lock for long. That is no reason for the others to wait.
        Err(Fail::Said(error)) if is_in_the_way(&error) => link.say("ROLLBACK").await?,
        promoted => _ = promoted?,
    }
    let rows = link.query(Sql::LeaseRest, &lease(&false)).await?;
    Ok(Answer { promoted: None, due: true, rows })
}

impl Answer {
    /// The tasks, each with the moves of its level, and what is due next.
    pub(super) fn read(&self) -> Result<(Vec<(Task, i64)>, Leased), Fail> {
        let mut leased = Leased { tasks: Vec::new(), next_due: None };
        let mut with_moves = Vec::new();
        for row in &self.rows {
            let due = rows::maybe_time(row, TASK_COLUMNS + 4)?;
            leased.next_due =
                due.map(|due| Ok::<_, Fail>((due, rows::time(row, TASK_COLUMNS + 1)?))).transpose()?;
            if row.try_get::<_, Option<uuid::Uuid>>(0)?.is_some() {
                let task = rows::task(row)?;
                with_moves.push((task.clone(), row.try_get(TASK_COLUMNS)?));
                leased.tasks.push(task);
            }
        }
        Ok((with_moves, leased))
    }
}

/// As of when nothing was due in any of the queues. None if one of them is not open.
fn nothing_due(rows: &[Row]) -> Result<Option<i64>, Fail> {
    let Some(row) = rows.first() else { return Ok(None) };
    let all_open: bool = row.try_get(TASK_COLUMNS + 3)?;
    Ok(Some(row.try_get(TASK_COLUMNS + 1)?).filter(|_| all_open))
}

fn due_first(rows: &[Row]) -> Result<bool, Fail> {
    Ok(rows.first().map(|row| row.try_get(TASK_COLUMNS + 2)).transpose()?.unwrap_or(false))
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

/// Puts in line what is due and has a lock, by the rules; says how many.
pub(super) async fn promote_locked(
    link: &Link,
    queues: &[String],
    paused_too: bool,
    now: Option<i64>,
) -> Result<u32, Fail> {
    let rows = link.query(Sql::DueLocked, &[&queues, &paused_too, &now]).await?;
    let (ids, locks) = ids_and_locks(&rows)?;
    if ids.is_empty() {
        return Ok(0);
    }
    let mut bench = Bench::begin(link, IMPATIENT, &ids, locks, now).await?;
    let mut promoted = 0;
    for id in ids {
        promoted += u32::from(bench.change(id, &TaskOp::Promote) == Some(TaskAnswer::Done));
    }
    bench.commit(link).await?;
    Ok(promoted)
}

/// The first two columns.
pub(super) fn ids_and_locks(rows: &[Row]) -> Result<(Vec<TaskId>, BTreeSet<LockName>), Fail> {
    let ids = rows.iter().map(|row| rows::id(row, 0)).collect::<Result<_, _>>()?;
    let mut locks = BTreeSet::new();
    for row in rows {
        if let Some(lock) = row.try_get::<_, Option<&str>>(1)? {
            locks.insert(LockName::new(lock).map_err(unreadable)?);
        }
    }
    Ok((ids, locks))
}
