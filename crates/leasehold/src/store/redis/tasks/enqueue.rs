//! Enqueues tasks. Calls of several callers at the same time share one script: a lone call is sent at
//! once, and calls that arrive while another is in flight are sent together, by a sender on the
//! background thread.
//!
//! The tasks of one caller are added completely or not at all, and so are those of all callers that
//! share a script. To enqueue a task again changes nothing, so a caller may repeat a call whose answer
//! was lost, in whatever batch.

use redis::Cmd;

use super::super::connection::CALL_TIMEOUT;
use super::super::error::timed_out;
use super::call::{ADD, ENQUEUE, Tasks, unexpected_reply};
use super::codec;
use super::enqueue_batch::{EnqueueCall, Group, PackedTask, PendingCall, SenderGuard};
use crate::error::Result;
use crate::model::{Enqueued, NewTask};
use crate::store::batch_queue::Pending;
use crate::store::protocol::TaskCall;

impl Tasks {
    /// Enqueues the tasks of one caller, alone or together with those of others.
    pub(super) async fn enqueue_batched(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let call = EnqueueCall::pack(new);
        let in_progress = self.enqueues.begin_call();
        let runtime = if in_progress.alone { None } else { self.connections.background_runtime() };
        let Some(runtime) = runtime else { return self.enqueue_tasks(&[&call]).await };
        let (call, answer) = Pending::new(call);
        if self.enqueues.push(call) {
            runtime.spawn(run_sender(self.clone()));
        }
        match tokio::time::timeout(CALL_TIMEOUT, answer).await {
            Ok(Ok(answer)) => answer,
            // The sender has ended, or the batches before took too long.
            _ => Err(timed_out(self.connections.display_url())),
        }
    }

    /// Sends calls together, and answers them.
    async fn enqueue_together(&self, calls: Vec<PendingCall>) {
        if calls.is_empty() {
            return;
        }
        let all: Vec<&EnqueueCall> = calls.iter().map(|call| &**call).collect();
        match self.enqueue_tasks(&all).await {
            Ok(mut answers) => {
                for call in calls {
                    let others = answers.split_off(call.tasks.len().min(answers.len()));
                    call.answer(Ok(std::mem::replace(&mut answers, others)));
                }
            }
            Err(error) if calls.len() > 1 && !error.is_retryable() => {
                // One of the calls has caused the error, and no task was added: send each alone.
                for call in calls {
                    let answer = self.enqueue_tasks(&[&*call]).await;
                    call.answer(answer);
                }
            }
            Err(error) => Pending::answer_all(calls, &Err(error)),
        }
    }

    /// Enqueues the tasks of these calls in one step.
    async fn enqueue_tasks(&self, calls: &[&EnqueueCall]) -> Result<Vec<Enqueued>> {
        let tasks: Vec<&PackedTask> = calls.iter().flat_map(|call| &call.tasks).collect();
        if calls.iter().all(|call| call.plain) {
            return self.add_plain(&tasks).await;
        }
        let with = |cmd: &mut Cmd| {
            for task in &tasks {
                let payload = task.payload.as_ref().map_or("", |payload| payload.as_str());
                cmd.arg(task.id.as_uuid().as_bytes())
                    .arg(&task.arguments)
                    .arg(&task.static_part)
                    .arg(payload);
            }
        };
        let mut answers = self.run_and_notify(TaskCall::Enqueue, &ENQUEUE, with).await?.list()?;
        let answer = |task: &PackedTask, answer: &[u8]| match answer.split_first()? {
            (b'a', []) => Some(Enqueued::Added(task.id)),
            (b'd', id) => codec::id(id).map(Enqueued::Duplicate),
            (b'k', id) => codec::id(id).map(Enqueued::KeyReused),
            (b'f', id) => codec::id(id).map(Enqueued::LockQueueFull),
            _ => None,
        };
        tasks.iter().map(|task| answer(task, &answers.bytes()?).ok_or_else(unexpected_reply)).collect()
    }

    async fn add_plain(&self, tasks: &[&PackedTask]) -> Result<Vec<Enqueued>> {
        let groups = || tasks.chunk_by(|one, other| one.group == other.group);
        let with = |cmd: &mut Cmd| {
            for group in groups() {
                let Group { queue, priority, attempts } = &group[0].group;
                cmd.arg(queue.as_str()).arg(priority).arg(attempts).arg(group.len());
                for task in group {
                    cmd.arg(task.id.as_uuid().as_bytes()).arg(&task.static_part);
                }
            }
        };
        let mut shares = self.run_to_replicas(TaskCall::Enqueue, &ADD, with).await?;
        for group in groups() {
            let share = usize::try_from(shares.number()?).unwrap_or(0);
            self.notifier.local.notify(&group[0].group.queue, share);
        }
        Ok(tasks.iter().map(|task| Enqueued::Added(task.id)).collect())
    }
}

/// Sends the waiting calls until there are none.
async fn run_sender(tasks: Tasks) {
    let mut guard = SenderGuard { batcher: &tasks.enqueues, finished: false };
    while let Some(calls) = tasks.enqueues.next_batch() {
        // The task of a caller that has given up must not be added late.
        let calls = calls.into_iter().filter(Pending::caller_waits);
        let (plain, others) = calls.partition(|call| call.plain);
        tasks.enqueue_together(plain).await;
        tasks.enqueue_together(others).await;
    }
    guard.finished = true;
}
