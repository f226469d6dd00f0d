//! Table of all tasks: their order, their keys and their locks. The reference for every engine, and
//! the entire implementation of `memory:`.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::record::TaskOrder;
use super::{
    Admission, Chain, Enqueued, FinishedFilter, HeartbeatResult, HeldTask, KeyOwner, LeaseTasks, Leased,
    LockQueue, NewTask, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskOp, TaskState, WorkerId,
    WorkerInfo, WorkerStatus,
};
use crate::{Holder, QueueName, Reason, TaskKey, Timestamp, Ttl};

/// All tasks of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TaskTable {
    tasks: BTreeMap<TaskId, Task>,
    keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    queues: BTreeMap<QueueName, Queue>,
    /// Ordered by the end of the lease, or of the deadline of a runner.
    deadlines: BTreeSet<(Timestamp, TaskId)>,
    /// Finished tasks: first those that are not archived, each part ordered by the end.
    finished: BTreeSet<(bool, Timestamp, TaskId)>,
    /// Head of each chain: the one task that runs or is next to run.
    heads: BTreeMap<Chain, TaskId>,
    /// Tasks that wait for the head of their chain to end. While the head is not running, none of
    /// them precedes it in the order.
    blocked: BTreeMap<Chain, BTreeSet<TaskOrder>>,
    workers: BTreeMap<WorkerId, WorkerStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Queue {
    ready: BTreeSet<TaskOrder>,
    scheduled: BTreeSet<(Timestamp, TaskId)>,
    counts: Counts,
    paused: Option<Pause>,
}

/// Number of tasks per state; archived tasks are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counts([u64; TaskState::ALL.len()]);

impl Counts {
    /// Returns the number of tasks in this state.
    pub const fn get(&self, state: TaskState) -> u64 {
        self.0[state as usize]
    }

    /// Sets the number of tasks in this state.
    pub const fn set(&mut self, state: TaskState, count: u64) {
        self.0[state as usize] = count;
    }

    /// Returns the number of unfinished tasks.
    pub fn open(&self) -> u64 {
        TaskState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| self.get(*state)).sum()
    }
}

/// Pause of a queue, during which no tasks are leased from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pause {
    /// Holder that paused the queue.
    pub by: Holder,
    /// Reason of the pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Time at which the queue was paused.
    pub at: Timestamp,
}

/// Public view of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Name of the queue.
    pub queue: QueueName,
    /// Number of its tasks per state.
    pub counts: Counts,
    /// Pause of the queue, if it is paused.
    pub paused: Option<Pause>,
}

impl TaskTable {
    /// Maximum number of due tasks that one call makes ready.
    pub const PROMOTE: u32 = 1000;
    /// Maximum number of expired leases that a lease call ends before it selects tasks.
    pub const RECOVER: u32 = 100;

    /// Adds tasks, each independently: a key conflict of one does not affect the others.
    pub fn enqueue(&mut self, new: &[NewTask], now: Timestamp) -> Vec<Enqueued> {
        new.iter().map(|new| self.enqueue_one(new, now)).collect()
    }

    fn enqueue_one(&mut self, new: &NewTask, now: Timestamp) -> Enqueued {
        if self.tasks.contains_key(&new.id) {
            return Enqueued::Added(new.id);
        }
        let key = new.key.clone().map(|key| (new.queue.clone(), key));
        let owner = key.as_ref().and_then(|key| self.keys.get(key)).map(|id| KeyOwner::from(&self.tasks[id]));
        let Ok(admission) = new.admit(owner, |chain, _| Ok::<_, Infallible>(self.lock_queue(chain)));
        match admission {
            Admission::Refuse(answer) => return answer,
            Admission::Add { key_from: Some(earlier) } => {
                self.tasks.get_mut(&earlier).expect("a key leads to a task").key = None;
            }
            Admission::Add { key_from: None } => {}
        }
        if let Some(key) = key {
            self.keys.insert(key, new.id);
        }
        let task = Task::new(new, now);
        let chain = task.chain();
        self.add_to_indexes(task);
        self.elect(chain.as_ref(), now);
        Enqueued::Added(new.id)
    }

