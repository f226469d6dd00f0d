//! Batching of operations: concurrent operations of many callers cost the server far less in one
//! call.
//!
//! A caller puts its operation into a queue and waits. A sender on the background thread takes the
//! queued operations and sends them as one command; operations that arrive meanwhile go with the
//! next one. An operation that is not simple enough for the fast path gets no answer, and its caller
//! sends it alone.
//!
//! Order: taking an operation from the queue and handing it to the connection is one step. So a
//! dropped call is either still in the queue, and then it is never sent; or every later command on
//! the background connection also follows it on the server.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};

use super::super::scripts::BATCH;
use super::connections::{ConnectionKind, Connections, OpenConnection};
use super::connector::Connection;
use crate::model::LeaseId;
use crate::store::batch_queue::{BatchQueue, BatchSize, Pending};
use crate::store::repeat::Repeat;
use crate::store::support::mutex::lock;
use crate::store::support::sync::Mutex;
use crate::store::support::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of operations in one call, so that other clients do not wait for long.
const MAX_BATCH: BatchSize = BatchSize::count(64);
/// Number of concurrent calls. While the server works on one, the next is being filled.
/// Measurements did not show whether two would be faster.
const SENDERS: usize = 1;

/// Operation in the form that `batch.lua` takes.
pub(crate) struct BatchedOp {
    /// Key of the lock's record, which ends with the name of the lock.
    pub(crate) record: String,
    pub(crate) name_length: usize,
    pub(crate) op: &'static str,
    pub(crate) arguments: [Vec<u8>; 3],
    /// Time, if it is not the server's; the same for all operations.
    pub(crate) now: String,
}

/// Penalty for an operation that was batched but had to be sent alone after all; every further
/// attempt subtracts one.
const MISS_PENALTY: usize = 8;
/// Penalty from which batching is suspended for a while: where all callers want the same lock, no
/// operation is simple.
const SUSPEND_AT: usize = 64;

/// Load from which all operations are batched.
const BUSY_FROM: usize = 4;

/// Operations that wait to be sent.
#[derive(Default)]
pub(crate) struct Batcher {
    /// Rises with each batched operation that had to be sent alone, and falls with every other.
    miss_penalty: AtomicUsize,
    queue: Mutex<BatchQueue<PendingOp>>,
    /// Size of the last batches: the largest of them, which counts less with each smaller one.
    load: AtomicUsize,
    /// Held while operations are taken out of the queue and handed to the connection.
    handing_over: Mutex<()>,
}

type PendingOp = Pending<QueuedOp, RedisResult<Value>>;

struct QueuedOp {
    op: BatchedOp,
    /// Connection on which the operation was sent; 0 if it is still in the queue.
    generation: Arc<AtomicU64>,
}

/// Waiting call. If it is dropped without an answer, the operation is removed from the queue, or
/// marked as in doubt.
struct BatchedCall<'a> {
    batcher: &'a Batcher,
    connections: &'a Connections,
    lease: &'a LeaseId,
    generation: Arc<AtomicU64>,
    answered: bool,
}

impl Batcher {
    /// Sends an operation for this lease in a batch. Returns `None` if it must be sent alone.
    pub(crate) async fn send(
        self: &Arc<Self>,
        connections: &Arc<Connections>,
        lease: &LeaseId,
        op: BatchedOp,
        repeat: Repeat,
    ) -> Option<RedisResult<Value>> {
        if !self.is_worthwhile() {
            return None;
        }
        let runtime = connections.background_runtime()?;
        let _in_progress = connections.begin_call();
        let generation = Arc::new(AtomicU64::new(0));
        let (queued, answer) = Pending::new(QueuedOp { op, generation: generation.clone() });
        let start = lock(&self.queue).push(queued, SENDERS);
        let mut call = BatchedCall { batcher: self, connections, lease, generation, answered: false };
        if start {
            runtime.spawn(run_sender(self.clone(), connections.clone()));
        }
        // If the sender ended without an answer, the outcome is unknown.
        let Ok(answer) = answer.await else {
            let sent = call.generation.load(Ordering::Relaxed) != 0;
            let aborted = || Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into());
            return (sent && repeat == Repeat::Unsafe).then(aborted);
        };
        match answer {
            Ok(Value::Nil) => {
                call.answered = true;
                self.miss_penalty.fetch_add(MISS_PENALTY, Ordering::Relaxed);
                None
            }
            Err(error) if error.is_timeout() || call.generation.load(Ordering::Relaxed) == 0 => {
                Some(Err(error))
            }
            Err(error) if repeat == Repeat::Unsafe && error.code().is_none() => Some(Err(error)),
            // Retried alone: after the broken connection has been ended, like any other call; or,
            // after a refusal, to get the complete error.
            Err(error) => {
                call.answered = error.code().is_some();
                None
            }
            reply => {
                call.answered = true;
                Some(reply)
            }
        }
    }

    /// Whether the last batches were so large that further operations should be batched, too, although
    /// few calls are in progress: the answers of a batch arrive together, and so do the next operations.
    /// No operation waits for others: if there are none, it is sent at once, and the load falls.
    pub(crate) fn is_busy(&self) -> bool {
        self.load.load(Ordering::Relaxed) >= BUSY_FROM
    }

    fn note_batch(&self, size: usize) {
        let load = self.load.load(Ordering::Relaxed);
        self.load.store(size.max((load - load / 4).saturating_sub(1)), Ordering::Relaxed);
    }

    fn is_worthwhile(&self) -> bool {
        let decay = |miss_penalty: usize| Some(miss_penalty.min(2 * SUSPEND_AT).saturating_sub(1));
        let miss_penalty = self.miss_penalty.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decay);
        miss_penalty.unwrap_or_default() < SUSPEND_AT
    }
}

