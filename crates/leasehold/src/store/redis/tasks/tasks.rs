//! The contract of tasks, call by call.

use std::sync::Arc;

use async_trait::async_trait;
use redis::{Cmd, FromRedisValue};

use super::super::link::Link;
use super::super::options::RedisOptions;
use super::super::store::POLL;
use super::super::trouble::explain;
use super::bell::Bell;
use super::call::{BEAT, ENQUEUE, LEASE, QUEUES, RECOVER, Reply, SETTLE, TIDY, wrong};
use super::record::{self, Stored};
use crate::Result;
use crate::model::{
    Beat, Counts, Enqueued, Finished, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName, QueueStatus,
    Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp, Ttl,
    Verdict, WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::{Arrivals, Clock, ListTasks, Page, TaskStore};

/// So many tasks are served by one script at most: while it runs, the server does nothing else.
pub(super) const CHUNK: usize = 100;

/// A worker that has said nothing for so long is not shown.
const FORGET_WORKERS: Ttl = Ttl::from_secs(3600);

/// Tasks on Redis.
pub(in super::super) struct Tasks {
    pub(super) link: Arc<Link>,
    /// The hash of all tasks. All other keys begin as it does.
    pub(super) key: String,
    base: String,
    pub(super) bell: Bell,
    pub(super) clock: Option<Clock>,
    pub(super) shown: String,
}

impl Tasks {
    pub(in super::super) fn new(link: Arc<Link>, options: &RedisOptions) -> Self {
        let base = format!("{}:{{t}}:", options.prefix);
        Self {
            link,
            key: format!("{base}tasks"),
            bell: Bell::new(&base),
            base,
            clock: options.clock.clone(),
            shown: options.shown.clone(),
        }
    }

    async fn ask<T: FromRedisValue>(&self, cmd: &Cmd) -> Result<T> {
        let reply = self.link.send(cmd.into()).await.map_err(|error| explain(&self.shown, error))?;
        redis::from_redis_value(reply).map_err(|error| explain(&self.shown, error.into()))
    }

    async fn settle_done(&self, done: &[&Settle]) -> Result<Vec<Settled>> {
        let with = |cmd: &mut Cmd| {
            for Settle { id, token, verdict } in done {
                let result = match verdict {
                    Verdict::Done(Some(result)) => result.as_str(),
                    _ => "",
                };
                cmd.arg(id.as_uuid().as_bytes()).arg(token.get()).arg(result);
            }
        };
        let mut states = self.run_and_ring(&SETTLE, with).await?.list()?;
        let settled = |state| match state {
            -1 => Ok(Settled::Lost),
            state => record::state(state).map(Settled::Now).ok_or_else(wrong),
        };
        done.iter().map(|_| settled(states.number()?)).collect()
    }

    async fn tidy(&self, what: &str, which: &Finished) -> Result<u64> {
        let mut left = which.limit as usize;
        let mut tidied = 0;
        while left > 0 {
            let limit = left.min(CHUNK);
            let with = |cmd: &mut Cmd| {
                cmd.arg(what).arg(which.before.as_micros()).arg(limit);
                cmd.arg(which.queue.as_ref().map_or("", |queue| queue.as_str()));
                cmd.arg(which.state.map(|state| (state as u8).to_string()).unwrap_or_default());
            };
            let reply = self.run(&TIDY, with).await?;
            let done: usize =
                redis::from_redis_value(reply).map_err(|error| explain(&self.shown, error.into()))?;
            (tidied, left) = (tidied + done as u64, left - done.min(left));
            if done < limit {
                break;
            }
        }
        Ok(tidied)
    }
}

#[async_trait]
impl TaskStore for Tasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let packed: Vec<_> = new
            .iter()
            .map(|new| (record::ask(new), record::names(new), record::apart(&new.payload)))
            .collect();
        let with = |cmd: &mut Cmd| {
            for (new, (ask, names, payload)) in new.iter().zip(&packed) {
                let payload = payload.as_ref().map_or("", |payload| payload.as_str());
                cmd.arg(new.id.as_uuid().as_bytes()).arg(ask).arg(names).arg(payload);
            }
        };
        let mut answers = self.run_and_ring(&ENQUEUE, with).await?.list()?;
        let answer = |new: &NewTask, answer: &[u8]| match answer.split_first()? {
            (b'a', []) => Some(Enqueued::Added(new.id)),
            (b'd', id) => record::id(id).map(Enqueued::Duplicate),
            (b'k', id) => record::id(id).map(Enqueued::KeyReused),
            _ => None,
        };
        new.iter().map(|new| answer(new, &answers.bytes()?).ok_or_else(wrong)).collect()
    }

    async fn lease(&self, ask: &LeaseTasks) -> Result<Leased> {
        let mut queues: Vec<&QueueName> = ask.queues.iter().collect();
        queues.sort_unstable();
        queues.dedup();
        let mut tasks = Vec::new();
        loop {
            let max = (ask.max as usize - tasks.len()).min(CHUNK);
            let waits = if self.bell.is_heard() { "1" } else { "" };
            let with = |cmd: &mut Cmd| {
                cmd.arg(ask.worker.as_uuid().as_bytes()).arg(ask.ttl.as_micros()).arg(max).arg(waits);
                for queue in &queues {
                    cmd.arg(queue.as_str());
                }
            };
            let mut reply = self.run_and_ring(&LEASE, with).await?;
            let (now, due) = (reply.time()?, reply.bytes()?);
            let leased = reply.stored()?;
            let short = leased.len() < max;
            tasks.extend(leased.into_iter().map(|stored| stored.task));
            if short || tasks.len() >= ask.max as usize {
                let due: Option<[u8; 8]> = due.try_into().ok();
                let next_due = due.map(|due| (Timestamp::from_micros(u64::from_be_bytes(due)), now));
                return Ok(Leased { tasks, next_due });
            }
        }
    }

    async fn heartbeat(&self, worker: &WorkerInfo, held: &[HeldTask], ttl: Ttl) -> Result<Vec<Beat>> {
        let info = record::text(Some(worker))?;
        let mut chunks: Vec<&[HeldTask]> = held.chunks(CHUNK).collect();
        if chunks.is_empty() {
            chunks.push(&[]);
        }
        let mut beats = Vec::with_capacity(held.len());
        for chunk in chunks {
            let said = chunk.iter().map(|held| record::text(held.progress.as_ref()));
            let said = said.collect::<Result<Vec<_>>>()?;
            let with = |cmd: &mut Cmd| {
                cmd.arg(worker.id.as_uuid().as_bytes()).arg(&info).arg(ttl.as_micros());
                for (held, progress) in chunk.iter().zip(&said) {
                    cmd.arg(held.id.as_uuid().as_bytes()).arg(held.token.get()).arg(progress);
                }
            };
            let mut reply = Reply::of(self.run(&BEAT, with).await?)?;
            for _ in chunk {
                beats.push(match reply.bytes()?.split_first() {
                    Some((b'+', [])) => Beat::Kept(None),
                    Some((b'+', asked)) => {
                        Beat::Kept(Some(serde_json::from_slice(asked).map_err(|_| wrong())?))
                    }
                    _ => Beat::Lost,
                });
            }
        }
        Ok(beats)
    }

    async fn leave(&self, worker: WorkerId) -> Result<()> {
        let mut cmd = redis::cmd("HDEL");
        cmd.arg(format!("{}workers", self.base)).arg(worker.as_uuid().as_bytes());
        self.ask::<u64>(&cmd).await.map(drop)
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let mut settled = vec![Settled::Lost; settle.len()];
        let (done, others): (Vec<usize>, Vec<usize>) =
            (0..settle.len()).partition(|at| matches!(settle[*at].verdict, Verdict::Done(_)));
        for chunk in done.chunks(CHUNK) {
            let settles: Vec<&Settle> = chunk.iter().map(|at| &settle[*at]).collect();
            for (at, answer) in chunk.iter().zip(self.settle_done(&settles).await?) {
                settled[*at] = answer;
            }
        }
        let ops: Vec<_> =
            others.iter().map(|at| (settle[*at].id, TaskOp::Settle(settle[*at].clone()))).collect();
        for (at, answer) in others.iter().zip(self.apply_all(&ops).await?) {
            if let Some((TaskAnswer::Settled(answer), task)) = answer {
                // Where it stands is decided when it is stored: its lock may be taken.
                settled[*at] = match answer {
                    Settled::Now(_) => Settled::Now(task.state),
                    Settled::Lost => Settled::Lost,
                };
            }
        }
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        Ok(self.apply_all(&[(id, op.clone())]).await?.remove(0))
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut left = limit as usize;
        while left > 0 {
            let most = left.min(CHUNK);
            let ended = self.expire(most).await?;
            for task in &ended {
                match task.state {
                    TaskState::Failed => recovered.failed += 1,
                    TaskState::Aborted => recovered.aborted += 1,
                    _ => recovered.returned += 1,
                }
            }
            left -= ended.len();
            if ended.len() < most {
                break;
            }
        }
        let mut reply = self.run_and_ring(&RECOVER, |_| {}).await?;
        recovered.promoted = u32::try_from(reply.number()?).map_err(|_| wrong())?;
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        let (_, stored) = self.read(|cmd| _ = cmd.arg("these").arg(id.as_uuid().as_bytes())).await?;
        Ok(stored.into_iter().next().map(|Stored { task, .. }| task))
    }

    async fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        let (_, stored) = self.read(|cmd| _ = cmd.arg("key").arg(queue.as_str()).arg(key.as_str())).await?;
        Ok(stored.into_iter().next().map(|Stored { task, .. }| task))
    }

    async fn list(&self, ask: &ListTasks) -> Result<Page<Task>> {
        self.page(ask).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        let mut found = self.run_and_ring(&QUEUES, |_| {}).await?.list()?;
        let mut queues = Vec::new();
        while !found.is_empty() {
            let queue = QueueName::new(found.text()?).map_err(|_| wrong())?;
            let mut fields = found.list()?;
            let (mut counts, mut paused) = (Counts::default(), None);
            while !fields.is_empty() {
                let (field, value) = (fields.text()?, fields.bytes()?);
                if field == "pause" {
                    paused = Some(serde_json::from_slice(&value).map_err(|_| wrong())?);
                } else {
                    let state = field.parse().ok().and_then(record::state).ok_or_else(wrong)?;
                    let count = std::str::from_utf8(&value).ok().and_then(|value| value.parse().ok());
                    counts.set(state, count.ok_or_else(wrong)?);
                }
            }
            queues.push(QueueStatus { queue, counts, paused });
        }
        queues.sort_unstable_by(|one, other| one.queue.cmp(&other.queue));
        Ok(queues)
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let pause = record::text(pause.as_ref())?;
        let mut reply = self.run_and_ring(&QUEUES, |cmd| _ = cmd.arg(queue.as_str()).arg(&pause)).await?;
        Ok(reply.number()? == 1)
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        let now = self.now().await?;
        let known: Vec<(Vec<u8>, Vec<u8>)> =
            self.ask(redis::cmd("HGETALL").arg(format!("{}workers", self.base))).await?;
        let status = |said: &[u8]| {
            let (started_at, said) = said.split_first_chunk::<8>()?;
            let (seen_at, info) = said.split_first_chunk::<8>()?;
            let time = |packed: &[u8; 8]| Timestamp::from_micros(u64::from_be_bytes(*packed));
            let info = serde_json::from_slice(info).ok()?;
            Some(WorkerStatus { info, started_at: time(started_at), seen_at: time(seen_at) })
        };
        let mut workers = known
            .iter()
            .map(|(_, said)| status(said).ok_or_else(wrong))
            .collect::<Result<Vec<WorkerStatus>>>()?;
        workers.retain(|worker| now.since(worker.seen_at) < FORGET_WORKERS.as_duration());
        workers.sort_unstable_by_key(|worker| worker.info.id);
        Ok(workers)
    }

    async fn archive(&self, which: &Finished) -> Result<u64> {
        self.tidy("archive", which).await
    }

    async fn purge(&self, which: &Finished) -> Result<u64> {
        self.tidy("purge", which).await
    }

    async fn now(&self) -> Result<Timestamp> {
        if let Some(clock) = &self.clock {
            return Ok(clock.now());
        }
        let (seconds, micros): (u64, u64) = self.ask(&redis::cmd("TIME")).await?;
        Ok(Timestamp::from_micros(seconds * 1_000_000 + micros))
    }

    fn arrivals(&self, queues: &[QueueName]) -> Arrivals {
        self.bell.listen(&self.link, queues, POLL)
    }
}