    fn lock_queue(&self, chain: &Chain) -> Option<LockQueue> {
        let tasks = 1 + self.blocked.get(chain).map_or(0, BTreeSet::len);
        self.heads.get(chain).map(|head| LockQueue { head: *head, tasks })
    }

    /// Leases the next tasks to a worker. If there were fewer than requested, also returns when the
    /// next task is due.
    pub fn lease(&mut self, request: &LeaseTasks, now: Timestamp) -> Leased {
        let open: Vec<QueueName> = {
            let open =
                |queue: &&QueueName| self.queues.get(*queue).is_some_and(|queue| queue.paused.is_none());
            request.queues.iter().filter(open).cloned().collect()
        };
        let expired = self.expire(Self::RECOVER, now).expired();
        self.promote(open.iter(), now);
        let (mut tasks, mut bytes, mut alone, mut more) = (Vec::new(), 0, false, false);
        while tasks.len() < request.max as usize && bytes < LeaseTasks::FULL {
            let next = open.iter().filter_map(|queue| self.queues[queue].ready.first()).min();
            let Some((_, _, id)) = next.copied() else { break };
            let task = &self.tasks[&id];
            let Some(begun) = request.gives(task, tasks.len()).filter(|_| !alone) else {
                more = true;
                break;
            };
            alone = task.runs_alone();
            self.change(id, &TaskOp::Lease { worker: request.worker, ttl: request.ttl, begun }, now);
            bytes += self.tasks[&id].bytes();
            tasks.push(self.tasks[&id].clone());
        }
        let short = !request.is_full(&tasks);
        let next_due = open.iter().filter_map(|queue| self.queues[queue].scheduled.first()).min();
        let next_due = next_due.filter(|_| short).map(|(due, _)| (*due, now));
        Leased { tasks, next_due, more, expired }
    }

    /// Processes the heartbeats of a worker.
    pub fn heartbeat(
        &mut self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
        now: Timestamp,
    ) -> Vec<HeartbeatResult> {
        if worker.says_nothing() {
            self.workers.entry(worker.id).and_modify(|status| status.seen_at = now);
        } else {
            let new = WorkerStatus { info: worker.clone(), started_at: now, seen_at: now };
            let status = self.workers.entry(worker.id).or_insert(new);
            (status.info, status.seen_at) = (worker.clone(), now);
        }
        let beat = |held: &HeldTask| match self.change(held.id, &TaskOp::Beat(held.clone(), ttl), now) {
            Some(TaskAnswer::Beat(beat)) => beat,
            _ => HeartbeatResult::Lost,
        };
        held.iter().map(beat).collect()
    }

    /// Deregisters a worker.
    pub fn deregister(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }

    /// Settles attempts, each independently.
    pub fn settle(&mut self, settle: &[Settle], now: Timestamp) -> Vec<Settled> {
        let one = |settle: &Settle| match self.change(settle.id, &TaskOp::Settle(settle.clone()), now) {
            Some(TaskAnswer::Settled(settled)) => settled,
            _ => Settled::Lost,
        };
        settle.iter().map(one).collect()
    }

    /// Applies one operation to one task; returns `None` if the task does not exist.
    pub fn change(&mut self, id: TaskId, op: &TaskOp, now: Timestamp) -> Option<TaskAnswer> {
        let mut task = self.remove_from_indexes(id)?;
        let answer = task.apply(op, now);
        let chain = task.chain();
        self.add_to_indexes(task);
        self.elect(chain.as_ref(), now);
        Some(answer)
    }

    /// Ends expired leases and expired deadlines of runners, and makes due tasks ready.
    pub fn recover(&mut self, limit: u32, now: Timestamp) -> Recovered {
        let mut recovered = self.expire(limit, now);
        let queues: Vec<QueueName> = self.queues.keys().cloned().collect();
        recovered.promoted = self.promote(queues.iter(), now);
        self.workers.retain(|_, worker| now.since(worker.seen_at) < WorkerStatus::REMEMBERED.as_duration());
        recovered
    }

