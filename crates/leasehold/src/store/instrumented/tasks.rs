//! Tasks of an instrumented store.

use async_trait::async_trait;

use super::op::Op;
use super::store::InstrumentedStore;
use crate::Result;
use crate::model::{
    Enqueued, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, Leased, NewTask, Pause, QueueName,
    QueueStatus, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskKey, TaskOp, Timestamp, Ttl,
    WorkerId, WorkerInfo, WorkerStatus,
};
use crate::store::{ListTasks, Page, QueueSubscription, TaskStore};

impl InstrumentedStore {
    fn inner_tasks(&self) -> &dyn TaskStore {
        self.store.tasks().expect("only a store that has tasks is asked for them")
    }
}

#[async_trait]
impl TaskStore for InstrumentedStore {
    async fn enqueue(&self, new: &[NewTask]) -> Result<Vec<Enqueued>> {
        self.timed(Op::TaskEnqueue, self.inner_tasks().enqueue(new)).await
    }

    async fn lease(&self, request: &LeaseTasks) -> Result<Leased> {
        let leased = self.timed(Op::TaskLease, self.inner_tasks().lease(request)).await?;
        self.counters.task_leases.add(leased.tasks.len() as u64);
        self.counters.task_leases_expired.add(leased.expired.into());
        Ok(leased)
    }

    async fn heartbeat(
        &self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
    ) -> Result<Vec<HeartbeatResult>> {
        let call = self.inner_tasks().heartbeat(worker, held, ttl);
        let beats = self.timed(Op::TaskHeartbeat, call).await?;
        let lost = beats.iter().filter(|beat| **beat == HeartbeatResult::Lost).count();
        self.counters.task_lease_conflicts.add(lost as u64);
        Ok(beats)
    }

    async fn deregister(&self, worker: WorkerId) -> Result<()> {
        self.timed(Op::TaskLeave, self.inner_tasks().deregister(worker)).await
    }

    async fn settle(&self, settle: &[Settle]) -> Result<Vec<Settled>> {
        let settled = self.timed(Op::TaskSettle, self.inner_tasks().settle(settle)).await?;
        let lost = settled.iter().filter(|settled| **settled == Settled::Lost).count();
        self.counters.task_lease_conflicts.add(lost as u64);
        Ok(settled)
    }

    async fn change(&self, id: TaskId, op: &TaskOp) -> Result<Option<(TaskAnswer, Task)>> {
        let answer = self.timed(Op::TaskChange, self.inner_tasks().change(id, op)).await?;
        let conflict = matches!(answer, Some((TaskAnswer::VersionConflict(_), _)));
        self.counters.task_version_conflicts.add(conflict.into());
        Ok(answer)
    }

    async fn recover(&self, limit: u32) -> Result<Recovered> {
        let recovered = self.timed(Op::TaskRecover, self.inner_tasks().recover(limit)).await?;
        self.counters.task_leases_expired.add(recovered.expired().into());
        Ok(recovered)
    }

    async fn get(&self, id: TaskId) -> Result<Option<Task>> {
        self.timed(Op::TaskGet, self.inner_tasks().get(id)).await
    }

    async fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Result<Option<Task>> {
        self.timed(Op::TaskGet, self.inner_tasks().get_by_key(queue, key)).await
    }

    async fn list(&self, query: &ListTasks) -> Result<Page<Task>> {
        self.timed(Op::TaskList, self.inner_tasks().list(query)).await
    }

    async fn queues(&self) -> Result<Vec<QueueStatus>> {
        self.timed(Op::TaskQueues, self.inner_tasks().queues()).await
    }

    async fn queue(&self, queue: &QueueName) -> Result<Option<QueueStatus>> {
        self.timed(Op::TaskQueues, self.inner_tasks().queue(queue)).await
    }

    async fn pause(&self, queue: &QueueName, pause: Option<Pause>) -> Result<bool> {
        self.timed(Op::TaskPause, self.inner_tasks().pause(queue, pause)).await
    }

    async fn workers(&self) -> Result<Vec<WorkerStatus>> {
        self.timed(Op::TaskWorkers, self.inner_tasks().workers()).await
    }

    async fn archive(&self, which: &FinishedFilter) -> Result<u64> {
        self.timed(Op::TaskArchive, self.inner_tasks().archive(which)).await
    }

    async fn purge(&self, which: &FinishedFilter) -> Result<u64> {
        self.timed(Op::TaskPurge, self.inner_tasks().purge(which)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.timed(Op::TaskNow, self.inner_tasks().now()).await
    }

    fn subscribe_queues(&self, queues: &[QueueName]) -> QueueSubscription {
        self.inner_tasks().subscribe_queues(queues)
    }
}
