//! Queries of tasks, queues and workers.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::codec::read_state;
use super::pool::TaskSession;
use super::sql::fill;
use crate::model::{Pause, QueueName, QueueStatus, TaskId, WorkerStatus};
use crate::store::ListTasks;
use crate::store::lock_store::page_size;
use crate::store::postgres::columns::{invalid_row, read_json, time};
use crate::store::postgres::error::PgError;

/// List query, as a statement with only the requested conditions, so that the planner can choose an
/// index.
pub(super) struct TaskQuery {
    sql: String,
    /// Conditions, joined by AND.
    conditions: Vec<String>,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl TaskQuery {
    /// Builds the query for one task.
    pub(super) fn one(id: TaskId, schema: &str) -> Self {
        let mut statement = Self::new();
        statement.and("t.id = ", Box::new(*id.as_uuid()), Type::UUID);
        statement.end("", schema)
    }

    /// Builds the query for a list, newest first.
    pub(super) fn list(query: &ListTasks, schema: &str) -> Self {
        let mut statement = Self::new();
        let before = query.after.as_ref().and_then(|after| after.0.parse::<Uuid>().ok());
        if let Some(before) = before {
            statement.and("t.id < ", Box::new(before), Type::UUID);
        }
        if let Some(queue) = &query.queue {
            statement.and("t.queue = ", Box::new(queue.as_str().to_owned()), Type::TEXT);
        }
        if let Some(lock) = &query.lock {
            statement.and("t.lock = ", Box::new(lock.as_str().to_owned()), Type::TEXT);
        }
        if let Some(worker) = query.worker {
            statement.and("t.worker = ", Box::new(*worker.as_uuid()), Type::UUID);
        }
        if let Some(state) = query.state {
            // A literal number, not a parameter, so that a partial index for this state can be
            // used.
            statement.conditions.push(format!("t.state = {}", state as i16));
        }
        if !query.archived {
            statement.conditions.push("NOT t.archived".to_owned());
        }
        let mut statement =
            statement.end(&format!(" ORDER BY t.id DESC LIMIT {}", page_size(query.limit)), schema);
        if query.brief {
            statement.sql = statement.sql.replacen("t.payload", "'null'::text", 1);
        }
        statement
    }

    fn new() -> Self {
        Self { sql: String::new(), conditions: vec!["true".to_owned()], params: Vec::new() }
    }

    fn and(&mut self, condition: &str, value: Box<dyn ToSql + Sync + Send>, of: Type) {
        self.params.push((value, of));
        self.conditions.push(format!("{condition}${}", self.params.len()));
    }

    fn end(mut self, end: &str, schema: &str) -> Self {
        let from = "SELECT $TASK FROM $s.tasks t";
        self.sql = fill(&format!("{from} WHERE {}{end}", self.conditions.join(" AND ")), schema);
        self
    }

    pub(super) async fn fetch(&self, session: &TaskSession) -> Result<Vec<Row>, PgError> {
        let params: Vec<(&(dyn ToSql + Sync), Type)> =
            self.params.iter().map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone())).collect();
        Ok(session.client().query_typed(&self.sql, &params).await?)
    }
}

/// Returns the queues, by name, with their counts.
pub(super) fn queues(rows: &[Row]) -> Result<Vec<QueueStatus>, PgError> {
    let mut queues: BTreeMap<QueueName, QueueStatus> = BTreeMap::new();
    for row in rows {
        let name = QueueName::new(row.try_get::<_, &str>(0)?).map_err(invalid_row)?;
        let status = queues.entry(name.clone()).or_insert_with(|| QueueStatus {
            queue: name,
            counts: crate::model::Counts::default(),
            paused: None,
        });
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

/// Returns the workers, oldest first.
pub(super) fn workers(rows: &[Row]) -> Result<Vec<WorkerStatus>, PgError> {
    let worker = |row: &Row| {
        let info =
            read_json(row, 0)?.ok_or_else(|| PgError::InvalidRow("a worker without a description".into()))?;
        Ok(WorkerStatus { info, started_at: time(row, 1)?, seen_at: time(row, 2)? })
    };
    rows.iter().map(worker).collect()
}

// --- statements -----------------------------------------------------------------------------------

pub(super) const QUEUES: &str = "
    SELECT name, pause, NULL::smallint, NULL::bigint FROM $s.task_queues
    UNION ALL SELECT queue, NULL, state, sum(delta)::bigint FROM $s.task_counts GROUP BY queue, state";

pub(super) const KEYED: &str = "
    SELECT $TASK FROM $s.task_keys k JOIN $s.tasks t ON t.id = k.id
    WHERE k.queue = $1 AND k.key = $2";
