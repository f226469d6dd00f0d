//! Helpers of the tests of tasks.

use std::sync::Arc;

use leasehold::model::{
    AttemptResult, HeartbeatResult, HeldTask, LeaseTasks, Leased, Progress, QueueName, Settle, Settled, Task,
    TaskId, Ttl, WorkerId,
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

fn agent() -> QueueName {
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

/// Whether a worker calls again at once after this answer.
pub(super) fn continues_at_once(leased: &Leased) -> bool {
    leased.next_due.is_some_and(|(due, now)| due <= now)
}

fn uuid(number: u128) -> uuid::Uuid {
    uuid::Uuid::from_u128(number)
}

impl Worker {
    pub(super) async fn lease(&self, max: u32) -> Vec<Task> {
        self.try_lease(max).await.unwrap()
    }

    pub(super) async fn try_lease(&self, max: u32) -> leasehold::Result<Vec<Task>> {
        self.call_lease(max).await.map(|leased| leased.tasks)
    }

    pub(super) async fn call_lease(&self, max: u32) -> leasehold::Result<Leased> {
        let request = LeaseTasks::new(self.id, vec![agent()], max, TTL);
        self.store.tasks().unwrap().lease(&request).await
    }

    /// Leases the next task. As a worker does, calls again while the calls take too long and each of them gets
    /// further.
    pub(super) async fn takes(&self) -> Task {
        loop {
            let mut leased = self.call_lease(1).await.unwrap();
            if let Some(task) = leased.tasks.pop() {
                return task;
            }
            assert!(continues_at_once(&leased), "no task");
        }
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
        let settle = Settle { id: task.id, token: task.token, result: verdict };
        self.store.tasks().unwrap().settle(&[settle]).await.map(|settled| settled[0])
    }

    pub(super) async fn get(&self, number: u64) -> Task {
        self.store.tasks().unwrap().get(id(number)).await.unwrap().expect("a task")
    }
}
