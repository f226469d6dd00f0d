//! Tasks in the reference table with a mutex.

use std::cmp::Reverse;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;

use super::locks::POLL;
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, TaskTable,
    Timestamp, Ttl, WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::lock_store::page_size;
use crate::store::support::mutex::lock;
use crate::store::wake::QueueNotifier;
use crate::store::{Clock, Cursor, ListTasks, Page, QueueSubscription, TaskStore};

#[derive(Debug)]
pub(super) struct MemoryTasks {
    clock: Clock,
    table: Mutex<TaskTable>,
    notifier: QueueNotifier,
    /// Interval at which a worker without tasks asks again.
    pub(super) poll: Duration,
}

impl MemoryTasks {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, table: Mutex::default(), notifier: QueueNotifier::default(), poll: POLL }
    }

    /// Notifies a worker that waits for the queue of this task, if the task is pending.
    fn notify_if_pending(&self, task: &Task) {
        if task.state == TaskState::Pending {
            self.notifier.notify(&task.queue, 1);
        }
    }
}

#[async_trait]
impl TaskStore for MemoryTasks {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        let enqueued = lock(&self.table).enqueue(new, self.clock.now());
        for new in new {
            self.notifier.notify(&new.queue, 1);
        }
        Ok(enqueued)
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let leased = lock(&self.table).lease(request, self.clock.now());
        // An expired lease may make tasks available for workers of other queues, too.
        if leased.expired > 0 {
            self.notifier.notify_all();
        }
        Ok(leased)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        Ok(lock(&self.table).heartbeat(worker, held, ttl, self.clock.now()))
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        lock(&self.table).deregister(worker);
        Ok(())
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let mut table = lock(&self.table);
        let settled = table.settle(settle, self.clock.now());
        // A task may have been requeued, or its lock may have become free.
        let freed = settle.iter().filter_map(|settle| table.get(settle.id));
        if freed.into_iter().any(|task| task.lock.is_some() || !task.state.is_terminal()) {
            self.notifier.notify_all();
        }
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let mut table = lock(&self.table);
        let answer = table.change(id, op, self.clock.now());
        let changed = answer.zip(table.get(id).cloned());
        if let Some((_, task)) = &changed {
            self.notify_if_pending(task);
        }
        Ok(changed)
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let recovered = lock(&self.table).recover(limit, self.clock.now());
        if recovered != Recovered::default() {
            self.notifier.notify_all();
        }
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        Ok(lock(&self.table).get(id).cloned())
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        Ok(lock(&self.table).get_by_key(queue, key).cloned())
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        let before: Option<TaskId> = query.after.as_ref().and_then(|after| after.0.parse().ok());
        let limit = page_size(query.limit) as usize;
        let table = lock(&self.table);
        let wanted = |task: &&Task| before.is_none_or(|before| task.id < before) && query.wants(task);
        let found: Vec<&Task> = if query.state == Some(TaskState::Running) {
            let mut running: Vec<&Task> = table.with_deadline().filter(wanted).collect();
            running.sort_unstable_by_key(|task| Reverse(task.id));
            running.truncate(limit);
            running
        } else {
            table.tasks().rev().filter(wanted).take(limit).collect()
        };
        let items: Vec<Task> = found.into_iter().cloned().map(|task| query.shown(task)).collect();
        Ok(Page::of(items, limit, |last| Cursor(last.id.to_string())))
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        Ok(lock(&self.table).queues())
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        let known = lock(&self.table).pause(queue, pause);
        self.notifier.notify_all();
        Ok(known)
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        Ok(lock(&self.table).workers().cloned().collect())
    }

    async fn archive(&self, filter: &FinishedFilter) -> Result<u64> {
        Ok(lock(&self.table).archive(filter))
    }

    async fn purge(&self, filter: &FinishedFilter) -> Result<u64> {
        Ok(lock(&self.table).purge(filter))
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.notifier.listen(queues, self.poll)
    }
}
