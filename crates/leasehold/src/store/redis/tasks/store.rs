//! `TaskStore` implementation. One script handles a whole batch of the frequent calls: enqueue, lease,
//! heartbeat and settle.

use async_trait::async_trait;
use redis::Cmd;

use super::super::connection::POLL_INTERVAL;
use super::super::scripts::CHUNK_BYTES;
use super::call::{
    CHUNK, HEARTBEAT, LEASE, Position, QUEUES, RECOVER, RETENTION, Reply, SETTLE, Tasks, flag,
    unexpected_reply,
};
use super::codec::{self, Stored};
use super::slow_path::Expired;
use crate::Result;
use crate::model::{
    AttemptResult, Counts, Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask,
    Pause, QueueName, QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp,
    Timestamp, Ttl, WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::protocol::TaskCall;
use crate::store::{ListTasks, Page, QueueSubscription, TaskStore};

/// Maximum number of queues whose counts one script reads.
const QUEUES_PER_SCRIPT: usize = 250;

/// Returns chunks of at most [`CHUNK`] items and at most [`CHUNK_BYTES`] bytes, for one script each; a
/// single item may be larger.
fn chunks<T>(items: &[T], bytes_of: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut chunks, mut start, mut size) = (Vec::new(), 0, 0);
    for (at, item) in items.iter().enumerate() {
        let more = bytes_of(item);
        if at > start && (at - start == CHUNK || size + more > CHUNK_BYTES) {
            chunks.push(&items[start..at]);
            (start, size) = (at, 0);
        }
        size += more;
    }
    if start < items.len() {
        chunks.push(&items[start..]);
    }
    chunks
}

#[async_trait]
impl TaskStore for Tasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.enqueue_batched(new).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let mut queues: Vec<&QueueName> = request.queues.iter().collect();
        queues.sort_unstable();
        queues.dedup();
        let (mut tasks, mut bytes, mut expire_first, mut expired) = (Vec::<Task>::new(), 0, true, 0);
        loop {
            let max = (request.max as usize - tasks.len()).min(CHUNK);
            let full = LeaseTasks::MAX_BYTES - bytes;
            let waits = flag(self.notifier.local.has_subscribers());
            let with = |cmd: &mut Cmd| {
                cmd.arg(request.worker.as_uuid().as_bytes()).arg(request.ttl.as_micros()).arg(max).arg(waits);
                cmd.arg(request.begin).arg(flag(request.idle)).arg(tasks.len()).arg(flag(expire_first));
                cmd.arg(full).arg(flag(request.waits_for_locks));
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
                        Ok(expired) => u32::try_from(expired.ended.len()).unwrap_or(u32::MAX),
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
            if is_short || tasks.len() >= request.max as usize || bytes >= LeaseTasks::MAX_BYTES {
                let due: Option<[u8; 8]> = due.try_into().ok();
                let next_due = due.map(|due| (Timestamp::from_micros(u64::from_be_bytes(due)), now));
                return Ok(Leased { tasks, next_due, more, expired });
            }
        }
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let info = codec::text(Some(worker).filter(|worker| !worker.is_id_only()))?;
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

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        let mut cmd = redis::cmd("HDEL");
        cmd.arg(format!("{}workers", self.base)).arg(worker.as_uuid().as_bytes());
        self.connections.query::<u64>(&cmd).await.map(drop)
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let mut settled = vec![Settled::Lost; settle.len()];
        let (done, others): (Vec<usize>, Vec<usize>) =
            (0..settle.len()).partition(|at| matches!(settle[*at].result, AttemptResult::Done(_)));
        for chunk in chunks(&done, |at| settle[*at].result.bytes()) {
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

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        Ok(self.apply_all(TaskCall::Change, &[(id, op.clone())]).await?.remove(0))
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut left = limit as usize;
        while left > 0 {
            let batch = left.min(CHUNK);
            let Expired { ended, lost, all } = self.expire(batch).await?;
            for task in &ended {
                recovered.count(task.state);
            }
            let removed = ended.len() + lost;
            left = left.saturating_sub(removed);
            if removed == 0 || (all && removed < batch) {
                break;
            }
        }
        let mut reply = self.run_and_notify(TaskCall::Recover, &RECOVER, |_| {}).await?;
        recovered.promoted = u32::try_from(reply.number()?).map_err(|_| unexpected_reply())?;
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        let read = self.read(|cmd| _ = cmd.arg("by_id").arg("").arg(id.as_uuid().as_bytes())).await?;
        Ok(read.stored.into_iter().next().map(|Stored { task, .. }| task))
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let read = self.read(|cmd| _ = cmd.arg("by_key").arg(queue.as_str()).arg(key.as_str())).await?;
        Ok(read.stored.into_iter().next().map(|Stored { task, .. }| task))
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.list_tasks(query).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        let list = |cmd: &mut Cmd| _ = cmd.arg("list").arg(QUEUES_PER_SCRIPT);
        let (mut listed, mut counts) = self.read_queues(list).await?;
        let mut names = Vec::new();
        while !listed.is_empty() {
            names.push(QueueName::new(listed.text()?).map_err(|_| unexpected_reply())?);
        }
        let mut queues = Vec::with_capacity(names.len());
        for (number, chunk) in names.chunks(QUEUES_PER_SCRIPT).enumerate() {
            if number > 0 {
                let with = |cmd: &mut Cmd| {
                    cmd.arg("counts");
                    for queue in chunk {
                        cmd.arg(queue.as_str());
                    }
                };
                (_, counts) = self.read_queues(with).await?;
            }
            for queue in chunk {
                queues.push(queue_status(queue, &mut counts.list()?)?);
            }
        }
        queues.sort_unstable_by(|one, other| one.queue.cmp(&other.queue));
        Ok(queues)
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let pause = codec::text(pause.as_ref())?;
        let with = |cmd: &mut Cmd| _ = cmd.arg("pause").arg(queue.as_str()).arg(&pause);
        let mut reply = self.run_and_notify(TaskCall::Pause, &QUEUES, with).await?;
        Ok(reply.number()? == 1)
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        let now = self.now().await?;
        let stored: Vec<(Vec<u8>, Vec<u8>)> =
            self.connections.query(redis::cmd("HGETALL").arg(format!("{}workers", self.base))).await?;
        let status = |packed: &[u8]| {
            let (started_at, packed) = packed.split_first_chunk::<8>()?;
            let (seen_at, info) = packed.split_first_chunk::<8>()?;
            let time = |packed: &[u8; 8]| Timestamp::from_micros(u64::from_be_bytes(*packed));
            let info = serde_json::from_slice(info).ok()?;
            Some(WorkerStatus { info, started_at: time(started_at), seen_at: time(seen_at) })
        };
        let mut workers = stored
            .iter()
            .map(|(_, packed)| status(packed).ok_or_else(unexpected_reply))
            .collect::<Result<Vec<WorkerStatus>>>()?;
        workers.retain(|worker| now.since(worker.seen_at) < WorkerStatus::LISTED_FOR.as_duration());
        workers.sort_unstable_by_key(|worker| worker.info.id);
        Ok(workers)
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        self.apply_retention(TaskCall::Archive, filter).await
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        self.apply_retention(TaskCall::Purge, filter).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.connections.now(self.clock.as_ref()).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.notifier.subscribe(&self.connections, queues, POLL_INTERVAL)
    }
}

