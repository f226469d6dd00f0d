//! Queries of tasks, queues and workers.

use std::collections::BTreeMap;
use std::fmt::Write;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::codec::read_state;
use crate::model::{Counts, Pause, QueueName, QueueStatus, TaskId, TaskState, WorkerStatus};
use crate::store::ListTasks;
use crate::store::lock_store::page_size;
use crate::store::postgres::columns::{OwnedParam, Param, invalid_row, queue_name, read_json, time};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, Sql, TEXT, UUID, fill};

/// Number of tasks up to which a queue is read by state instead of from the newest task of the store on.
const SMALL_QUEUE: u32 = 20_000;

/// Query of tasks, as a statement with only the requested conditions, so that the planner can choose an
/// index.
pub(in crate::store::postgres) struct TaskQuery {
    sql: String,
    params: Vec<(OwnedParam<'static>, Type)>,
}

impl TaskQuery {
    pub(super) fn one(id: TaskId, schema: &str) -> Self {
        let sql = fill("SELECT $TASK FROM $s.tasks t WHERE t.id = $1", schema);
        Self { sql, params: vec![(Box::new(*id.as_uuid()), Type::UUID)] }
    }

    /// Builds the query for a list, newest first.
    pub(in crate::store::postgres) fn list(query: &ListTasks, schema: &str) -> Self {
        let before = query.after.as_ref().and_then(|after| after.0.parse::<Uuid>().ok());
        let worker = query.worker.map(|worker| *worker.as_uuid());
        let lock = query.lock.as_ref().map(|lock| lock.as_str().to_owned());
        let values: [(&str, Option<OwnedParam<'static>>, Type); 3] = [
            ("t.id < ", before.map(|id| Box::new(id) as _), Type::UUID),
            ("t.lock = ", lock.map(|lock| Box::new(lock) as _), Type::TEXT),
            ("t.worker = ", worker.map(|worker| Box::new(worker) as _), Type::UUID),
        ];
        let (mut conditions, mut params) = (vec!["true".to_owned()], Vec::new());
        for (condition, value, of) in values {
            if let Some(value) = value {
                params.push((value, of));
                conditions.push(format!("{condition}${}", params.len()));
            }
        }
        let queue = query.queue.as_ref().map(queue_literal);
        if let Some(queue) = &queue {
            conditions.push(format!("t.queue = {queue}"));
        }
        if let Some(state) = query.state {
            // A literal number, not a parameter, so that a partial index for this state can be
            // used.
            conditions.push(format!("t.state = {}", state as i16));
        }
        if !query.archived {
            conditions.push("NOT t.archived".to_owned());
        }
        let (conditions, limit) = (conditions.join(" AND "), page_size(query.limit));
        let has_all_states = query.state.is_none() && query.worker.is_none();
        let list = match queue.filter(|_| has_all_states && !query.archived) {
            Some(queue) => list_of_queue(&queue, &conditions, limit),
            None => {
                format!("SELECT $TASK FROM $s.tasks t WHERE {conditions} ORDER BY t.id DESC LIMIT {limit}")
            }
        };
        let mut sql = fill(&list, schema);
        if query.brief {
            sql = sql.replacen("t.payload", "'null'::text", 1);
        }
        Self { sql, params }
    }

    #[cfg(feature = "testing")]
    pub(in crate::store::postgres) fn into_sql(self) -> String {
        self.sql
    }

    pub(super) async fn fetch(&self, session: &Session) -> Result<Vec<Row>, PgError> {
        let params: Vec<(Param<'_>, Type)> =
            self.params.iter().map(|(value, of)| (&**value as Param<'_>, of.clone())).collect();
        Ok(session.client.query_typed(&self.sql, &params).await?)
    }
}

/// Returns a queue's name as a literal: for a parameter the planner assumes a queue of average size, and it
/// would read all tasks to find those of a small queue. In hexadecimal, no name can end the literal.
fn queue_literal(queue: &QueueName) -> String {
    let mut hex = String::new();
    for byte in queue.as_str().bytes() {
        let _ = write!(hex, "{byte:02x}"); // Writing to a string cannot fail.
    }
    format!("convert_from(decode('{hex}', 'hex'), 'UTF8')")
}

/// Returns the statement for the tasks of one queue in all states. No index has all tasks of a queue: those
/// of a large queue are found among the newest tasks, those of a small one in the indexes of the states. The
/// counts decide which part is executed.
fn list_of_queue(queue: &str, conditions: &str, limit: u32) -> String {
    let found = |condition: &str| format!("SELECT id FROM $s.tasks t WHERE {conditions} AND {condition}");
    let is_small = format!("(SELECT tasks <= {SMALL_QUEUE} FROM counts)");
    let large = found(&format!("NOT {is_small} ORDER BY t.id DESC LIMIT {limit}"));
    let mut parts = vec![format!("({large})")];
    for state in TaskState::ALL {
        let state_condition = match state {
            // As the index of finished tasks requires it.
            TaskState::Succeeded => "t.state = 4 AND t.finished_at IS NOT NULL".to_owned(),
            TaskState::Failed => "t.state >= 5".to_owned(),
            TaskState::Aborted => continue, // Has an index together with `Failed`.
            _ => format!("t.state = {}", state as i16),
        };
        parts.push(found(&format!("{state_condition} AND {is_small}")));
    }
    let parts = parts.join("\n    UNION ALL ");
    format!(
        "WITH counts AS MATERIALIZED (
        SELECT coalesce(sum(delta), 0) AS tasks FROM $s.task_counts WHERE queue = {queue})
    SELECT $TASK FROM $s.tasks t WHERE t.id = ANY (ARRAY(
        SELECT id FROM ({parts}) AS found ORDER BY id DESC LIMIT {limit}))
    ORDER BY t.id DESC"
    )
}

/// Returns the queues, by name, with their counts.
pub(super) fn queues(rows: &[Row]) -> Result<Vec<QueueStatus>, PgError> {
    let mut queues: BTreeMap<QueueName, QueueStatus> = BTreeMap::new();
    for row in rows {
        let queue = queue_name(row, 0)?;
        let new = || QueueStatus { queue: queue.clone(), counts: Counts::default(), paused: None };
        let status = queues.entry(queue.clone()).or_insert_with(new);
        match row.try_get::<_, Option<i16>>(2)? {
            // A task that another transaction is counting may briefly be missing from the sum, which
            // must not be negative.
            Some(state) => {
                let count = row.try_get::<_, i64>(3)?.max(0);
                status.counts.set(read_state(state)?, u64::try_from(count).map_err(invalid_row)?);
            }
            None => status.paused = read_json::<Pause>(row, 1)?,
        }
    }
    Ok(queues.into_values().collect())
}

pub(super) fn workers(rows: &[Row]) -> Result<Vec<WorkerStatus>, PgError> {
    let worker = |row: &Row| {
        let info =
            read_json(row, 0)?.ok_or_else(|| PgError::InvalidRow("a worker without a description".into()))?;
        Ok(WorkerStatus { info, started_at: time(row, 1)?, seen_at: time(row, 2)? })
    };
    rows.iter().map(worker).collect()
}

// --- statements -----------------------------------------------------------------------------------

pub(crate) static QUEUES: Sql = Sql::new(
    &[],
    "SELECT name, pause, NULL::smallint, NULL::bigint FROM $s.task_queues
    UNION ALL SELECT queue, NULL, state, sum(delta)::bigint FROM $s.task_counts GROUP BY queue, state",
);

pub(crate) static PAUSE: Sql =
    Sql::new(&[TEXT, TEXT], "UPDATE $s.task_queues SET pause = $2 WHERE name = $1 RETURNING true");

pub(crate) static KEYED: Sql = Sql::new(
    &[TEXT, TEXT],
    "SELECT $TASK FROM $s.task_keys k JOIN $s.tasks t ON t.id = k.id
    WHERE k.queue = $1 AND k.key = $2",
);

/// Lists the workers that were seen after `$1`, a duration, ago. Older ones are deleted in the background.
pub(crate) static WORKERS: Sql = Sql::new(
    &[BIG],
    "SELECT info, started_at, seen_at FROM $s.workers WHERE seen_at > $NOW - $1 ORDER BY id",
);

pub(crate) static REMOVE_WORKER: Sql = Sql::new(&[UUID], "DELETE FROM $s.workers WHERE id = $1");
