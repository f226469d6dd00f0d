//! Tasks in a test: short ways to add, lease and settle them over the two clients of a fixture.

use uuid::Uuid;

use super::Fixture;
use crate::model::{
    Beat, Cancel, Change, Enqueued, HeldTask, Holder, LeaseTasks, Leased, NewTask, Note, Payload, QueueName,
    Reason, Retry, Settle, Settled, Task, TaskAnswer, TaskId, TaskOp, TaskState, Ttl, Verdict, WorkerId,
    WorkerInfo,
};
use crate::store::{ListTasks, TaskStore};

/// A fixture whose tasks are of interest. Calls go over its two clients by turns.
pub struct Shop {
    /// Clients and clock.
    pub f: Fixture,
    turn: std::sync::atomic::AtomicU32,
}

impl From<Fixture> for Shop {
    fn from(f: Fixture) -> Self {
        Self { f, turn: std::sync::atomic::AtomicU32::default() }
    }
}

/// A queue by name.
pub fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a good name in a test")
}

/// A worker by number.
pub fn worker(number: u128) -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(number))
}

/// A plain task for the queue `q`, by number: its payload is the number.
pub fn task(number: u128) -> NewTask {
    let payload = Payload::of(&number.to_string()).expect("a short payload");
    NewTask::new(TaskId::from_uuid(Uuid::from_u128(number)), queue("q"), payload)
}

impl Shop {
    /// The store, over one client and the other by turns.
    pub fn tasks(&self) -> &dyn TaskStore {
        let turn = self.turn.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let client = if turn.is_multiple_of(2) { &self.f.one } else { &self.f.two };
        client.tasks().expect("an engine that runs these cases has tasks")
    }

    /// Adds tasks that must all be new.
    pub async fn add(&self, new: &[NewTask]) {
        for (new, enqueued) in new.iter().zip(self.enqueue(new).await) {
            assert_eq!(enqueued, Enqueued::Added(new.id));
        }
    }

    /// Adds tasks.
    pub async fn enqueue(&self, new: &[NewTask]) -> Vec<Enqueued> {
        self.tasks().enqueue(new).await.expect("added")
    }

    /// Worker `who` asks for up to `max` tasks of `q`, for 30 seconds each.
    pub async fn lease(&self, who: u128, max: u32) -> Vec<Task> {
        self.lease_from(who, max, &["q"]).await.tasks
    }

    /// The same from other queues.
    pub async fn lease_from(&self, who: u128, max: u32, queues: &[&str]) -> Leased {
        let queues = queues.iter().map(|name| queue(name)).collect();
        let ask = LeaseTasks::new(worker(who), queues, max, Ttl::from_secs(30));
        self.tasks().lease(&ask).await.expect("leased")
    }

    /// Worker `who`, which has other tasks, asks for up to `max` tasks of `q` and starts the first `begin` of them.
    pub async fn lease_ahead(&self, who: u128, max: u32, begin: u32) -> Leased {
        let ask = LeaseTasks::new(worker(who), vec![queue("q")], max, Ttl::from_secs(30));
        let ask = LeaseTasks { begin, idle: false, ..ask };
        self.tasks().lease(&ask).await.expect("leased")
    }

    /// The numbers of the tasks that worker 1 gets when it asks for all of `q`.
    pub async fn drain(&self) -> Vec<u128> {
        numbers(&self.lease(1, 100).await)
    }

    /// Ends an attempt.
    pub async fn settle(&self, task: &Task, verdict: Verdict) -> Settled {
        let settle = Settle { id: task.id, token: task.token, verdict };
        self.tasks().settle(&[settle]).await.expect("settled")[0]
    }

    /// Ends an attempt well.
    pub async fn done(&self, task: &Task) {
        assert_eq!(self.settle(task, Verdict::Done(None)).await, Settled::Now(TaskState::Succeeded));
    }

    /// A sign of life for one task.
    pub async fn beat(&self, task: &Task) -> Beat {
        let held = HeldTask::new(task.id, task.token);
        let beats = self.tasks().heartbeat(&info(1), &[held], Ttl::from_secs(30)).await;
        beats.expect("heard").remove(0)
    }

    /// Something that a person does.
    pub async fn change(&self, number: u128, op: TaskOp) -> (TaskAnswer, Task) {
        let changed = self.tasks().change(task(number).id, &op).await.expect("changed");
        changed.expect("there is such a task")
    }

    /// A task as it is stored.
    pub async fn get(&self, number: u128) -> Task {
        self.tasks().get(task(number).id).await.expect("read").expect("there is such a task")
    }

    /// Where a task stands.
    pub async fn state(&self, number: u128) -> TaskState {
        self.get(number).await.state
    }

    /// The numbers of the tasks in a list.
    pub async fn list(&self, ask: &ListTasks) -> Vec<u128> {
        numbers(&self.tasks().list(ask).await.expect("listed").items)
    }

    /// How many tasks of `q` are in this state.
    pub async fn count(&self, state: TaskState) -> u64 {
        let queues = self.tasks().queues().await.expect("counted");
        queues.iter().find(|status| status.queue == queue("q")).map_or(0, |status| status.counts.get(state))
    }
}

/// The numbers of tasks.
pub fn numbers(tasks: &[Task]) -> Vec<u128> {
    tasks.iter().map(|task| task.id.as_uuid().as_u128()).collect()
}

/// What a worker says about itself.
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

/// Why an attempt failed.
pub fn why() -> Note {
    Note::new("it did not work")
}

/// Ada wants it stopped.
pub fn cancel() -> TaskOp {
    TaskOp::Cancel(Cancel {
        by: ada(),
        reason: Some(Reason::new("no longer wanted").expect("a good reason")),
    })
}

/// Ada wants it tried again.
pub fn retry() -> TaskOp {
    TaskOp::Retry(Retry { by: ada() })
}

/// Ada changes it.
pub fn update(change: Change) -> TaskOp {
    TaskOp::Update(Change { by: Some(ada()), ..change })
}

/// Somebody.
pub fn ada() -> Holder {
    Holder::new("ada").expect("a good name")
}