/// Reads the status of a queue from the fields of its hash.
fn queue_status(queue: &QueueName, fields: &mut Reply) -> Result<QueueStatus> {
    let (mut counts, mut paused) = (Counts::default(), None);
    while !fields.is_empty() {
        let (field, value) = (fields.text()?, fields.bytes()?);
        if field == "pause" {
            paused = Some(serde_json::from_slice(&value).map_err(|_| unexpected_reply())?);
        } else {
            let state = field.parse().ok().and_then(codec::state).ok_or_else(unexpected_reply)?;
            let count = std::str::from_utf8(&value).ok().and_then(|value| value.parse::<i64>().ok());
            let count = count.ok_or_else(unexpected_reply)?;
            // After an eviction of the counts, tasks that were counted before are subtracted from 0.
            counts.set(state, u64::try_from(count).unwrap_or(0));
        }
    }
    Ok(QueueStatus { queue: queue.clone(), counts, paused })
}

impl Tasks {
    /// Returns names of queues, and the fields of queues.
    async fn read_queues(&self, with: impl Fn(&mut Cmd) + Send + Sync) -> Result<(Reply, Reply)> {
        let mut reply = Reply::of(self.run(TaskCall::Queues, &QUEUES, with).await?)?;
        let _newly_ready = reply.next()?;
        Ok((reply.list()?, reply.list()?))
    }

    async fn settle_done(&self, done: &[&Settle]) -> Result<Vec<Settled>> {
        let with = |cmd: &mut Cmd| {
            for Settle { id, token, result: verdict } in done {
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

    async fn apply_retention(&self, call: TaskCall, filter: &FinishedFilter) -> Result<u64> {
        let mut left = filter.limit as usize;
        let mut total = 0;
        let mut position = Position::start();
        while left > 0 {
            let limit = left.min(CHUNK);
            let with = |cmd: &mut Cmd| {
                cmd.arg(call.as_str()).arg(filter.before.as_micros()).arg(limit);
                cmd.arg(filter.queue.as_ref().map_or("", QueueName::as_str));
                cmd.arg(filter.state.map(|state| (state as u8).to_string()).unwrap_or_default());
                position.write(cmd);
            };
            let mut reply = Reply::of(self.run(call, &RETENTION, with).await?)?;
            let done = usize::try_from(reply.number()?).map_err(|_| unexpected_reply())?;
            (total, left) = (total + done as u64, left - done.min(left));
            if done < limit {
                let Some(next) = reply.position()? else { break };
                position = next;
            }
        }
        Ok(total)
    }
}
