//! What time does: leases that run out, tasks that are due, counts to add up. And forgetting what is over.

use std::collections::BTreeSet;

use super::bench::{Bench, IMPATIENT};
use super::columns::duration;
use super::lease::{ids_and_locks, promote_locked};
use super::link::Link;
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{Finished, LockName, Recovered, TaskAnswer, TaskId, TaskOp, TaskState, WorkerStatus};
use crate::store::postgres::gate::micros;
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::{Fail, is_in_the_way};

/// Ends leases that have run out, and puts in line what is due.
pub(super) async fn recover(
    link: &Link,
    limit: u32,
    now: Option<i64>,
) -> Result<(Recovered, Vec<Stir>), Fail> {
    let mut recovered = Recovered::default();
    let mut stirs = Vec::new();
    let (ids, locks) = ids_and_locks(&link.query(Sql::Expired, &[&i64::from(limit), &now]).await?)?;
    if !ids.is_empty() {
        match expire(link, &ids, locks, now).await {
            // Somebody keeps one of them, or the head of its lock. That is no reason for the others to wait.
            Err(Fail::Said(error)) if is_in_the_way(&error) => {
                link.say("ROLLBACK").await?;
                for id in ids {
                    match expire(link, &[id], BTreeSet::new(), now).await {
                        Err(Fail::Said(error)) if is_in_the_way(&error) => link.say("ROLLBACK").await?,
                        ended => add(&mut recovered, &mut stirs, ended?),
                    }
                }
            }
            ended => add(&mut recovered, &mut stirs, ended?),
        }
    }
    recovered.promoted = promote(link, now).await?;
    link.query(Sql::ForgetWorkers, &[&duration(WorkerStatus::REMEMBERED), &now]).await?;
    link.query(Sql::DocForget, &[&now]).await?;
    link.query(Sql::Fold, &[]).await?;
    Ok((recovered, stirs))
}

fn add(recovered: &mut Recovered, stirs: &mut Vec<Stir>, (ended, stirred): (Recovered, Vec<Stir>)) {
    recovered.returned += ended.returned;
    recovered.failed += ended.failed;
    recovered.aborted += ended.aborted;
    stirs.extend(stirred);
}

/// Ends these leases, if they are still as they were.
async fn expire(
    link: &Link,
    ids: &[TaskId],
    locks: BTreeSet<LockName>,
    now: Option<i64>,
) -> Result<(Recovered, Vec<Stir>), Fail> {
    let mut ended = Recovered::default();
    let mut bench = Bench::begin(link, IMPATIENT, ids, locks, now).await?;
    for id in ids {
        // Somebody else may have been faster.
        if bench.change(*id, &TaskOp::Expire) == Some(TaskAnswer::Done) {
            match bench.get(*id).map(|task| task.state) {
                Some(TaskState::Failed) => ended.failed += 1,
                Some(TaskState::Aborted) => ended.aborted += 1,
                _ => ended.returned += 1,
            }
        }
    }
    Ok((ended, bench.commit(link).await?))
}

/// Puts in line what is due in all queues, paused or not.
async fn promote(link: &Link, now: Option<i64>) -> Result<u32, Fail> {
    let rows = link.query(Sql::QueueNames, &[]).await?;
    let queues: Vec<String> = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    let (beginning, paused_too) = (vec![0_i64; queues.len()], true);
    let rows = link.query(Sql::Promote, &[&queues, &beginning, &paused_too, &now]).await?;
    let promoted = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(1))?;
    let locked = match promote_locked(link, &queues, paused_too, now).await {
        Err(Fail::Said(error)) if is_in_the_way(&error) => {
            link.say("ROLLBACK").await?;
            0
        }
        promoted => promoted?,
    };
    Ok(u32::try_from(promoted).unwrap_or(u32::MAX).saturating_add(locked))
}

/// Archives or purges; says how many.
pub(super) async fn tidy(link: &Link, what: Sql, which: &Finished) -> Result<u64, Fail> {
    let queue = which.queue.as_ref().map(|queue| queue.as_str().to_owned());
    let state = which.state.map(|state| state as i16);
    let params: [Param<'_>; 4] = [&queue, &state, &micros(which.before), &i64::from(which.limit)];
    let rows = link.query(what, &params).await?;
    let count = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0))?;
    super::rows::number(count)
}
