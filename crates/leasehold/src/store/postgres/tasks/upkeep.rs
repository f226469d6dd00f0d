//! Maintenance: expiry of leases, promotion of due tasks, folding of counts, and retention.

use std::collections::BTreeSet;

use super::bench::{Bench, IMPATIENT, OneByOne, VERY_IMPATIENT};
use super::columns::duration;
use super::lease::{ids_and_chains, promote_locked};
use super::link::Link;
use super::rows;
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{
    Chain, FinishedFilter, Recovered, TaskAnswer, TaskId, TaskOp, TaskState, TaskTable, WorkerStatus,
};
use crate::store::postgres::gate::micros;
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::{Fail, is_in_the_way};

/// Maximum number of leases that are checked at once; must match the statement.
const LOOK: usize = 1000;

/// Result and progress of a recovery.
pub(super) struct Pass {
    pub(super) recovered: Recovered,
    pub(super) stirs: Vec<Stir>,
    /// Progress of the check for expired leases, and the time.
    pub(super) expired: (i64, i64),
    /// Progress of promoting due tasks, and the time.
    pub(super) due: (i64, i64),
}

/// Ends expired leases and makes due tasks pending, from these times on.
pub(super) async fn recover(
    link: &Link,
    limit: u32,
    since: (i64, i64),
    now: Option<i64>,
) -> Result<Pass, Fail> {
    let mut pass = expire_since(link, limit, since.0, now).await?;
    (pass.recovered.promoted, pass.due) = promote(link, since.1, now).await?;
    link.query(Sql::ForgetWorkers, &[&duration(WorkerStatus::REMEMBERED), &now]).await?;
    link.query(Sql::DocForget, &[&now]).await?;
    link.query(Sql::Fold, &[]).await?;
    Ok(pass)
}

/// Ends at most `limit` expired leases, among those to be checked from `since` on.
pub(super) async fn expire_since(
    link: &Link,
    limit: u32,
    since: i64,
    now: Option<i64>,
) -> Result<Pass, Fail> {
    let rows = link.query(Sql::Expired, &[&since, &now]).await?;
    let first = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()))?;
    let at: i64 = first.try_get(7)?;
    let (mut until, mut over, mut looked) = (at, Vec::new(), 0);
    for row in &rows {
        let Some(check_at) = row.try_get::<_, Option<i64>>(3)? else { continue };
        looked += 1;
        let (ends, is_over, is_noted): (i64, bool, bool) =
            (row.try_get(4)?, row.try_get(5)?, row.try_get(6)?);
        if is_over {
            over.push((ends, rows::id(row, 0)?, check_at, row));
        } else if !is_noted {
            until = until.min(check_at);
        }
        if looked >= LOOK {
            until = until.min(check_at);
        }
    }
    over.sort_unstable_by_key(|(ends, id, ..)| (*ends, *id));
    let left = over.split_off(over.len().min(limit as usize));
    until = left.iter().map(|(_, _, check_at, _)| *check_at).fold(until, i64::min);
    let mut pass =
        Pass { recovered: Recovered::default(), stirs: Vec::new(), expired: (until, at), due: (0, at) };
    if over.is_empty() {
        return Ok(pass);
    }
    let (ids, chains) = ids_and_chains(over.iter().map(|(_, _, _, row)| *row))?;
    match expire(link, IMPATIENT, &ids, chains, now).await {
        // Another transaction has locked one of the tasks, or the head row of its lock. The others
        // do not wait for it.
        Err(Fail::Said(error)) if is_in_the_way(&error) => {
            link.say("ROLLBACK").await?;
            let one_by_one = OneByOne::new();
            for (id, check_at) in ids.into_iter().zip(over.iter().map(|(_, _, check_at, _)| *check_at)) {
                if !one_by_one.goes_on() {
                    pass.expired.0 = pass.expired.0.min(check_at);
                    continue;
                }
                match expire(link, VERY_IMPATIENT, &[id], BTreeSet::new(), now).await {
                    Err(Fail::Said(error)) if is_in_the_way(&error) => {
                        link.say("ROLLBACK").await?;
                        pass.expired.0 = pass.expired.0.min(check_at);
                    }
                    ended => add(&mut pass.recovered, &mut pass.stirs, ended?),
                }
            }
        }
        ended => add(&mut pass.recovered, &mut pass.stirs, ended?),
    }
    Ok(pass)
}

fn add(recovered: &mut Recovered, stirs: &mut Vec<Stir>, (ended, stirred): (Recovered, Vec<Stir>)) {
    recovered.returned += ended.returned;
    recovered.failed += ended.failed;
    recovered.aborted += ended.aborted;
    stirs.extend(stirred);
}

/// Ends these leases, if they are still expired.
async fn expire(
    link: &Link,
    words: &str,
    ids: &[TaskId],
    chains: BTreeSet<Chain>,
    now: Option<i64>,
) -> Result<(Recovered, Vec<Stir>), Fail> {
    let mut ended = Recovered::default();
    let mut bench = Bench::begin(link, words, ids, chains, now).await?;
    for id in ids {
        // Another session may have ended the lease first.
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

/// Makes due tasks of all queues pending, paused or not, from `since` on. Returns their number and
/// the progress.
async fn promote(link: &Link, since: i64, now: Option<i64>) -> Result<(u32, (i64, i64)), Fail> {
    let rows = link.query(Sql::PromoteAll, &[&since, &now]).await?;
    let row = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()))?;
    let (at, promoted): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let rows = link.query(Sql::AllDueLocked, &[&since, &now]).await?;
    let full = promoted >= i64::from(TaskTable::PROMOTE) || rows.len() >= TaskTable::PROMOTE as usize;
    let (locked, in_the_way) = promote_locked(link, &rows, now).await?;
    let until = if full || in_the_way { since } else { at };
    Ok((u32::try_from(promoted).unwrap_or(u32::MAX).saturating_add(locked), (until, at)))
}

/// Archives or purges tasks, and returns their number.
pub(super) async fn tidy(link: &Link, what: Sql, which: &FinishedFilter) -> Result<u64, Fail> {
    let queue = which.queue.as_ref().map(|queue| queue.as_str().to_owned());
    let state = which.state.map(|state| state as i16);
    let params: [Param<'_>; 4] = [&queue, &state, &micros(which.before), &i64::from(which.limit)];
    let rows = link.query(what, &params).await?;
    let count = rows.first().map_or(Ok(0), |row| row.try_get::<_, i64>(0))?;
    rows::number(count)
}
