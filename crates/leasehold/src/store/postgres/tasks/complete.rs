//! Completion of attempts, and heartbeats: one statement per batch.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;
use uuid::Uuid;

use super::codec::read_id;
use super::notifier::QueueChange;
use super::transaction::{
    BEGIN_SHORT_WAIT, BEGIN_SHORTEST_WAIT, LOAD_BRIEF, OneByOneLimit, TaskTransaction, unless_conflict,
};
use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, Payload, Settle, Settled, TaskAnswer, TaskId, TaskOp,
    TaskState, Token, Ttl, WorkerInfo,
};
use crate::store::postgres::columns::{
    OwnedParam, column, first_row, int8, invalid_row, json_column, number, params, read_json, to_json,
    ttl_micros,
};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, BIGS, BOOLS, Sql, TEXT, TEXTS, UUID, UUIDS};

type Answers = BTreeMap<TaskId, Settled>;

/// Ends attempts. Idempotent: a repeated call returns the same results. A task whose row another
/// transaction has locked does not delay the others.
pub(super) async fn settle(
    session: &Session,
    settle: &[Settle],
    now: Option<i64>,
) -> Result<(Vec<Settled>, Vec<QueueChange>), PgError> {
    let mut answers = complete_successful(session, settle, now).await?;
    let remaining: Vec<&Settle> = settle.iter().filter(|settle| !answers.contains_key(&settle.id)).collect();
    let mut changes = Vec::new();
    if !remaining.is_empty() {
        let settled = complete_slow_path(session, BEGIN_SHORT_WAIT, &remaining, now).await;
        if let Some(settled) = unless_conflict(session, settled).await? {
            merge(&mut answers, &mut changes, settled);
        } else {
            let one_by_one = OneByOneLimit::new();
            for settle in remaining {
                answers.insert(settle.id, Settled::Busy);
                if one_by_one.has_time_left() {
                    let settled = complete_slow_path(session, BEGIN_SHORTEST_WAIT, &[settle], now).await;
                    if let Some(settled) = unless_conflict(session, settled).await? {
                        merge(&mut answers, &mut changes, settled);
                    }
                }
            }
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
    session: &Session,
    begin_sql: &str,
    settle: &[&Settle],
    now: Option<i64>,
) -> Result<(Answers, Vec<QueueChange>), PgError> {
    let ids: Vec<TaskId> = settle.iter().map(|settle| settle.id).collect();
    let chains = BTreeSet::new();
    let mut transaction = TaskTransaction::begin(session, begin_sql, &LOAD_BRIEF, &ids, chains, now).await?;
    let mut answers = Answers::new();
    for settle in settle {
        let settled = match transaction.change(settle.id, &TaskOp::Settle((*settle).clone())) {
            Some(TaskAnswer::Settled(settled)) => settled,
            // There is no such task.
            _ => Settled::Lost,
        };
        answers.insert(settle.id, settled);
    }
    Ok((answers, transaction.commit(session).await?))
}

/// Ends the successful attempts that SQL can decide about.
async fn complete_successful(
    session: &Session,
    settle: &[Settle],
    now: Option<i64>,
) -> Result<Answers, PgError> {
    let done = settle.iter().filter_map(|settle| {
        let AttemptResult::Done(result) = &settle.result else { return None };
        Some((settle.id, settle.token, result))
    });
    let mut done: Vec<_> = done.collect();
    if done.is_empty() {
        return Ok(Answers::new());
    }
    // In the order of the ids, so that concurrent calls never wait for each other.
    done.sort_by_key(|(id, ..)| *id);
    if done.iter().all(|(.., result)| result.is_none())
        && let Some(answers) = complete_plain(session, &done, now).await?
    {
        return Ok(answers);
    }
    let values = [
        column(&done, |(id, ..)| *id.as_uuid()),
        column(&done, |(_, token, _)| int8(token.get())),
        column(&done, |(.., result)| result.as_ref().map(Payload::as_str)),
        Box::new(now),
    ];
    let rows = session.query(&COMPLETE, &params(&values)).await?;
    rows.iter().map(|row| Ok((read_id(row, 0)?, SUCCEEDED))).collect()
}

const SUCCEEDED: Settled = Settled::Now(TaskState::Succeeded);

/// Ends successful attempts without a result. Returns `None`, with nothing changed, if another
/// transaction has locked one of the rows.
async fn complete_plain(
    session: &Session,
    done: &[(TaskId, Token, &Option<Payload>)],
    now: Option<i64>,
) -> Result<Option<Answers>, PgError> {
    let ids: Vec<Uuid> = done.iter().map(|(id, ..)| *id.as_uuid()).collect();
    let tokens: Vec<i64> = done.iter().map(|(_, token, _)| int8(token.get())).collect();
    let rows = match session.query(&COMPLETE_PLAIN, &[&ids, &tokens, &now]).await.map_err(PgError::from) {
        Err(error) if error.is_lock_timeout() => return Ok(None),
        rows => rows?,
    };
    let settled: Option<Vec<Uuid>> = first_row(&rows)?.try_get(0)?;
    // Usually all of them.
    let settled = settled.unwrap_or(ids).into_iter().map(TaskId::from_uuid);
    Ok(Some(settled.map(|id| (id, SUCCEEDED)).collect()))
}

/// Returns the parameters of heartbeats in the order of the ids, like those of settlements.
pub(super) fn heartbeat_params(
    worker: &WorkerInfo,
    held: &[HeldTask],
    ttl: Ttl,
    now: Option<i64>,
) -> Result<Vec<OwnedParam<'static>>, PgError> {
    let mut held: Vec<&HeldTask> = held.iter().collect();
    held.sort_by_key(|held| held.id);
    Ok(vec![
        Box::new(*worker.id.as_uuid()),
        Box::new((!worker.is_id_only()).then(|| to_json(worker)).transpose()?),
        column(&held, |held| *held.id.as_uuid()),
        column(&held, |held| int8(held.token.get())),
        json_column(&held, |held| held.progress.as_ref())?,
        Box::new(ttl_micros(ttl)),
        column(&held, |held| held.begun),
        Box::new(now),
    ])
}

/// Returns the results in the order of the leases. A call may contain an ended lease of a task beside the
/// current one, so a row is matched by its token, too.
pub(super) fn heartbeat_results(held: &[HeldTask], rows: &[Row]) -> Result<Vec<HeartbeatResult>, PgError> {
    let mut results: BTreeMap<(TaskId, Token), HeartbeatResult> = BTreeMap::new();
    for row in rows {
        let token = Token::new(number(row, 2)?).map_err(invalid_row)?;
        let is_busy: bool = row.try_get(3)?;
        let extended = HeartbeatResult::Extended(read_json(row, 1)?);
        results.insert((read_id(row, 0)?, token), if is_busy { HeartbeatResult::Busy } else { extended });
    }
    let result = |held: &HeldTask| results.get(&(held.id, held.token)).cloned();
    Ok(held.iter().map(|held| result(held).unwrap_or(HeartbeatResult::Lost)).collect())
}

// --- statements -----------------------------------------------------------------------------------

/// Ends successful attempts of tasks without a lock, like `TaskOp::Settle` of the model, in the order of `$1`, which is that of their
/// ids. Tasks that are not returned differ from what was expected, or are locked by another
/// transaction: they take the slow path. Each task must be looked up by its id, whatever the
/// statistics: a plan for a table that seemed empty compared all running tasks with all settled
/// ones. So the state is checked only afterwards: as a condition beside the id it would let the
/// planner read the index of all running tasks.
pub(crate) static COMPLETE: Sql = Sql::new(
    &[UUIDS, BIGS, TEXTS],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    found AS MATERIALIZED (
        SELECT t.row_id, a.result, t.state = 3 AND t.token = a.token AND t.lock IS NULL AS matches
        FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS a (id, token, result)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS row_id, t.state, t.token, t.lock FROM $s.tasks t WHERE t.id = a.id
            FOR UPDATE SKIP LOCKED) t),
    done AS (
        UPDATE $s.tasks t SET state = 4, finished_at = c.now, updated_at = c.now, version = t.version + 1,
            lease_expires_at = NULL, runner_deadline = NULL, result = f.result, error = NULL
        FROM found f CROSS JOIN clock c WHERE t.ctid = f.row_id AND f.matches RETURNING t.id, t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT d.queue, s.state, s.sign * d.tasks FROM (SELECT queue, count(*) AS tasks FROM done GROUP BY queue) d
        CROSS JOIN (VALUES (3::smallint, -1), (4::smallint, 1)) AS s (state, sign))
    SELECT id FROM done",
);

