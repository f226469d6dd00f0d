//! Slow path: reads tasks, applies the rules, and stores the tasks if they have not changed.

use redis::Cmd;

use super::call::{CHUNK, Read, SLOW_PATH, Tasks, unexpected_reply};
use super::codec::{self, Stored};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Task, TaskAnswer, TaskId, TaskOp, Timestamp};
use crate::store::protocol::TaskCall;

/// Maximum number of consecutive conflicts with other clients.
const MAX_CONFLICTS: u32 = 20;

/// Task after an operation or unchanged, with the answer; `None` if it does not exist.
type Applied = Option<(TaskAnswer, Task)>;

/// Result of one search for overdue leases.
pub(super) struct Expired {
    /// Tasks whose lease, or the deadline of whose runner, was ended.
    pub(super) ended: Vec<Task>,
    /// Number of tasks whose record the server has lost: their ids were removed.
    pub(super) lost: usize,
    /// Whether all candidates were examined: large ones do not fit into one reply.
    pub(super) all: bool,
}

struct Change {
    /// Index of the operation.
    at: usize,
    answer: TaskAnswer,
    task: Task,
    read: Vec<u8>,
    packed: codec::Packed,
}

impl Change {
    /// Packs a task that was read as `record` and has changed from `before`. A payload that is stored
    /// separately and has not changed is not written again.
    fn new(at: usize, answer: TaskAnswer, before: &Task, task: Task, record: Vec<u8>) -> Result<Self> {
        let mut packed = codec::pack(&task)?;
        if task.payload == before.payload {
            packed.payload = None;
        }
        Ok(Self { at, answer, task, read: record, packed })
    }
}

impl Tasks {
    /// Applies an operation to each of these tasks. Returns `None` for tasks that do not exist.
    pub(super) async fn apply_all(&self, call: TaskCall, ops: &[(TaskId, TaskOp)]) -> Result<Vec<Applied>> {
        let mut applied: Vec<Applied> = vec![None; ops.len()];
        for (chunk, applied) in ops.chunks(CHUNK).zip(applied.chunks_mut(CHUNK)) {
            let mut remaining: Vec<usize> = (0..chunk.len()).collect();
            let mut conflicts = 0;
            while !remaining.is_empty() {
                let before = remaining.len();
                remaining = self.apply_once(call, chunk, applied, &remaining).await?;
                // Some may be left only because they were too large to be read together.
                conflicts = if remaining.len() < before { 0 } else { conflicts + 1 };
                if conflicts > MAX_CONFLICTS {
                    return Err(self.too_many_conflicts());
                }
            }
        }
        Ok(applied)
    }

    /// Tries the remaining operations once; returns those that conflicted with another client or were
    /// not read yet.
    async fn apply_once(
        &self,
        call: TaskCall,
        ops: &[(TaskId, TaskOp)],
        applied: &mut [Applied],
        remaining: &[usize],
    ) -> Result<Vec<usize>> {
        let by_id = |cmd: &mut Cmd| {
            cmd.arg("by_id").arg("");
            for at in remaining {
                cmd.arg(ops[*at].0.as_uuid().as_bytes());
            }
        };
        let Read { now, stored, examined, .. } = self.read(by_id).await?;
        let mut changes = Vec::new();
        for Stored { task, record } in stored {
            let known = remaining.iter().find(|at| ops[**at].0 == task.id);
            let at = *known.ok_or_else(unexpected_reply)?;
            match changed(&task, &ops[at].1, now) {
                (answer, after, false) => applied[at] = Some((answer, after)),
                (answer, after, true) => changes.push(Change::new(at, answer, &task, after, record)?),
            }
        }
        let mut retries = self.store(call, changes, applied).await?;
        retries.extend(&remaining[examined..]);
        Ok(retries)
    }

    /// Expires up to `limit` overdue leases.
    pub(super) async fn expire(&self, limit: usize) -> Result<Expired> {
        let Read { now, stored, examined, all } = self.read(|cmd| _ = cmd.arg("expired").arg(limit)).await?;
        let lost = examined.saturating_sub(stored.len());
        let mut applied: Vec<Applied> = vec![None; stored.len()];
        let mut changes = Vec::new();
        for (at, Stored { task, record }) in stored.into_iter().enumerate() {
            if let (answer, after, true) = changed(&task, &TaskOp::Expire, now) {
                changes.push(Change::new(at, answer, &task, after, record)?);
            }
        }
        let ids: Vec<(usize, TaskId)> = changes.iter().map(|change| (change.at, change.task.id)).collect();
        let changed_meanwhile = self.store(TaskCall::Recover, changes, &mut applied).await?;
        // Another client was faster, and mostly nothing is left to do; or the expiry of another
        // task of this batch has made this one the head of its lock.
        let retries: Vec<_> = ids.into_iter().filter(|(at, _)| changed_meanwhile.contains(at)).collect();
        let ops: Vec<_> = retries.iter().map(|(_, id)| (*id, TaskOp::Expire)).collect();
        for ((at, _), ended) in retries.into_iter().zip(self.apply_all(TaskCall::Recover, &ops).await?) {
            applied[at] = ended.filter(|(answer, _)| *answer == TaskAnswer::Done);
        }
        Ok(Expired { ended: applied.into_iter().flatten().map(|(_, task)| task).collect(), lost, all })
    }

    async fn store(
        &self,
        call: TaskCall,
        changes: Vec<Change>,
        applied: &mut [Applied],
    ) -> Result<Vec<usize>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let with = |cmd: &mut Cmd| {
            for Change { task, read, packed, .. } in &changes {
                let payload = packed.payload.as_ref().map_or("", |payload| payload.as_str());
                cmd.arg(task.id.as_uuid().as_bytes()).arg(read).arg(&packed.record).arg(payload);
            }
        };
        let mut states = self.run_and_notify(call, &SLOW_PATH, with).await?.list()?;
        let mut conflicts = Vec::new();
        for Change { at, answer, mut task, .. } in changes {
            match states.number()? {
                -1 => conflicts.push(at),
                // The stored state may be another one: the lock of the task may be held.
                state => {
                    task.state = codec::state(state).ok_or_else(unexpected_reply)?;
                    applied[at] = Some((answer, task));
                }
            }
        }
        Ok(conflicts)
    }

    fn too_many_conflicts(&self) -> Error {
        let message = format!(
            "a task on the store {} cannot be changed: too many concurrent changes",
            self.connections.display_url()
        );
        Error::store(StoreErrorKind::Unavailable, message, "retry")
    }
}

/// Returns the answer, the task after the operation, and whether it has changed.
fn changed(task: &Task, op: &TaskOp, now: Timestamp) -> (TaskAnswer, Task, bool) {
    let mut after = task.clone();
    let answer = after.apply(op, now);
    let differs = after != *task;
    (answer, after, differs)
}
