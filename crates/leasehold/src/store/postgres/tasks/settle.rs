//! End of attempts, and heartbeats: one statement per batch.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;
use uuid::Uuid;

use super::bench::{Bench, IMPATIENT, OneByOne, VERY_IMPATIENT};
use super::columns::{duration, json, large};
use super::link::Link;
use super::rows;
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{
    Asked, AttemptResult, HeartbeatResult, HeldTask, Payload, Settle, Settled, TaskAnswer, TaskId, TaskOp,
    TaskState, Ttl, WorkerInfo,
};
use crate::store::postgres::session::Param;
use crate::store::postgres::trouble::{Fail, is_in_the_way};

/// Result for each task.
type Answers = BTreeMap<TaskId, Settled>;

/// Ends attempts. Idempotent: a repeated call returns the same results. A task whose row another
/// transaction has locked does not delay the others.
pub(super) async fn settle(
    link: &Link,
    settle: &[Settle],
    now: Option<i64>,
) -> Result<(Vec<Settled>, Vec<Stir>), Fail> {
    let mut answers = done(link, settle, now).await?;
    let left: Vec<&Settle> = settle.iter().filter(|settle| !answers.contains_key(&settle.id)).collect();
    let mut stirs = Vec::new();
    if !left.is_empty() {
        match by_the_rules(link, IMPATIENT, &left, now).await {
            Err(Fail::Said(error)) if is_in_the_way(&error) => {
                link.say("ROLLBACK").await?;
                let one_by_one = OneByOne::new();
                for settle in left {
                    answers.insert(settle.id, Settled::Busy);
                    if !one_by_one.goes_on() {
                        continue;
                    }
                    match by_the_rules(link, VERY_IMPATIENT, &[settle], now).await {
                        Err(Fail::Said(error)) if is_in_the_way(&error) => link.say("ROLLBACK").await?,
                        settled => add(&mut answers, &mut stirs, settled?),
                    }
                }
            }
            settled => add(&mut answers, &mut stirs, settled?),
        }
    }
    let answer = |settle: &Settle| answers.get(&settle.id).copied().unwrap_or(Settled::Lost);
    Ok((settle.iter().map(answer).collect(), stirs))
}

fn add(answers: &mut Answers, stirs: &mut Vec<Stir>, (settled, stirred): (Answers, Vec<Stir>)) {
    answers.extend(settled);
    stirs.extend(stirred);
}

/// Slow path: ends these attempts atomically.
async fn by_the_rules(
    link: &Link,
    words: &str,
    settle: &[&Settle],
    now: Option<i64>,
) -> Result<(Answers, Vec<Stir>), Fail> {
    let ids: Vec<TaskId> = settle.iter().map(|settle| settle.id).collect();
    let mut bench = Bench::begin(link, words, &ids, BTreeSet::new(), now).await?;
    let mut answers = Answers::new();
    for settle in settle {
        let answer = bench.change(settle.id, &TaskOp::Settle((*settle).clone()));
        let Some(TaskAnswer::Settled(settled)) = answer else {
            // There is no such task.
            answers.insert(settle.id, Settled::Lost);
            continue;
        };
        answers.insert(settle.id, settled);
    }
    Ok((answers, bench.commit(link).await?))
}

/// Ends the successful attempts that SQL can decide about.
async fn done(link: &Link, settle: &[Settle], now: Option<i64>) -> Result<Answers, Fail> {
    let (mut ids, mut tokens, mut results) = (Vec::new(), Vec::new(), Vec::new());
    // In the order of the ids, so that concurrent calls never wait for each other.
    let mut sorted: Vec<&Settle> = settle.iter().collect();
    sorted.sort_by_key(|settle| settle.id);
    for settle in sorted {
        if let AttemptResult::Done(result) = &settle.verdict {
            ids.push(*settle.id.as_uuid());
            tokens.push(large(settle.token.get()));
            results.push(result.as_ref().map(Payload::as_str));
        }
    }
    if ids.is_empty() {
        return Ok(Answers::new());
    }
    let rows = link.query(Sql::Done, &[&ids, &tokens, &results, &now]).await?;
    rows.iter().map(|row| Ok((rows::id(row, 0)?, Settled::Now(TaskState::Succeeded)))).collect()
}

/// Parameters of heartbeats.
pub(super) struct Beats {
    worker: Uuid,
    info: Option<String>,
    ids: Vec<Uuid>,
    tokens: Vec<i64>,
    progress: Vec<Option<String>>,
    begun: Vec<bool>,
    ttl: i64,
}

impl Beats {
    /// Builds the parameters in the order of the ids, like those of settlements.
    pub(super) fn new(worker: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Self, Fail> {
        let mut held: Vec<&HeldTask> = held.iter().collect();
        held.sort_by_key(|held| held.id);
        let progress = held.iter().map(|held| json(held.progress.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self {
            worker: *worker.id.as_uuid(),
            info: json(Some(worker).filter(|worker| !worker.says_nothing()))?,
            ids: held.iter().map(|held| *held.id.as_uuid()).collect(),
            tokens: held.iter().map(|held| large(held.token.get())).collect(),
            progress,
            begun: held.iter().map(|held| held.begun).collect(),
            ttl: duration(ttl),
        })
    }

    pub(super) async fn send(&self, link: &Link, now: Option<i64>) -> Result<Vec<Row>, Fail> {
        let params: [Param<'_>; 8] =
            [&self.worker, &self.info, &self.ids, &self.tokens, &self.progress, &self.ttl, &self.begun, &now];
        Ok(link.query(Sql::Beat, &params).await?)
    }
}

/// Returns the results in the order of the leases.
pub(super) fn beats(held: &[HeldTask], rows: &[Row]) -> Result<Vec<HeartbeatResult>, Fail> {
    let mut kept: BTreeMap<TaskId, Option<Asked>> = BTreeMap::new();
    for row in rows {
        kept.insert(rows::id(row, 0)?, rows::json(row, 1)?);
    }
    let beat = |held: &HeldTask| {
        kept.get(&held.id).map_or(HeartbeatResult::Lost, |asked| HeartbeatResult::Extended(asked.clone()))
    };
    Ok(held.iter().map(beat).collect())
}
