//! Fast path of enqueuing: batched inserts of simple tasks, those without a key, a lock or a runner's
//! deadline. Tasks of several callers that arrive while a statement is in flight go into the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::pool::{Executor, Pool, TaskSession};
use super::sql::Sql;
use crate::error::Result;
use crate::model::{NewTask, Timestamp, When};
use crate::store::batch_queue::{BatchQueue, BatchSize, Pending};
use crate::store::postgres::columns::{first_row, int4, micros, time, ttl_micros};
use crate::store::postgres::connection::Param;
use crate::store::postgres::error::PgError;
use crate::store::protocol::TaskCall;

/// Maximum number of concurrent statements: while one waits for the disk, the next is executed.
const WRITERS: usize = 2;
/// Maximum number of tasks and of payload bytes in one statement. The tasks of one caller are not
/// split.
const MAX_BATCH: BatchSize = BatchSize { count: 1000, bytes: 1 << 20 };

/// Batcher of inserts, with the callers that wait for their tasks to be added.
#[derive(Debug, Default)]
pub(super) struct InsertBatcher(Mutex<BatchQueue<PendingInsert>>);

/// Tasks of one caller.
type PendingInsert = Pending<Arc<[NewTask]>, Result<Timestamp>>;

impl InsertBatcher {
    /// Adds simple tasks, and returns the time at which they were added.
    pub(super) async fn insert(self: &Arc<Self>, pool: &Arc<Pool>, new: &[NewTask]) -> Result<Timestamp> {
        let (insert, answer) = Pending::new(new.into());
        let start = self.queue().push(insert, WRITERS);
        if start {
            let (batcher, writer_pool) = (self.clone(), pool.clone());
            match pool.background() {
                Ok(background) => _ = background.handle().spawn(batcher.run_writer(writer_pool)),
                Err(error) => Pending::answer_all(self.queue().stop_worker(), &Err(error)),
            }
        }
        answer.await.unwrap_or_else(|_| Err(PgError::Timeout.into_error(&pool.connector.description)))
    }

    /// Adds the waiting tasks until none is left.
    async fn run_writer(self: Arc<Self>, pool: Arc<Pool>) {
        while let Some(inserts) = self.next_batch() {
            let all: Arc<[Arc<[NewTask]>]> = inserts.iter().map(|new| Arc::clone(new)).collect();
            match insert_all(&pool, all).await {
                Err(error) if inserts.len() > 1 && !error.is_retryable() => {
                    // One of the callers caused the error, and no task was added: insert the tasks
                    // of each caller separately.
                    for insert in inserts {
                        let answer = insert_all(&pool, Arc::new([Arc::clone(&insert)])).await;
                        insert.answer(answer);
                    }
                }
                answer => Pending::answer_all(inserts, &answer),
            }
        }
    }

    fn next_batch(&self) -> Option<Vec<PendingInsert>> {
        self.queue().next_batch(MAX_BATCH, |new| BatchSize {
            count: new.len(),
            bytes: new.iter().map(|new| new.payload.as_str().len()).sum(),
        })
    }

    fn queue(&self) -> MutexGuard<'_, BatchQueue<PendingInsert>> {
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
            columns.first.push(ttl_micros(new.retries.initial_delay));
            columns.longest.push(ttl_micros(new.retries.max_delay));
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
            first: ttl_micros(first.retries.initial_delay),
            longest: ttl_micros(first.retries.max_delay),
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
