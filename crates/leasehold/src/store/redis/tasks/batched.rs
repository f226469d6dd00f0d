//! Frequent calls: enqueue, lease, heartbeat and settle. One script handles a whole batch.

use redis::Cmd;

use super::call::{ENQUEUE, HEARTBEAT, LEASE, Reply, SETTLE, unexpected_reply};
use super::codec;
use super::store::{CHUNK, CHUNK_BYTES, Chunks, Tasks};
use crate::Result;
use crate::model::{
    AttemptResult, Enqueued, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, QueueName, Settle,
    Settled, Task, TaskAnswer, TaskOp, Timestamp, Ttl, WorkerInfo,
};
use crate::store::protocol::TaskCall;

impl Tasks {
    pub(super) async fn enqueue_batch(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let packed: Vec<_> = new
            .iter()
            .map(|new| {
                (
                    codec::enqueue_arguments(new),
                    codec::record_tail(new),
                    codec::external_payload(&new.payload),
                )
            })
            .collect();
        let with = |cmd: &mut Cmd| {
            for (new, (arguments, tail, payload)) in new.iter().zip(&packed) {
                let payload = payload.as_ref().map_or("", |payload| payload.as_str());
                cmd.arg(new.id.as_uuid().as_bytes()).arg(arguments).arg(tail).arg(payload);
            }
        };
        let mut answers = self.run_and_notify(TaskCall::Enqueue, &ENQUEUE, with).await?.list()?;
        let answer = |new: &NewTask, answer: &[u8]| match answer.split_first()? {
            (b'a', []) => Some(Enqueued::Added(new.id)),
            (b'd', id) => codec::id(id).map(Enqueued::Duplicate),
            (b'k', id) => codec::id(id).map(Enqueued::KeyReused),
            (b'f', id) => codec::id(id).map(Enqueued::LockQueueFull),
            _ => None,
        };
        new.iter().map(|new| answer(new, &answers.bytes()?).ok_or_else(unexpected_reply)).collect()
    }

    pub(super) async fn lease_batch(&self, request: &LeaseTasks) -> Result<Leased> {
        let mut queues: Vec<&QueueName> = request.queues.iter().collect();
        queues.sort_unstable();
        queues.dedup();
        let (mut tasks, mut bytes, mut expire_first, mut expired) = (Vec::<Task>::new(), 0, true, 0);
        loop {
            let max = (request.max as usize - tasks.len()).min(CHUNK);
            let full = LeaseTasks::FULL - bytes;
            let waits = flag(self.notifier.has_waiting_workers());
            let with = |cmd: &mut Cmd| {
                cmd.arg(request.worker.as_uuid().as_bytes()).arg(request.ttl.as_micros()).arg(max).arg(waits);
                cmd.arg(request.begin).arg(flag(request.idle)).arg(tasks.len()).arg(flag(expire_first));
                cmd.arg(full);
                for queue in &queues {
                    cmd.arg(queue.as_str());
                }
            };
            let mut reply = self.run_and_notify(TaskCall::Lease, &LEASE, with).await?;
            let (now, due) = (reply.time()?, reply.bytes()?);
            let leased = reply.stored()?;
            let more = match reply.number()? {
                2 => {
                    // At most one batch: the others are left to the next call and to `recover`.
                    expire_first = false;
                    expired = match self.expire(CHUNK).await {
                        Ok((ended, _)) => u32::try_from(ended.len()).unwrap_or(u32::MAX),
                        // A task that cannot be read must not block the lease of others.
                        Err(error) if !error.is_retryable() => {
                            tracing::warn!(%error, "expired leases could not be ended");
                            0
                        }
                        Err(error) => return Err(error),
                    };
                    continue;
                }
                more => more == 1,
            };
            expire_first = false;
            let is_short = leased.len() < max;
            bytes += leased.iter().map(|stored| stored.task.bytes()).sum::<usize>();
            tasks.extend(leased.into_iter().map(|stored| stored.task));
            if is_short || tasks.len() >= request.max as usize || bytes >= LeaseTasks::FULL {
                let due: Option<[u8; 8]> = due.try_into().ok();
                let next_due = due.map(|due| (Timestamp::from_micros(u64::from_be_bytes(due)), now));
                return Ok(Leased { tasks, next_due, more, expired });
            }
        }
    }

    pub(super) async fn heartbeat_batch(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let info = codec::text(Some(worker).filter(|worker| !worker.says_nothing()))?;
        let mut chunks: Vec<&[HeldTask]> = held.chunks(CHUNK).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let mut results = Vec::with_capacity(held.len());
        for chunk in chunks {
            let progresses = chunk.iter().map(|held| codec::text(held.progress.as_ref()));
            let progresses = progresses.collect::<Result<Vec<_>>>()?;
            let with = |cmd: &mut Cmd| {
                cmd.arg(worker.id.as_uuid().as_bytes()).arg(&info).arg(ttl.as_micros());
                for (held, progress) in chunk.iter().zip(&progresses) {
                    cmd.arg(held.id.as_uuid().as_bytes())
                        .arg(held.token.get())
                        .arg(progress)
                        .arg(flag(held.begun));
                }
            };
            let mut reply = Reply::of(self.run(TaskCall::Heartbeat, &HEARTBEAT, with).await?)?;
            for _ in chunk {
                results.push(match reply.bytes()?.split_first() {
                    Some((b'+', [])) => HeartbeatResult::Extended(None),
                    Some((b'+', cancel)) => HeartbeatResult::Extended(Some(
                        serde_json::from_slice(cancel).map_err(|_| unexpected_reply())?,
                    )),
                    _ => HeartbeatResult::Lost,
                });
            }
        }
        Ok(results)
    }

    pub(super) async fn settle_batch(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let mut settled = vec![Settled::Lost; settle.len()];
        let (done, others): (Vec<usize>, Vec<usize>) =
            (0..settle.len()).partition(|at| matches!(settle[*at].verdict, AttemptResult::Done(_)));
        for chunk in done.chunk_by_size(CHUNK_BYTES, |at| settle[*at].verdict.bytes()) {
            let settles: Vec<&Settle> = chunk.iter().map(|at| &settle[*at]).collect();
            for (at, answer) in chunk.iter().zip(self.settle_done(&settles).await?) {
                settled[*at] = answer;
            }
        }
        let ops: Vec<_> =
            others.iter().map(|at| (settle[*at].id, TaskOp::Settle(settle[*at].clone()))).collect();
        for (at, answer) in others.iter().zip(self.apply_all(TaskCall::Settle, &ops).await?) {
            if let Some((TaskAnswer::Settled(answer), _)) = answer {
                settled[*at] = answer;
            }
        }
        Ok(settled)
    }

    async fn settle_done(&self, done: &[&Settle]) -> Result<Vec<Settled>> {
        let with = |cmd: &mut Cmd| {
            for Settle { id, token, verdict } in done {
                let result = match verdict {
                    AttemptResult::Done(Some(result)) => result.as_str(),
                    _ => "",
                };
                cmd.arg(id.as_uuid().as_bytes()).arg(token.get()).arg(result);
            }
        };
        let mut states = self.run_and_notify(TaskCall::Settle, &SETTLE, with).await?.list()?;
        let settled = |state| match state {
            -1 => Ok(Settled::Lost),
            state => codec::state(state).map(Settled::Now).ok_or_else(unexpected_reply),
        };
        done.iter().map(|_| settled(states.number()?)).collect()
    }
}

/// Converts a boolean to the form that scripts take.
const fn flag(value: bool) -> &'static str {
    if value { "1" } else { "" }
}
