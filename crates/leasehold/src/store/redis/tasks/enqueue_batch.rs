//! Calls that wait to be enqueued together, with their tasks packed for the scripts.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::scripts::CHUNK_BYTES;
use super::codec;
use crate::error::Result;
use crate::model::{Enqueued, NewTask, Payload, QueueName, TaskId};
use crate::store::batch_queue::{BatchQueue, BatchSize, Pending};
use crate::store::support::mutex::lock;

/// Maximum number of tasks and of bytes in one script, because the server does nothing else
/// meanwhile. The tasks of one caller are not split.
const MAX_BATCH: BatchSize = BatchSize { count: 200, bytes: CHUNK_BYTES };
/// Number of concurrent batches. While the server works on one, the next is being filled.
const SENDERS: usize = 1;

/// Calls that wait to be sent together.
#[derive(Default)]
pub(super) struct EnqueueBatcher {
    queue: Mutex<BatchQueue<PendingCall>>,
    /// Number of calls that wait for an answer.
    in_progress: AtomicUsize,
}

pub(super) type PendingCall = Pending<EnqueueCall, Result<Vec<Enqueued>>>;

/// Tasks of one caller, as the scripts take them.
pub(super) struct EnqueueCall {
    pub(super) tasks: Vec<PackedTask>,
    /// Whether `add.lua` can enqueue all of them.
    pub(super) plain: bool,
}

pub(super) struct PackedTask {
    pub(super) id: TaskId,
    /// Tasks of the same group differ only in id and static part, if they are plain.
    pub(super) group: Group,
    /// Arguments for `enqueue.lua`; empty if the task is plain.
    pub(super) arguments: Vec<u8>,
    pub(super) static_part: Vec<u8>,
    /// Payload, if it is stored separately.
    pub(super) payload: Option<Payload>,
}

#[derive(PartialEq, Eq)]
pub(super) struct Group {
    pub(super) queue: QueueName,
    pub(super) priority: i32,
    pub(super) attempts: u32,
}

impl EnqueueBatcher {
    /// Counts a call in progress until the returned guard is dropped.
    pub(super) fn begin_call(&self) -> InProgress<'_> {
        InProgress { count: &self.in_progress, alone: self.in_progress.fetch_add(1, Ordering::Relaxed) == 0 }
    }

    /// Adds a call. Returns whether the caller must start a sender.
    pub(super) fn push(&self, call: PendingCall) -> bool {
        lock(&self.queue).push(call, SENDERS)
    }

    /// Takes the next calls. Returns `None` when there are none: then the sender must end.
    pub(super) fn next_batch(&self) -> Option<Vec<PendingCall>> {
        lock(&self.queue).next_batch(MAX_BATCH, |call| BatchSize {
            count: call.tasks.len(),
            bytes: call.tasks.iter().map(PackedTask::size).sum(),
        })
    }
}

/// Deregisters a sender that ends unexpectedly: otherwise no call would be sent any more.
pub(super) struct SenderGuard<'a> {
    pub(super) batcher: &'a EnqueueBatcher,
    pub(super) finished: bool,
}

impl Drop for SenderGuard<'_> {
    fn drop(&mut self) {
        if !self.finished {
            drop(lock(&self.batcher.queue).stop_worker());
        }
    }
}

impl EnqueueCall {
    pub(super) fn pack(new: &[NewTask]) -> Self {
        let plain = new.iter().all(codec::is_plain);
        let pack = |new: &NewTask| PackedTask {
            id: new.id,
            group: Group {
                queue: new.queue.clone(),
                priority: new.priority.get(),
                attempts: new.retries.attempts,
            },
            arguments: if plain { Vec::new() } else { codec::enqueue_arguments(new) },
            static_part: codec::record_tail(new),
            payload: codec::external_payload(&new.payload),
        };
        Self { tasks: new.iter().map(pack).collect(), plain }
    }
}

impl PackedTask {
    fn size(&self) -> usize {
        let payload = self.payload.as_ref().map_or(0, |payload| payload.as_str().len());
        self.arguments.len() + self.static_part.len() + payload
    }
}

/// Counts a call until it is dropped.
pub(super) struct InProgress<'a> {
    count: &'a AtomicUsize,
    /// Whether no other call was in progress when this one began.
    pub(super) alone: bool,
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
