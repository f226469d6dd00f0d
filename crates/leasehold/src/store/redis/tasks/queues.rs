//! Queues with their counts and pauses, workers, and retention.

use redis::Cmd;

use super::super::error::explain;
use super::call::{QUEUES, RETENTION, unexpected_reply};
use super::codec;
use super::store::{CHUNK, Tasks};
use crate::Result;
use crate::model::{Counts, FinishedFilter, Pause, QueueName, QueueStatus, Timestamp, WorkerStatus};
use crate::store::TaskStore;
use crate::store::protocol::TaskCall;

impl Tasks {
    pub(super) async fn list_queues(&self) -> Result<Vec<QueueStatus>> {
        let mut found = self.run_and_notify(TaskCall::Queues, &QUEUES, |_| {}).await?.list()?;
        let mut queues = Vec::new();
        while !found.is_empty() {
            let queue = QueueName::new(found.text()?).map_err(|_| unexpected_reply())?;
            let mut fields = found.list()?;
            let (mut counts, mut paused) = (Counts::default(), None);
            while !fields.is_empty() {
                let (field, value) = (fields.text()?, fields.bytes()?);
                if field == "pause" {
                    paused = Some(serde_json::from_slice(&value).map_err(|_| unexpected_reply())?);
                } else {
                    let state = field.parse().ok().and_then(codec::state).ok_or_else(unexpected_reply)?;
                    let count = std::str::from_utf8(&value).ok().and_then(|value| value.parse().ok());
                    counts.set(state, count.ok_or_else(unexpected_reply)?);
                }
            }
            queues.push(QueueStatus { queue, counts, paused });
        }
        queues.sort_unstable_by(|one, other| one.queue.cmp(&other.queue));
        Ok(queues)
    }

    pub(super) async fn set_pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let pause = codec::text(pause.as_ref())?;
        let with = |cmd: &mut Cmd| _ = cmd.arg(queue.as_str()).arg(&pause);
        let mut reply = self.run_and_notify(TaskCall::Pause, &QUEUES, with).await?;
        Ok(reply.number()? == 1)
    }

    pub(super) async fn list_workers(&self) -> Result<Vec<WorkerStatus>> {
        let now = self.now().await?;
        let stored: Vec<(Vec<u8>, Vec<u8>)> =
            self.query(redis::cmd("HGETALL").arg(format!("{}workers", self.base))).await?;
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
        workers.retain(|worker| now.since(worker.seen_at) < WorkerStatus::REMEMBERED.as_duration());
        workers.sort_unstable_by_key(|worker| worker.info.id);
        Ok(workers)
    }

    pub(super) async fn apply_retention(&self, call: TaskCall, filter: &FinishedFilter) -> Result<u64> {
        let mut left = filter.limit as usize;
        let mut total = 0;
        while left > 0 {
            let limit = left.min(CHUNK);
            let with = |cmd: &mut Cmd| {
                cmd.arg(call.as_str()).arg(filter.before.as_micros()).arg(limit);
                cmd.arg(filter.queue.as_ref().map_or("", |queue| queue.as_str()));
                cmd.arg(filter.state.map(|state| (state as u8).to_string()).unwrap_or_default());
            };
            let reply = self.run(call, &RETENTION, with).await?;
            let done: usize =
                redis::from_redis_value(reply).map_err(|error| explain(&self.display_url, error.into()))?;
            (total, left) = (total + done as u64, left - done.min(left));
            if done < limit {
                break;
            }
        }
        Ok(total)
    }
}
