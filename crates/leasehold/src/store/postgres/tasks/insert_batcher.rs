//! Fast path of enqueuing: batched inserts of simple tasks, those without a key, a lock or a runner's
//! deadline. Tasks of several callers that arrive while a statement is in flight go into the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::pool::{Executor, Pool, TaskSession};
use super::sql::Sql;
use crate::error::Result;
use crate::model::{NewTask, Timestamp, When};
use crate::store::postgres::columns::{first_row, int4, micros, time, ttl_micros};
use crate::store::postgres::connection::Param;
use crate::store::postgres::error::PgError;
use crate::store::protocol::TaskCall;

/// Maximum number of concurrent statements: while one waits for the disk, the next is executed.
const WRITERS: usize = 2;
/// Number of tasks at which a batch is complete. The tasks of one caller are not split, so a batch
/// may exceed it.
const MAX_BATCH: usize = 1000;
/// Number of payload bytes at which a batch is complete.
const MAX_BYTES: usize = 1 << 20;

/// Batcher of inserts, with the callers that wait for their tasks to be added.
#[derive(Debug, Default)]
pub(super) struct InsertBatcher(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<PendingInsert>,
    writers: usize,
}

/// Tasks of one caller.
#[derive(Debug)]
struct PendingInsert {
    new: Arc<[NewTask]>,
    reply: oneshot::Sender<Result<Timestamp>>,
}

impl InsertBatcher {
    /// Adds simple tasks, and returns the time at which they were added.
    pub(super) async fn insert(self: &Arc<Self>, pool: &Arc<Pool>, new: &[NewTask]) -> Result<Timestamp> {
        let (reply, answer) = oneshot::channel();
        let start = {
            let mut state = self.state();
            state.waiting.push(PendingInsert { new: new.into(), reply });
            let start = state.writers < WRITERS;
            state.writers += usize::from(start);
            start
        };
        if start {
            let (batcher, writer_pool) = (self.clone(), pool.clone());
            match pool.background() {
                Ok(background) => _ = background.handle().spawn(batcher.run_writer(writer_pool)),
                Err(error) => {
                    self.state().writers -= 1;
                    return Err(error);
                }
            }
        }
        answer.await.unwrap_or_else(|_| Err(PgError::Timeout.into_error(&pool.connector.description)))
    }

