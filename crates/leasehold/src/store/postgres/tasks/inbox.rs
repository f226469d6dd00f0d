//! Batched inserts of simple tasks of several callers: tasks that arrive while a statement is in
//! flight go into the next one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::add;
use super::pool::Pool;
use crate::error::Result;
use crate::model::{NewTask, Timestamp};
use crate::store::postgres::trouble::Fail;
use crate::store::protocol::TaskCall;

/// Maximum number of concurrent statements: while one waits for the disk, the next is executed.
const WRITERS: usize = 2;
/// Number of tasks at which a batch is complete. The tasks of one caller are not split, so a batch
/// may exceed it.
const MAX_BATCH: usize = 1000;
/// Number of payload bytes at which a batch is complete.
const MAX_BYTES: usize = 1 << 20;

/// Callers that wait for their tasks to be added.
#[derive(Debug, Default)]
pub(super) struct Inbox(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Job>,
    writers: usize,
}

#[derive(Debug)]
struct Job {
    new: Arc<[NewTask]>,
    reply: oneshot::Sender<Result<Timestamp>>,
}

impl Inbox {
    /// Adds simple tasks, and returns the time at which they were added.
    pub(super) async fn add(self: &Arc<Self>, pool: &Arc<Pool>, new: &[NewTask]) -> Result<Timestamp> {
        let (reply, answer) = oneshot::channel();
        let start = {
            let mut state = self.state();
            state.waiting.push(Job { new: new.into(), reply });
            let start = state.writers < WRITERS;
            state.writers += usize::from(start);
            start
        };
        if start {
            let (inbox, their_pool) = (self.clone(), pool.clone());
            match pool.home() {
                Ok(home) => _ = home.handle().spawn(inbox.write(their_pool)),
                Err(error) => {
                    self.state().writers -= 1;
                    return Err(error);
                }
            }
        }
        answer.await.unwrap_or_else(|_| Err(Fail::Late.explain(&pool.gate.place)))
    }

    /// Adds the waiting tasks until none is left.
    async fn write(self: Arc<Self>, pool: Arc<Pool>) {
        while let Some(jobs) = self.next() {
            let all: Arc<[Arc<[NewTask]>]> = jobs.iter().map(|job| job.new.clone()).collect();
            match insert(&pool, all).await {
                Err(error) if jobs.len() > 1 && !error.is_retryable() => {
                    // One of the jobs caused the error, and no task was added: try each job
                    // separately.
                    for job in jobs {
                        let answer = insert(&pool, Arc::new([job.new.clone()])).await;
                        let _ = job.reply.send(answer);
                    }
                }
                answer => {
                    for job in jobs {
                        let _ = job.reply.send(answer.clone());
                    }
                }
            }
        }
    }

    fn next(&self) -> Option<Vec<Job>> {
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
async fn insert(pool: &Arc<Pool>, all: Arc<[Arc<[NewTask]>]>) -> Result<Timestamp> {
    let now = pool.gate.now();
    let add = move |link: Arc<super::link::Link>| {
        let all = all.clone();
        async move {
            let new = add::in_order(all.iter().flat_map(|new| new.iter()));
            match add::alike(&*link, &new, now).await? {
                Some(since) => Ok(since),
                None => add::plain(&*link, &new, now).await,
            }
        }
    };
    pool.run(TaskCall::Enqueue, add).await
}
