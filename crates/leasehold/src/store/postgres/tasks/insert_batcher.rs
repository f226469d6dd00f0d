//! Fast path of enqueuing: batched inserts of simple tasks, those without a key, a lock or a runner's
//! deadline. Tasks of several callers that arrive while a statement is in flight go into the next one.

use std::sync::{Arc, Mutex};

use tokio_postgres::error::SqlState;

use super::enqueue::{INSERT, INSERT_ONE, INSERT_UNIFORM};
use super::pool::{Executor, Pool};
use crate::error::Result;
use crate::model::{NewTask, RetryPolicy, Timestamp, When};
use crate::store::batch_queue::{BatchQueue, BatchSize, Pending};
use crate::store::postgres::columns::{Param, column, int4, micros, only_time, params, time, ttl_micros};
use crate::store::postgres::connection::{OPERATION_TIMEOUT, Session, with_timeout};
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
    /// Adds simple tasks, and returns the time at which they were added. After a timeout a statement that
    /// adds them may be in flight.
    pub(super) async fn insert(self: &Arc<Self>, pool: &Arc<Pool>, new: &[NewTask]) -> Result<Timestamp> {
        let inserted = with_timeout(OPERATION_TIMEOUT, async {
            match self.insert_inline(pool, new).await {
                Some(since) => Ok(since),
                None => Ok(self.insert_in_batch(pool, new).await?),
            }
        });
        pool.connector.map_error(inserted.await)
    }

    async fn insert_in_batch(self: &Arc<Self>, pool: &Arc<Pool>, new: &[NewTask]) -> Result<Timestamp> {
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

    /// Adds the tasks of a lone caller on its own runtime. Returns `None` if that is not possible or
    /// has failed: the tasks then have to be added, or added again, in a batch.
    async fn insert_inline(&self, pool: &Arc<Pool>, new: &[NewTask]) -> Option<Timestamp> {
        if !lock(&self.0).is_idle() {
            pool.inline.lower_uncontended();
            return None;
        }
        let turn = pool.try_enter_inline()?;
        let now = pool.connector.now();
        let work =
            |session: Arc<Session>| async move { insert_uniform(&*session, &sorted_by_id(new), now).await };
        turn.run(work).await.ok().flatten()
    }

    /// Adds the waiting tasks until none is left.
    async fn run_writer(self: Arc<Self>, pool: Arc<Pool>) {
        while let Some(inserts) = self.next_batch() {
            let all: Arc<[Arc<[NewTask]>]> = inserts.iter().map(|new| Arc::clone(new)).collect();
            match insert_all(&pool, all).await {
                Err(error) if inserts.len() > 1 && !error.is_retryable() => {
                    // One of the callers caused the error, and no task was added: insert the tasks
                    // of each caller that still waits separately.
                    for insert in inserts.into_iter().filter(Pending::caller_waits) {
                        let answer = insert_all(&pool, Arc::new([Arc::clone(&insert)])).await;
                        insert.answer(answer);
                    }
                }
                answer => Pending::answer_all(inserts, &answer),
            }
        }
    }

    /// Takes the next batch. Drops the tasks of callers that no longer wait: no batch has contained them.
    fn next_batch(&self) -> Option<Vec<PendingInsert>> {
        let mut queue = lock(&self.0);
        queue.calls.retain(Pending::caller_waits);
        queue.next_batch(MAX_BATCH, |new| BatchSize {
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
    let (queue, priority) = (first.queue.as_str(), first.priority.get());
    let RetryPolicy { attempts, initial_delay, max_delay } = first.retries;
    let (attempts, initial, max) = (int4(attempts), ttl_micros(initial_delay), ttl_micros(max_delay));
    let added = if new.len() == 1 {
        let (id, payload) = (first.id.as_uuid(), first.payload.as_str());
        let one: [Param<'_>; 8] = [id, &payload, &queue, &priority, &attempts, &initial, &max, &now];
        executor.query(&INSERT_ONE, &one).await
    } else {
        let ids: Vec<_> = new.iter().map(|new| *new.id.as_uuid()).collect();
        let payloads: Vec<_> = new.iter().map(|new| new.payload.as_str()).collect();
        let all: [Param<'_>; 8] = [&ids, &payloads, &queue, &priority, &attempts, &initial, &max, &now];
        executor.query(&INSERT_UNIFORM, &all).await
    };
    match added {
        Ok(rows) => rows.first().map(|row| time(row, 0)).transpose(),
        // One of the tasks already exists.
        Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