impl Drop for BatchedCall<'_> {
    fn drop(&mut self) {
        if self.answered {
            self.connections.clear_in_doubt(self.lease);
            return;
        }
        let _handing_over = lock(&self.batcher.handing_over);
        let mut queue = lock(&self.batcher.queue);
        let position =
            queue.calls.iter().position(|queued| Arc::ptr_eq(&queued.generation, &self.generation));
        match (position, self.generation.load(Ordering::Relaxed)) {
            (Some(at), _) => drop(queue.calls.remove(at)),
            (None, 0) => {} // Never sent.
            (None, generation) => {
                self.connections.mark_in_doubt(self.lease, ConnectionKind::Background, generation);
            }
        }
    }
}

/// Sends queued operations until the queue is empty.
async fn run_sender(batcher: Arc<Batcher>, connections: Arc<Connections>) {
    let mut guard = SenderGuard { batcher: &batcher, finished: false };
    loop {
        let background = match connections.connection(ConnectionKind::Background).await {
            Ok(background) => background,
            Err(error) => {
                guard.finished = true;
                Pending::answer_all(lock(&batcher.queue).stop_worker(), &Err(error));
                return;
            }
        };
        let Some((batch, reply)) = send_batch(&batcher, &background).await else {
            guard.finished = true;
            return;
        };
        if let Err(error) = &reply {
            connections.discard_if_broken(ConnectionKind::Background, &background, error);
        }
        match reply {
            Ok(Value::Array(answers)) if answers.len() == batch.len() => {
                for (queued, answer) in batch.into_iter().zip(answers) {
                    queued.answer(Ok(answer));
                }
            }
            // Not a reply of `batch.lua`: each caller sends its operation alone.
            reply => Pending::answer_all(batch, &reply.map(|_| Value::Nil)),
        }
    }
}

/// Deregisters a sender that ends unexpectedly: otherwise no operation would be sent any more.
struct SenderGuard<'a> {
    batcher: &'a Batcher,
    finished: bool,
}

impl Drop for SenderGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            drop(lock(&self.batcher.queue).stop_worker());
        }
    }
}

type Sending = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send>>;

/// Sends one batch, if the queue is not empty, and waits for the answer.
async fn send_batch(
    batcher: &Batcher,
    background: &OpenConnection,
) -> Option<(Vec<PendingOp>, RedisResult<Value>)> {
    let mut batch: Option<(Vec<PendingOp>, Sending)> = None;
    let reply = poll_fn(|context| {
        if let Some((_, sending)) = &mut batch {
            return sending.as_mut().poll(context).map(Some);
        }
        let _handing_over = lock(&batcher.handing_over);
        let Some(ops) = lock(&batcher.queue).next_batch(MAX_BATCH, BatchSize::one) else {
            return Poll::Ready(None);
        };
        batcher.note_batch(ops.len());
        for queued in &ops {
            queued.generation.store(background.generation, Ordering::Relaxed);
        }
        // The first poll must hand the command to the connection, even if this task has used up its
        // budget.
        let mut sending: Sending =
            Box::pin(tokio::task::unconstrained(send(background.driver.clone(), command(&ops))));
        let first = sending.as_mut().poll(context).map(Some);
        batch = Some((ops, sending));
        first
    })
    .await?;
    batch.map(|(ops, _)| (ops, reply))
}

fn command(batch: &[PendingOp]) -> Cmd {
    let size = batch.iter().map(|queued| queued.op.size()).sum::<usize>();
    let mut cmd = Cmd::with_capacity(4 + batch.len() * 6, 100 + size);
    cmd.arg("EVALSHA").arg(&BATCH.hash).arg(batch.len());
    for queued in batch {
        cmd.arg(&queued.op.record);
    }
    cmd.arg(batch.first().map_or("", |queued| &queued.op.now));
    for queued in batch {
        cmd.arg(queued.op.op).arg(queued.op.name());
        for argument in &queued.op.arguments {
            cmd.arg(argument);
        }
    }
    cmd
}

impl BatchedOp {
    fn name(&self) -> &[u8] {
        &self.record.as_bytes()[self.record.len().saturating_sub(self.name_length)..]
    }

    fn size(&self) -> usize {
        self.record.len() + self.name_length + self.arguments.iter().map(Vec::len).sum::<usize>() + 8
    }
}

/// Sends a batch. If the server has forgotten the script, loads it again without operations: a
/// caller that has meanwhile been dropped, and may have withdrawn its request, must not be granted
/// the lock after that.
async fn send(driver: Connection, cmd: Cmd) -> RedisResult<Value> {
    let reply = driver.send((&cmd).into()).await;
    if let Err(error) = &reply
        && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
    {
        let loaded = driver.send((&*redis::cmd("EVAL").arg(&BATCH.text).arg(0)).into()).await;
        if let Err(error) = loaded {
            tracing::debug!(%error, "operations cannot be batched yet: the script could not be loaded");
        }
    }
    reply
}