/// Like `COMPLETE`, for attempts without a result: without a join, and without locking the rows before,
/// which cost the server about a microsecond each for each task. So it may wait for a row
/// that another transaction has locked; it then fails after a short time, and changes nothing. The
/// rows are locked in the order of their ids, as the index returns them. `IS TRUE` keeps the planner
/// from turning the condition into a join: it is a hash table. Returns null if all tasks were
/// settled, otherwise those that were.
pub(crate) static COMPLETE_PLAIN: Sql = Sql::new(
    &[UUIDS, BIGS],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now, set_config('lock_timeout', '50', true)),
    done AS (
        UPDATE $s.tasks t SET state = 4, finished_at = (SELECT now FROM clock), updated_at = (SELECT now FROM clock),
            version = t.version + 1, lease_expires_at = NULL, runner_deadline = NULL, result = NULL, error = NULL
        WHERE t.id = ANY ($1::uuid[]) AND t.state + 0 = 3 AND t.lock IS NULL
          AND ((t.id, t.token) IN (SELECT * FROM unnest($1::uuid[], $2::bigint[]))) IS TRUE
        RETURNING t.id, t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT d.queue, s.state, s.sign * d.tasks FROM (SELECT queue, count(*) AS tasks FROM done GROUP BY queue) d
        CROSS JOIN (VALUES (3::smallint, -1), (4::smallint, 1)) AS s (state, sign))
    SELECT CASE WHEN count(*) < cardinality($1) THEN coalesce(array_agg(id), '{}') END FROM done",
);