    /// Adds the waiting tasks until none is left.
    async fn run_writer(self: Arc<Self>, pool: Arc<Pool>) {
        while let Some(inserts) = self.next_batch() {
            let all: Arc<[Arc<[NewTask]>]> = inserts.iter().map(|insert| insert.new.clone()).collect();
            match insert_all(&pool, all).await {
                Err(error) if inserts.len() > 1 && !error.is_retryable() => {
                    // One of the callers caused the error, and no task was added: insert the tasks
                    // of each caller separately.
                    for insert in inserts {
                        let answer = insert_all(&pool, Arc::new([insert.new.clone()])).await;
                        let _ = insert.reply.send(answer);
                    }
                }
                answer => {
                    for insert in inserts {
                        let _ = insert.reply.send(answer.clone());
                    }
                }
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<PendingInsert>> {
        let mut state = self.state();
        let (mut count, mut tasks, mut bytes) = (0, 0, 0);
        while tasks < MAX_BATCH && bytes < MAX_BYTES && count < state.waiting.len() {
            let new = &state.waiting[count].new;
            tasks += new.len();
            bytes += new.iter().map(|new| new.payload.as_str().len()).sum::<usize>();
            count += 1;
        }
        if count == 0 {
            state.writers -= 1;
            return None;
        }
        Some(state.waiting.drain(..count).collect())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds all tasks in one statement. Idempotent: resending it adds no task twice.
async fn insert_all(pool: &Arc<Pool>, all: Arc<[Arc<[NewTask]>]>) -> Result<Timestamp> {
    let now = pool.connector.now();
    let work = move |session: Arc<TaskSession>| {
        let all = all.clone();
        async move {
            let new = sorted_by_id(all.iter().flat_map(|new| new.iter()));
            match insert_uniform(&*session, &new, now).await? {
                Some(since) => Ok(since),
                None => insert(&*session, &new, now).await,
            }
        }
    };
    pool.run(TaskCall::Enqueue, work).await
}

/// Returns each task once, in the order of the ids, so that concurrent inserts never deadlock.
pub(super) fn sorted_by_id<'a>(new: impl IntoIterator<Item = &'a NewTask>) -> Vec<&'a NewTask> {
    let mut sorted: Vec<&NewTask> = new.into_iter().collect();
    // The sort is stable: of two tasks with the same id the first is kept.
    sorted.sort_by_key(|new| new.id);
    sorted.dedup_by_key(|new| new.id);
    sorted
}

/// Adds simple tasks that are in order, and returns the time at which they were added.
pub(super) async fn insert(
    executor: &dyn Executor,
    new: &[&NewTask],
    now: Option<i64>,
) -> Result<Timestamp, PgError> {
    let columns = NewColumns::new(new);
    let rows = executor.query(Sql::Insert, &columns.params(&now)).await?;
    time(first_row(&rows)?, 0)
}

/// Adds simple tasks that are in order by the faster statement, and returns the time at which they
/// were added. Returns `None` if that statement does not apply to them.
async fn insert_uniform(
    executor: &dyn Executor,
    new: &[&NewTask],
    now: Option<i64>,
) -> Result<Option<Timestamp>, PgError> {
    let Some(columns) = UniformColumns::new(new) else { return Ok(None) };
    match executor.query(Sql::InsertUniform, &columns.params(&now)).await.map_err(PgError::from) {
        Ok(rows) => rows.first().map(|row| time(row, 0)).transpose(),
        Err(error) if already_exists(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether one of the tasks already exists.
fn already_exists(error: &PgError) -> bool {
    matches!(error, PgError::Driver(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION))
}

/// Columns of new tasks, as parameters of a statement.
#[derive(Debug, Default)]
struct NewColumns<'a> {
    id: Vec<Uuid>,
    queue: Vec<&'a str>,
    payload: Vec<&'a str>,
    at: Vec<Option<i64>>,
    after: Vec<Option<i64>>,
    priority: Vec<i32>,
    attempts: Vec<i32>,
    first: Vec<i64>,
    longest: Vec<i64>,
}

impl<'a> NewColumns<'a> {
    fn new(tasks: &[&'a NewTask]) -> Self {
        let mut columns = Self::default();
        for new in tasks {
            columns.id.push(*new.id.as_uuid());
            columns.queue.push(new.queue.as_str());
            columns.payload.push(new.payload.as_str());
            let (at, after) = match new.when {
                When::Now => (None, None),
                When::At(time) => (Some(micros(time)), None),
                When::In(after) => (None, Some(ttl_micros(after))),
            };
            columns.at.push(at);
            columns.after.push(after);
            columns.priority.push(new.priority.get());
            columns.attempts.push(int4(new.retries.attempts));
            columns.first.push(ttl_micros(new.retries.first));
            columns.longest.push(ttl_micros(new.retries.longest));
        }
        columns
    }

    fn params<'b>(&'b self, now: Param<'b>) -> [Param<'b>; 10] {
        [
            &self.id,
            &self.queue,
            &self.payload,
            &self.at,
            &self.after,
            &self.priority,
            &self.attempts,
            &self.first,
            &self.longest,
            now,
        ]
    }
}

/// New tasks that are due and differ only in id and payload.
#[derive(Debug)]
struct UniformColumns<'a> {
    id: Vec<Uuid>,
    payload: Vec<&'a str>,
    queue: &'a str,
    priority: i32,
    attempts: i32,
    first: i64,
    longest: i64,
}

impl<'a> UniformColumns<'a> {
    /// Returns `None` if the tasks differ in more, or are not due.
    fn new(tasks: &[&'a NewTask]) -> Option<Self> {
        let first = *tasks.first()?;
        let is_uniform = |new: &&NewTask| {
            new.when == When::Now
                && new.queue == first.queue
                && new.priority == first.priority
                && new.retries == first.retries
        };
        tasks.iter().all(is_uniform).then(|| Self {
            id: tasks.iter().map(|new| *new.id.as_uuid()).collect(),
            payload: tasks.iter().map(|new| new.payload.as_str()).collect(),
            queue: first.queue.as_str(),
            priority: first.priority.get(),
            attempts: int4(first.retries.attempts),
            first: ttl_micros(first.retries.first),
            longest: ttl_micros(first.retries.longest),
        })
    }

    fn params<'b>(&'b self, now: Param<'b>) -> [Param<'b>; 8] {
        [
            &self.id,
            &self.payload,
            &self.queue,
            &self.priority,
            &self.attempts,
            &self.first,
            &self.longest,
            now,
        ]
    }
}
