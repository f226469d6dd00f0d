//! Fast path of enqueuing: batched inserts of simple tasks, those without a key, a lock or a runner's
//! deadline. Tasks of several callers that arrive while a statement is in flight go into the next one.

use std::sync::{Arc, Mutex};

use tokio_postgres::error::SqlState;

use super::enqueue::{INSERT, INSERT_UNIFORM};
use super::pool::{Executor, Pool};
use crate::error::Result;
use crate::model::{NewTask, Timestamp, When};
use crate::store::batch_queue::{BatchQueue, BatchSize, Pending};
use crate::store::postgres::columns::{column, int4, micros, only_time, params, time, ttl_micros};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::protocol::TaskCall;
use crate::store::support::mutex::lock;

/// Maximum number of concurrent statements: while one waits for the disk, the next is executed.
const WRITERS: usize = 2;
/// Maximum number of tasks and of payload bytes in one statement. The tasks of one caller are not
/// split.
const MAX_BATCH: BatchSize = BatchSize { count: 1000, bytes: 1 << 20 };

/// Batcher of inserts, with the callers that wait for their tasks to be added.
#[derive(Debug, Default)]
pub(super) struct InsertBatcher(Mutex<BatchQueue<PendingInsert>>);

type PendingInsert = Pending<Arc<[NewTask]>, Result<Timestamp>>;

impl InsertBatcher {
    /// Adds simple tasks, and returns the time at which they were added.
    pub(super) async fn insert(self: &Arc<Self>, pool: &Arc<Pool>, new: &[NewTask]) -> Result<Timestamp> {
        let (insert, answer) = Pending::new(new.into());
        let start = lock(&self.0).push(insert, WRITERS);
        if start {
            let (batcher, writer_pool) = (self.clone(), pool.clone());
            match pool.background() {
                Ok(background) => _ = background.handle().spawn(batcher.run_writer(writer_pool)),
                Err(error) => Pending::answer_all(lock(&self.0).stop_worker(), &Err(error)),
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
        lock(&self.0).next_batch(MAX_BATCH, |new| BatchSize {
            count: new.len(),
            bytes: new.iter().map(|new| new.payload.as_str().len()).sum(),
        })
    }
}

/// Adds all tasks in one statement. Idempotent: resending it adds no task twice.
async fn insert_all(pool: &Arc<Pool>, all: Arc<[Arc<[NewTask]>]>) -> Result<Timestamp> {
    let now = pool.connector.now();
    let work = move |session: Arc<Session>, all: Arc<[Arc<[NewTask]>]>| async move {
        let new = sorted_by_id(all.iter().flat_map(|new| new.iter()));
        match insert_uniform(&*session, &new, now).await? {
            Some(since) => Ok(since),
            None => insert(&*session, &new, now).await,
        }
    };
    pool.run(TaskCall::Enqueue, all, work).await
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
    let (at, after): (Vec<_>, Vec<_>) = new.iter().map(|new| when(new)).unzip();
    let values = [
        column(new, |new| *new.id.as_uuid()),
        column(new, |new| new.queue.as_str()),
        column(new, |new| new.payload.as_str()),
        Box::new(at),
        Box::new(after),
        column(new, |new| new.priority.get()),
        column(new, |new| int4(new.retries.attempts)),
        column(new, |new| ttl_micros(new.retries.initial_delay)),
        column(new, |new| ttl_micros(new.retries.max_delay)),
        Box::new(now),
    ];
    only_time(&executor.query(&INSERT, &params(&values)).await?)
}

/// Returns the time at which a task is due, or the delay until then.
fn when(new: &NewTask) -> (Option<i64>, Option<i64>) {
    match new.when {
        When::Now => (None, None),
        When::At(time) => (Some(micros(time)), None),
        When::In(after) => (None, Some(ttl_micros(after))),
    }
}

/// Adds simple tasks that are in order by the faster statement, and returns the time at which they
/// were added. Returns `None` if that statement does not apply to them: it adds new tasks that are due
/// and differ only in id and payload.
async fn insert_uniform(
    executor: &dyn Executor,
    new: &[&NewTask],
    now: Option<i64>,
) -> Result<Option<Timestamp>, PgError> {
    let Some(first) = new.first() else { return Ok(None) };
    let is_uniform = |new: &&NewTask| {
        new.when == When::Now
            && new.queue == first.queue
            && new.priority == first.priority
            && new.retries == first.retries
    };
    if !new.iter().all(is_uniform) {
        return Ok(None);
    }
    let values = [
        column(new, |new| *new.id.as_uuid()),
        column(new, |new| new.payload.as_str()),
        Box::new(first.queue.as_str()),
        Box::new(first.priority.get()),
        Box::new(int4(first.retries.attempts)),
        Box::new(ttl_micros(first.retries.initial_delay)),
        Box::new(ttl_micros(first.retries.max_delay)),
        Box::new(now),
    ];
    match executor.query(&INSERT_UNIFORM, &params(&values)).await {
        Ok(rows) => rows.first().map(|row| time(row, 0)).transpose(),
        // One of the tasks already exists.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
