//! Task fixture: helpers that add, lease and settle tasks on the two clients of a fixture.

use uuid::Uuid;

use super::Fixture;
use crate::model::{
    AttemptResult, Cancel, Enqueued, HeartbeatResult, HeldTask, Holder, LeaseTasks, Leased, Message, NewTask,
    Payload, QueueName, Reason, Retry, Settle, Settled, Task, TaskAnswer, TaskId, TaskOp, TaskState,
    TaskUpdate, Ttl, WorkerId, WorkerInfo,
};
use crate::store::{ListTasks, TaskStore};

/// Fixture for tests of tasks. Calls alternate between its two clients.
pub struct TaskFixture {
    /// Clients and clock.
    pub f: Fixture,
    turn: std::sync::atomic::AtomicU32,
}

impl From<Fixture> for TaskFixture {
    fn from(f: Fixture) -> Self {
        Self { f, turn: std::sync::atomic::AtomicU32::default() }
    }
}

/// Returns a queue by name.
pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name in a test")
}

/// Returns a worker by number.
pub fn worker(number: u128) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(number))
}

/// Returns a plain task for the queue `q`, by number: its payload is the number.
pub fn task(number: u128) -> NewTask {
    let payload = Payload::of(&number.to_string()).expect("a short payload");
    NewTask::new(TaskId::from_uuid(Uuid::from_u128(number)), queue("q"), payload)
}

impl TaskFixture {
    /// Returns the task store, alternating between the two clients.
    pub fn tasks(&self) -> &dyn TaskStore {
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let client = if turn.is_multiple_of(2) { &self.f.one } else { &self.f.two };
        client.tasks().expect("an engine that runs these cases has tasks")
    }

    /// Adds tasks. Panics unless all of them are new.
    pub async fn add(&self, new: &[NewTask]) {
        for (new, enqueued) in new.iter().zip(self.enqueue(new).await) {
            assert_eq!(enqueued, Enqueued::Added(new.id));
        }
    }

    /// Adds tasks.
    pub async fn enqueue(&self, new: &[NewTask]) -> Vec<Enqueued> {
        self.tasks().enqueue(new).await.expect("added")
    }

    /// Leases up to `max` tasks of `q` for worker `who`, for 30 seconds each.
    pub async fn lease(&self, who: u128, max: u32) -> Vec<Task> {
        self.lease_from(who, max, &["q"]).await.tasks
    }

    /// Leases tasks of other queues, like [`lease`](Self::lease).
    pub async fn lease_from(&self, who: u128, max: u32, queues: &[&str]) -> Leased {
        let queues = queues.iter().map(|name| queue(name)).collect();
        let request = LeaseTasks::new(worker(who), queues, max, Ttl::from_secs(30));
        self.tasks().lease(&request).await.expect("leased")
    }

    /// Leases up to `max` tasks of `q` for worker `who`, which has other tasks and starts the first
    /// `begin` of the leased ones.
    pub async fn lease_ahead(&self, who: u128, max: u32, begin: u32) -> Leased {
        let request = LeaseTasks::new(worker(who), vec![queue("q")], max, Ttl::from_secs(30));
        let request = LeaseTasks { begin, idle: false, ..request };
        self.tasks().lease(&request).await.expect("leased")
    }

    /// Leases up to `max` tasks of `q` for worker `who`, which has no other task and starts a task with a lock
    /// only once it has the lock.
    pub async fn lease_and_wait(&self, who: u128, max: u32) -> Vec<Task> {
        let request = LeaseTasks::new(worker(who), vec![queue("q")], max, Ttl::from_secs(30));
        let request = LeaseTasks { waits_for_locks: true, ..request };
        self.tasks().lease(&request).await.expect("leased").tasks
    }

    /// Leases all tasks of `q` for worker 1, and returns their numbers.
    pub async fn drain(&self) -> Vec<u128> {
        numbers(&self.lease(1, 100).await)
    }

    /// Settles an attempt.
    pub async fn settle(&self, task: &Task, verdict: AttemptResult) -> Settled {
        let settle = Settle { id: task.id, token: task.token, result: verdict };
        self.tasks().settle(&[settle]).await.expect("settled")[0]
    }

    /// Settles an attempt as succeeded.
    pub async fn done(&self, task: &Task) {
        assert_eq!(self.settle(task, AttemptResult::Done(None)).await, Settled::Now(TaskState::Succeeded));
    }

    /// Sends a heartbeat for one task.
    pub async fn beat(&self, task: &Task) -> HeartbeatResult {
        let held = HeldTask::new(task.id, task.token);
        let beats = self.tasks().heartbeat(&info(1), &[held], Ttl::from_secs(30)).await;
        beats.expect("heard").remove(0)
    }

    /// Applies an administrative operation.
    pub async fn change(&self, number: u128, op: TaskOp) -> (TaskAnswer, Task) {
        let changed = self.tasks().change(task(number).id, &op).await.expect("changed");
        changed.expect("there is such a task")
    }

    /// Returns a task as it is stored.
    pub async fn get(&self, number: u128) -> Task {
        self.tasks().get(task(number).id).await.expect("read").expect("there is such a task")
    }

    /// Returns the state of a task.
    pub async fn state(&self, number: u128) -> TaskState {
        self.get(number).await.state
    }

    /// Returns the numbers of the tasks in a list.
    pub async fn list(&self, query: &ListTasks) -> Vec<u128> {
        numbers(&self.tasks().list(query).await.expect("listed").items)
    }

    /// Returns the number of tasks of `q` in this state.
    pub async fn count(&self, state: TaskState) -> u64 {
        let queues = self.tasks().queues().await.expect("counted");
        queues.iter().find(|status| status.queue == queue("q")).map_or(0, |status| status.counts.get(state))
    }
}

/// Returns the numbers of these tasks.
pub fn numbers(tasks: &[Task]) -> Vec<u128> {
    tasks.iter().map(|task| task.id.as_uuid().as_u128()).collect()
}

/// Returns the description of a worker.
pub fn info(number: u128) -> WorkerInfo {
    WorkerInfo {
        id: worker(number),
        host: "host".to_owned(),
        pid: 7,
        version: "1.2.3".to_owned(),
        queues: vec![queue("q")],
        slots: 4,
        busy: 1,
        draining: false,
        every: Ttl::from_secs(10),
    }
}

/// Returns the message of a failed attempt.
pub fn why() -> Message {
    Message::new("it did not work")
}

/// Returns a cancellation by Ada.
pub fn cancel() -> TaskOp {
    TaskOp::Cancel(Cancel {
        by: ada(),
        reason: Some(Reason::new("no longer wanted").expect("a good reason")),
    })
}

/// Returns a retry by Ada.
pub fn retry() -> TaskOp {
    TaskOp::Retry(Retry { by: ada() })
}

/// Returns an update by Ada.
pub fn update(change: TaskUpdate) -> TaskOp {
    TaskOp::Update(TaskUpdate { by: Some(ada()), ..change })
}

/// Returns the name of the operator in these tests.
pub fn ada() -> Holder {
    Holder::new("ada").expect("a good name")
}
