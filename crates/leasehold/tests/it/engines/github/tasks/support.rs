//! Helpers of the tests of tasks.

use std::sync::Arc;

use leasehold::model::{
    AttemptResult, HeartbeatResult, HeldTask, LeaseTasks, Progress, QueueName, Settle, Settled, Task, TaskId,
    Ttl, WorkerId,
};
use leasehold::store::Store;
use leasehold::testing::task_fixture::info;

use crate::engines::github::fake::Fake;
use crate::engines::github::support::client;

/// Worker with this login's token.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) store: Arc<dyn Store>,
    pub(super) id: WorkerId,
}

/// TTL of leases in these tests.
pub(super) const TTL: Ttl = Ttl::from_secs(60);

pub(super) fn agent() -> QueueName {
    QueueName::new("agent").unwrap()
}

/// Returns the id of an issue's task.
pub(super) fn id(number: u64) -> TaskId {
    TaskId::numbered(number).unwrap()
}

pub(super) async fn worker(fake: &Fake, login: &str) -> Worker {
    let id = WorkerId::from_uuid(uuid(u128::from(fastrand::u64(1..))));
    Worker { store: client(fake, login).await, id }
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

impl Worker {
    pub(super) async fn lease(&self, max: u32) -> Vec<Task> {
        self.try_lease(max).await.unwrap()
    }

    pub(super) async fn try_lease(&self, max: u32) -> leasehold::Result<Vec<Task>> {
        let request = LeaseTasks::new(self.id, vec![agent()], max, TTL);
        self.store.tasks().unwrap().lease(&request).await.map(|leased| leased.tasks)
    }

    /// Leases the next task.
    pub(super) async fn takes(&self) -> Task {
        self.lease(1).await.pop().expect("a task")
    }

    pub(super) async fn heartbeat(&self, task: &Task, progress: Option<Progress>) -> HeartbeatResult {
        self.try_heartbeat(task, progress).await.unwrap()
    }

    pub(super) async fn try_heartbeat(
        &self,
        task: &Task,
        progress: Option<Progress>,
    ) -> leasehold::Result<HeartbeatResult> {
        let held = HeldTask { progress, ..HeldTask::new(task.id, task.token) };
        let results = self.store.tasks().unwrap().heartbeat(&info(1), &[held], TTL).await;
        results.map(|mut results| results.remove(0))
    }

    pub(super) async fn settle(&self, task: &Task, verdict: AttemptResult) -> Settled {
        self.try_settle(task, verdict).await.unwrap()
    }

    pub(super) async fn try_settle(&self, task: &Task, verdict: AttemptResult) -> leasehold::Result<Settled> {
        let settle = Settle { id: task.id, token: task.token, verdict };
        self.store.tasks().unwrap().settle(&[settle]).await.map(|settled| settled[0])
    }

    pub(super) async fn get(&self, number: u64) -> Task {
        self.store.tasks().unwrap().get(id(number)).await.unwrap().expect("a task")
    }
}
