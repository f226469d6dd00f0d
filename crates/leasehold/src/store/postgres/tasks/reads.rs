//! Queries of tasks, queues and workers.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use super::link::Link;
use super::rows::{self, unreadable};
use super::text::fill;
use crate::model::{Pause, QueueName, QueueStatus, TaskId, WorkerStatus};
use crate::store::ListTasks;
use crate::store::lock_store::page_size;
use crate::store::postgres::trouble::Fail;

/// List query, as a statement with only the requested conditions, so that the planner can choose an
/// index.
pub(super) struct Question {
    sql: String,
    /// Conditions, joined by AND.
    parts: Vec<String>,
    params: Vec<(Box<dyn ToSql + Sync + Send>, Type)>,
}

impl Question {
    /// Builds the query for one task.
    pub(super) fn one(id: TaskId, schema: &str) -> Self {
        let mut question = Self::new();
        question.also("t.id = ", Box::new(*id.as_uuid()), Type::UUID);
        question.end("", schema)
    }

    /// Builds the query for a list, newest first.
    pub(super) fn list(ask: &ListTasks, schema: &str) -> Self {
        let mut question = Self::new();
        let before = ask.after.as_ref().and_then(|after| after.0.parse::<Uuid>().ok());
        if let Some(before) = before {
            question.also("t.id < ", Box::new(before), Type::UUID);
        }
        if let Some(queue) = &ask.queue {
            question.also("t.queue = ", Box::new(queue.as_str().to_owned()), Type::TEXT);
        }
        if let Some(lock) = &ask.lock {
            question.also("t.lock = ", Box::new(lock.as_str().to_owned()), Type::TEXT);
        }
        if let Some(worker) = ask.worker {
            question.also("t.worker = ", Box::new(*worker.as_uuid()), Type::UUID);
        }
        if let Some(state) = ask.state {
            // A literal number, not a parameter, so that a partial index for this state can be
            // used.
            question.parts.push(format!("t.state = {}", state as i16));
        }
        if !ask.archived {
            question.parts.push("NOT t.archived".to_owned());
        }
        let mut question =
            question.end(&format!(" ORDER BY t.id DESC LIMIT {}", page_size(ask.limit)), schema);
        if ask.brief {
            question.sql = question.sql.replacen("t.payload", "'null'::text", 1);
        }
        question
    }

    fn new() -> Self {
        Self { sql: String::new(), parts: vec!["true".to_owned()], params: Vec::new() }
    }

    fn also(&mut self, what: &str, value: Box<dyn ToSql + Sync + Send>, of: Type) {
        self.params.push((value, of));
        self.parts.push(format!("{what}${}", self.params.len()));
    }

    fn end(mut self, end: &str, schema: &str) -> Self {
        let from = "SELECT $TASK FROM $s.tasks t";
        self.sql = fill(&format!("{from} WHERE {}{end}", self.parts.join(" AND ")), schema);
        self
    }

    pub(super) async fn ask(&self, link: &Link) -> Result<Vec<Row>, Fail> {
        let params: Vec<(&(dyn ToSql + Sync), Type)> =
            self.params.iter().map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone())).collect();
        Ok(link.client().query_typed(&self.sql, &params).await?)
    }
}

/// Returns the queues, by name, with their counts.
pub(super) fn queues(rows: &[Row]) -> Result<Vec<QueueStatus>, Fail> {
    let mut queues: BTreeMap<QueueName, QueueStatus> = BTreeMap::new();
    for row in rows {
        let name = QueueName::new(row.try_get::<_, &str>(0)?).map_err(unreadable)?;
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
                status.counts.set(rows::state(state)?, rows::number(count)?);
            }
            None => status.paused = rows::json::<Pause>(row, 1)?,
        }
    }
    Ok(queues.into_values().collect())
}

/// Returns the workers, oldest first.
pub(super) fn workers(rows: &[Row]) -> Result<Vec<WorkerStatus>, Fail> {
    let worker = |row: &Row| {
        let info = rows::json(row, 0)?.ok_or_else(|| Fail::Unreadable("a worker without a word".into()))?;
        Ok(WorkerStatus { info, started_at: rows::time(row, 1)?, seen_at: rows::time(row, 2)? })
    };
    rows.iter().map(worker).collect()
}