    /// Ends up to `limit` expired leases and expired deadlines of runners.
    pub fn expire(&mut self, limit: u32, now: Timestamp) -> Recovered {
        let mut recovered = Recovered::default();
        let ended = self.deadlines.iter().take_while(|(end, _)| *end <= now).take(limit as usize);
        for id in ended.map(|(_, id)| *id).collect::<Vec<_>>() {
            self.change(id, &TaskOp::Expire, now);
            recovered.count(self.tasks[&id].state);
        }
        recovered
    }

    /// Returns one task.
    pub fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// Returns all tasks in the order of their ids, which is the order of creation for UUID v7.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = &Task> {
        self.tasks.values()
    }

    /// Returns the running tasks, and those whose runner waits, in the order of their deadlines.
    pub fn with_deadline(&self) -> impl Iterator<Item = &Task> {
        self.deadlines.iter().map(|(_, id)| &self.tasks[id])
    }

    /// Returns the task with this key.
    pub fn get_by_key(&self, queue: &QueueName, key: &TaskKey) -> Option<&Task> {
        self.keys.get(&(queue.clone(), key.clone())).and_then(|id| self.tasks.get(id))
    }

    /// Returns all queues.
    pub fn queues(&self) -> Vec<QueueStatus> {
        let status = |(name, queue): (&QueueName, &Queue)| QueueStatus {
            queue: name.clone(),
            counts: queue.counts,
            paused: queue.paused.clone(),
        };
        self.queues.iter().map(status).collect()
    }

    /// Pauses or resumes a queue; returns whether the queue exists.
    pub fn pause(&mut self, queue: &QueueName, pause: Option<Pause>) -> bool {
        self.queues.get_mut(queue).map(|queue| queue.paused = pause).is_some()
    }

    /// Returns all workers in the order of their ids.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerStatus> {
        self.workers.values()
    }

    /// Archives finished tasks and returns their number.
    pub fn archive(&mut self, which: &FinishedFilter) -> u64 {
        let ids = self.finished(which, &[false]);
        for id in &ids {
            let mut task = self.remove_from_indexes(*id).expect("it was just found");
            task.archived = true;
            self.add_to_indexes(task);
        }
        ids.len() as u64
    }

    /// Removes finished tasks and returns their number.
    pub fn purge(&mut self, which: &FinishedFilter) -> u64 {
        let ids = self.finished(which, &[false, true]);
        for id in &ids {
            let task = self.remove_from_indexes(*id).expect("it was just found");
            if let Some(key) = task.key {
                self.keys.remove(&(task.queue, key));
            }
        }
        ids.len() as u64
    }

    /// Returns the tasks that have finished first.
    fn finished(&self, which: &FinishedFilter, archived: &[bool]) -> Vec<TaskId> {
        let (zero, no_task) = (Timestamp::from_micros(0), TaskId::from_uuid(Uuid::nil()));
        let fits = |id: TaskId| {
            let task = &self.tasks[&id];
            which.queue.as_ref().is_none_or(|queue| task.queue == *queue)
                && which.state.is_none_or(|state| task.state == state)
        };
        let mut found = Vec::new();
        for archived in archived {
            let ended = self.finished.range((*archived, zero, no_task)..(*archived, which.before, no_task));
            let ended = ended.map(|(_, at, id)| (*at, *id)).filter(|(_, id)| fits(*id));
            found.extend(ended.take(which.limit as usize));
        }
        found.sort_unstable();
        found.into_iter().take(which.limit as usize).map(|(_, id)| id).collect()
    }

    fn promote<'a>(&mut self, queues: impl Iterator<Item = &'a QueueName>, now: Timestamp) -> u32 {
        let scheduled = queues.filter_map(|queue| self.queues.get(queue)).flat_map(|queue| &queue.scheduled);
        let mut due: Vec<_> = scheduled.filter(|(run_at, _)| *run_at <= now).copied().collect();
        due.sort_unstable();
        due.truncate(Self::PROMOTE as usize);
        for (_, id) in &due {
            self.change(*id, &TaskOp::Promote, now);
        }
        u32::try_from(due.len()).unwrap_or(u32::MAX)
    }

    /// Ensures that a chain has a head, and that no waiting task precedes a head that is not running yet.
    fn elect(&mut self, chain: Option<&Chain>, now: Timestamp) {
        let Some(chain) = chain else { return };
        let Some((_, _, first)) = self.blocked.get(chain).and_then(BTreeSet::first).copied() else { return };
        let head = self.heads.get(chain).map(|id| &self.tasks[id]);
        if self.tasks[&first].replaces(head) {
            // Without a head, the nested call elects the first task.
            let (id, op) = head.map_or((first, TaskOp::Unblock), |head| (head.id, TaskOp::Block));
            self.change(id, &op, now);
        }
    }

    /// For checkers: replaces the record with the same id and updates the indexes.
    #[cfg(feature = "testing")]
    pub fn reindex(&mut self, task: Task) {
        self.remove_from_indexes(task.id);
        self.add_to_indexes(task);
    }

    /// For checkers: edits a record in place. Of the fields that determine its place in the indexes, only the
    /// time of its end may change.
    #[cfg(feature = "testing")]
    pub fn edit(&mut self, id: TaskId, edit: impl FnOnce(&mut Task)) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let Some(end) = task.finished_at {
            self.finished.remove(&(task.archived, end, id));
        }
        edit(task);
        if let Some(end) = task.finished_at {
            self.finished.insert((task.archived, end, id));
        }
    }

    fn remove_from_indexes(&mut self, id: TaskId) -> Option<Task> {
        let task = self.tasks.remove(&id)?;
        let queue = self.queues.get_mut(&task.queue).expect("a task's queue is known");
        match task.state {
            TaskState::Scheduled => _ = queue.scheduled.remove(&(task.run_at, id)),
            TaskState::Pending => _ = queue.ready.remove(&task.order()),
            TaskState::Blocked => {
                if let Some(chain) = task.chain()
                    && let Some(waiting) = self.blocked.get_mut(&chain)
                {
                    waiting.remove(&task.order());
                    if waiting.is_empty() {
                        self.blocked.remove(&chain);
                    }
                }
            }
            TaskState::Running | TaskState::Succeeded | TaskState::Failed | TaskState::Aborted => {}
        }
        if let Some(end) = task.deadline() {
            self.deadlines.remove(&(end, id));
        }
        if let Some(end) = task.finished_at {
            self.finished.remove(&(task.archived, end, id));
        }
        if let Some(chain) = task.chain().filter(|_| task.state.takes_lock()) {
            self.heads.remove(&chain);
        }
        if !task.archived {
            queue.counts.0[task.state as usize] -= 1;
        }
        Some(task)
    }

    /// Adds a task to the table and to its indexes. A task that is ready is blocked if its chain has a head.
    fn add_to_indexes(&mut self, mut task: Task) {
        let chain = task.chain();
        if let Some(chain) = &chain {
            if task.is_ready_for_lock() && self.heads.contains_key(chain) {
                task.state = TaskState::Blocked;
            } else if task.state.takes_lock() {
                self.heads.insert(chain.clone(), task.id);
            }
        }
        if let Some(end) = task.deadline() {
            self.deadlines.insert((end, task.id));
        }
        if let Some(end) = task.finished_at {
            self.finished.insert((task.archived, end, task.id));
        }
        let queue = self.queues.entry(task.queue.clone()).or_default();
        match (task.state, chain) {
            (TaskState::Scheduled, _) => _ = queue.scheduled.insert((task.run_at, task.id)),
            (TaskState::Pending, _) => _ = queue.ready.insert(task.order()),
            (TaskState::Blocked, Some(chain)) => {
                self.blocked.entry(chain).or_default().insert(task.order());
            }
            _ => {}
        }
        if !task.archived {
            queue.counts.0[task.state as usize] += 1;
        }
        self.tasks.insert(task.id, task);
    }
}