/// Records a worker's heartbeats, like `TaskOp::Heartbeat` of the model, in the order of `$3`, which is that of the ids. The time is read
/// for each row when the row is locked. Of the rows that another transaction has locked, returns those that have
/// the lease as far as is committed: all others of the worker would end with it if the statement waited for them.
pub(crate) static HEARTBEAT: Sql = Sql::new(
    &[UUID, TEXT, UUIDS, BIGS, TEXTS, BIG, BOOLS],
    "WITH reported AS (
        INSERT INTO $s.workers AS w (id, started_at, seen_at, info) SELECT $1, $NOW, $NOW, $2 WHERE $2 IS NOT NULL
        ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info),
    seen AS (UPDATE $s.workers SET seen_at = $NOW WHERE id = $1 AND $2 IS NULL),
    held AS MATERIALIZED (
        SELECT * FROM unnest($3::uuid[], $4::bigint[], $5::text[], $7::boolean[]) AS a (id, token, progress, begun)),
    found AS MATERIALIZED (
        SELECT a.id, a.progress, a.begun, t.state = 3 AND t.token = a.token AS matches
        FROM held a CROSS JOIN LATERAL (
            SELECT t.state, t.token FROM $s.tasks t WHERE t.id = a.id FOR NO KEY UPDATE SKIP LOCKED) t),
    extended AS (
        UPDATE $s.tasks t SET lease_expires_at = $NOW + $6, check_at = least(t.check_at, $NOW + $6),
            prefetched = t.prefetched AND NOT (f.begun OR f.progress IS NOT NULL),
            progress = coalesce(f.progress, t.progress)
        FROM found f WHERE t.id = f.id AND f.matches RETURNING t.id, t.cancel, t.token)
    SELECT id, cancel, token, false FROM extended
    UNION ALL
    SELECT a.id, NULL, a.token, true FROM held a CROSS JOIN LATERAL (
        SELECT t.state FROM $s.tasks t WHERE t.id = a.id AND t.state + 0 = 3 AND t.token = a.token) t
    WHERE a.id NOT IN (SELECT f.id FROM found f)",
)
.for_heartbeat();
