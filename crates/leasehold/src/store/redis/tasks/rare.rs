//! Slow path: reads tasks, applies the rules of leasehold-model, and stores the tasks if they have
//! not changed meanwhile.

use redis::Cmd;

use super::call::{Read, SWAP, wrong};
use super::record::{self, Stored};
use super::store::{CHUNK, Tasks};
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Task, TaskAnswer, TaskId, TaskOp, Timestamp};
use crate::store::protocol::TaskCall;

/// Maximum number of consecutive conflicts with other clients.
const TRIES: u32 = 20;

/// Task after an operation or unchanged, with the answer; `None` if it does not exist.
type Applied = Option<(TaskAnswer, Task)>;

/// Change to be stored.
struct Swap {
    /// Index of the operation.
    at: usize,
    answer: TaskAnswer,
    task: Task,
    read: Vec<u8>,
    packed: record::Packed,
}

impl Tasks {
    /// Applies an operation to each of these tasks. Returns `None` for tasks that do not exist.
    pub(super) async fn apply_all(&self, call: TaskCall, ops: &[(TaskId, TaskOp)]) -> Result<Vec<Applied>> {
        let mut applied: Vec<Applied> = vec![None; ops.len()];
        for (chunk, applied) in ops.chunks(CHUNK).zip(applied.chunks_mut(CHUNK)) {
            let mut open: Vec<usize> = (0..chunk.len()).collect();
            let mut tries = 0;
            while !open.is_empty() {
                let before = open.len();
                open = self.apply_once(call, chunk, applied, &open).await?;
                // Some may be left only because they were too large to be read together.
                tries = if open.len() < before { 0 } else { tries + 1 };
                if tries > TRIES {
                    return Err(self.too_busy());
                }
            }
        }
        Ok(applied)
    }

    /// Tries the open operations once; returns those that conflicted with another client or were
    /// not read yet.
    async fn apply_once(
        &self,
        call: TaskCall,
        ops: &[(TaskId, TaskOp)],
        applied: &mut [Applied],
        open: &[usize],
    ) -> Result<Vec<usize>> {
        let which = |cmd: &mut Cmd| {
            cmd.arg("these");
            for at in open {
                cmd.arg(ops[*at].0.as_uuid().as_bytes());
            }
        };
        let Read { now, stored, looked_at, .. } = self.read(which).await?;
        let mut swaps = Vec::new();
        for Stored { task, record } in stored {
            let known = open.iter().find(|at| ops[**at].0 == task.id);
            let at = *known.ok_or_else(wrong)?;
            match changed(&task, &ops[at].1, now) {
                (answer, task, false) => applied[at] = Some((answer, task)),
                (answer, task, true) => {
                    let packed = record::pack(&task)?;
                    swaps.push(Swap { at, answer, task, read: record, packed });
                }
            }
        }
        let mut again = self.store(call, swaps, applied).await?;
        again.extend(&open[looked_at..]);
        Ok(again)
    }

    /// Expires up to `limit` overdue leases. Returns these tasks, and whether all candidates were
    /// examined: large ones do not fit into one reply.
    pub(super) async fn expire(&self, limit: usize) -> Result<(Vec<Task>, bool)> {
        let Read { now, stored, all, .. } = self.read(|cmd| _ = cmd.arg("expired").arg(limit)).await?;
        let mut applied: Vec<Applied> = vec![None; stored.len()];
        let mut swaps = Vec::new();
        for (at, Stored { task, record }) in stored.into_iter().enumerate() {
            if let (answer, task, true) = changed(&task, &TaskOp::Expire, now) {
                let packed = record::pack(&task)?;
                swaps.push(Swap { at, answer, task, read: record, packed });
            }
        }
        let ids: Vec<(usize, TaskId)> = swaps.iter().map(|swap| (swap.at, swap.task.id)).collect();
        let changed_meanwhile = self.store(TaskCall::Recover, swaps, &mut applied).await?;
        // Another client was faster, and mostly nothing is left to do; or the expiry of another
        // task of this batch has made this one the head of its lock.
        let again: Vec<_> = ids.into_iter().filter(|(at, _)| changed_meanwhile.contains(at)).collect();
        let ops: Vec<_> = again.iter().map(|(_, id)| (*id, TaskOp::Expire)).collect();
        for ((at, _), ended) in again.into_iter().zip(self.apply_all(TaskCall::Recover, &ops).await?) {
            applied[at] = ended.filter(|(answer, _)| *answer == TaskAnswer::Done);
        }
        Ok((applied.into_iter().flatten().map(|(_, task)| task).collect(), all))
    }

    async fn store(&self, call: TaskCall, swaps: Vec<Swap>, applied: &mut [Applied]) -> Result<Vec<usize>> {
        if swaps.is_empty() {
            return Ok(Vec::new());
        }
        let with = |cmd: &mut Cmd| {
            for Swap { task, read, packed, .. } in &swaps {
                let payload = packed.payload.as_ref().map_or("", |payload| payload.as_str());
                cmd.arg(task.id.as_uuid().as_bytes()).arg(read).arg(&packed.record).arg(payload);
            }
        };
        let mut states = self.run_and_ring(call, &SWAP, with).await?.list()?;
        let mut clashes = Vec::new();
        for Swap { at, answer, mut task, .. } in swaps {
            match states.number()? {
                -1 => clashes.push(at),
                // The stored state may differ from the requested one: the lock of the task may be
                // held.
                state => {
                    task.state = record::state(state).ok_or_else(wrong)?;
                    applied[at] = Some((answer, task));
                }
            }
        }
        Ok(clashes)
    }

    fn too_busy(&self) -> Error {
        let message = format!("a task on the store {} changes too often to be changed", self.shown);
        Error::store(StoreErrorKind::Unavailable, message, "try again")
    }
}

/// Returns the answer, the task after the operation, and whether it has changed.
fn changed(task: &Task, op: &TaskOp, now: Timestamp) -> (TaskAnswer, Task, bool) {
    let mut after = task.clone();
    let answer = after.apply(op, now);
    let differs = after != *task;
    (answer, after, differs)
}
