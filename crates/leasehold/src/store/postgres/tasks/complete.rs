//! Completion of attempts, and heartbeats: one statement per batch.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;
use uuid::Uuid;

use super::codec::{read_id, read_json, to_json};
use super::notifier::QueueChange;
use super::pool::TaskSession;
use super::sql::Sql;
use super::transaction::{BEGIN_SHORT_WAIT, BEGIN_SHORTEST_WAIT, OneByOneLimit, TaskTransaction};
use crate::model::{
    Asked, AttemptResult, HeartbeatResult, HeldTask, Payload, Settle, Settled, TaskAnswer, TaskId, TaskOp,
    TaskState, Ttl, WorkerInfo,
};
use crate::store::postgres::columns::{int8, ttl_micros};
use crate::store::postgres::connection::Param;
use crate::store::postgres::error::{PgError, is_conflict};

/// Result for each task.
type Answers = BTreeMap<TaskId, Settled>;

/// Ends attempts. Idempotent: a repeated call returns the same results. A task whose row another
/// transaction has locked does not delay the others.
pub(super) async fn settle(
    session: &TaskSession,
    settle: &[Settle],
    now: Option<i64>,
) -> Result<(Vec<Settled>, Vec<QueueChange>), PgError> {
    let mut answers = complete_successful(session, settle, now).await?;
    let remaining: Vec<&Settle> = settle.iter().filter(|settle| !answers.contains_key(&settle.id)).collect();
    let mut changes = Vec::new();
    if !remaining.is_empty() {
        match complete_slow_path(session, BEGIN_SHORT_WAIT, &remaining, now).await {
            Err(PgError::Driver(error)) if is_conflict(&error) => {
                session.simple_query("ROLLBACK").await?;
                let one_by_one = OneByOneLimit::new();
                for settle in remaining {
                    answers.insert(settle.id, Settled::Busy);
                    if !one_by_one.has_time_left() {
                        continue;
                    }
                    match complete_slow_path(session, BEGIN_SHORTEST_WAIT, &[settle], now).await {
                        Err(PgError::Driver(error)) if is_conflict(&error) => {
                            session.simple_query("ROLLBACK").await?;
                        }
                        settled => merge(&mut answers, &mut changes, settled?),
                    }
                }
            }
            settled => merge(&mut answers, &mut changes, settled?),
        }
    }
    let answer = |settle: &Settle| answers.get(&settle.id).copied().unwrap_or(Settled::Lost);
    Ok((settle.iter().map(answer).collect(), changes))
}

fn merge(
    answers: &mut Answers,
    changes: &mut Vec<QueueChange>,
    (settled, more): (Answers, Vec<QueueChange>),
) {
    answers.extend(settled);
    changes.extend(more);
}

/// Slow path: ends these attempts atomically.
async fn complete_slow_path(
    session: &TaskSession,
    begin_sql: &str,
    settle: &[&Settle],
    now: Option<i64>,
) -> Result<(Answers, Vec<QueueChange>), PgError> {
    let ids: Vec<TaskId> = settle.iter().map(|settle| settle.id).collect();
    let mut transaction = TaskTransaction::begin(session, begin_sql, &ids, BTreeSet::new(), now).await?;
    let mut answers = Answers::new();
    for settle in settle {
        let answer = transaction.change(settle.id, &TaskOp::Settle((*settle).clone()));
        let Some(TaskAnswer::Settled(settled)) = answer else {
            // There is no such task.
            answers.insert(settle.id, Settled::Lost);
            continue;
        };
        answers.insert(settle.id, settled);
    }
    Ok((answers, transaction.commit(session).await?))
}

/// Ends the successful attempts that SQL can decide about.
async fn complete_successful(
    session: &TaskSession,
    settle: &[Settle],
    now: Option<i64>,
) -> Result<Answers, PgError> {
    let (mut ids, mut tokens, mut results) = (Vec::new(), Vec::new(), Vec::new());
    // In the order of the ids, so that concurrent calls never wait for each other.
    let mut sorted: Vec<&Settle> = settle.iter().collect();
    sorted.sort_by_key(|settle| settle.id);
    for settle in sorted {
        if let AttemptResult::Done(result) = &settle.verdict {
            ids.push(*settle.id.as_uuid());
            tokens.push(int8(settle.token.get()));
            results.push(result.as_ref().map(Payload::as_str));
        }
    }
    if ids.is_empty() {
        return Ok(Answers::new());
    }
    let rows = session.query(Sql::Complete, &[&ids, &tokens, &results, &now]).await?;
    rows.iter().map(|row| Ok((read_id(row, 0)?, Settled::Now(TaskState::Succeeded)))).collect()
}

/// Parameters of heartbeats.
pub(super) struct HeartbeatParams {
    worker: Uuid,
    info: Option<String>,
    ids: Vec<Uuid>,
    tokens: Vec<i64>,
    progress: Vec<Option<String>>,
    begun: Vec<bool>,
    ttl: i64,
}

impl HeartbeatParams {
    /// Builds the parameters in the order of the ids, like those of settlements.
    pub(super) fn new(worker: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Self, PgError> {
        let mut held: Vec<&HeldTask> = held.iter().collect();
        held.sort_by_key(|held| held.id);
        let progress = held.iter().map(|held| to_json(held.progress.as_ref())).collect::<Result<_, _>>()?;
        Ok(Self {
            worker: *worker.id.as_uuid(),
            info: to_json(Some(worker).filter(|worker| !worker.says_nothing()))?,
            ids: held.iter().map(|held| *held.id.as_uuid()).collect(),
            tokens: held.iter().map(|held| int8(held.token.get())).collect(),
            progress,
            begun: held.iter().map(|held| held.begun).collect(),
            ttl: ttl_micros(ttl),
        })
    }

    pub(super) async fn send(&self, session: &TaskSession, now: Option<i64>) -> Result<Vec<Row>, PgError> {
        let params: [Param<'_>; 8] =
            [&self.worker, &self.info, &self.ids, &self.tokens, &self.progress, &self.ttl, &self.begun, &now];
        Ok(session.query(Sql::Heartbeat, &params).await?)
    }
}

/// Returns the results in the order of the leases.
pub(super) fn heartbeat_results(held: &[HeldTask], rows: &[Row]) -> Result<Vec<HeartbeatResult>, PgError> {
    let mut extended: BTreeMap<TaskId, Option<Asked>> = BTreeMap::new();
    for row in rows {
        extended.insert(read_id(row, 0)?, read_json(row, 1)?);
    }
    let result = |held: &HeldTask| {
        extended.get(&held.id).map_or(HeartbeatResult::Lost, |asked| HeartbeatResult::Extended(asked.clone()))
    };
    Ok(held.iter().map(result).collect())
}
