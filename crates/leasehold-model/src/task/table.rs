//! Table of all tasks: their order, their keys and their locks. The reference for every engine, and
//! the entire implementation of `memory:`.

use std::collections::BTreeMap;
use std::convert::Infallible;

use uuid::Uuid;

use super::queue::{Indexes, Pause, Queue, QueueStatus};
use super::{
    Admission, Chain, Enqueued, FinishedFilter, HeartbeatResult, HeldTask, KeyOwner, LeaseTasks, Leased,
    NewTask, Recovered, Settle, Settled, Task, TaskAnswer, TaskId, TaskOp, WorkerId, WorkerInfo,
    WorkerStatus,
};
use crate::{QueueName, TaskKey, Timestamp, Ttl};

/// All tasks of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TaskTable {
    tasks: BTreeMap<TaskId, Task>,
    keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    indexes: Indexes,
    workers: BTreeMap<WorkerId, WorkerStatus>,
}

impl TaskTable {
    /// Maximum number of due tasks that one call makes ready.
    pub const MAX_PROMOTED: u32 = 1000;
    /// Maximum number of expired leases that a lease call ends before it selects tasks.
    pub const MAX_EXPIRED: u32 = 100;

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
        let Ok(admission) = new.admit(owner, |chain, _| Ok::<_, Infallible>(self.indexes.lock_queue(chain)));
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
        let mut task = Task::new(new, now);
        let chain = task.chain();
        self.indexes.add(&mut task);
        self.tasks.insert(task.id, task);
        self.elect(chain.as_ref(), now);
        Enqueued::Added(new.id)
    }

    /// Leases the next tasks to a worker. If there were fewer than requested, also returns when the
    /// next task is due.
    pub fn lease(&mut self, request: &LeaseTasks, now: Timestamp) -> Leased {
        let open: Vec<QueueName> = {
            let open = |queue: &&QueueName| {
                self.indexes.queues.get(*queue).is_some_and(|queue| queue.paused.is_none())
            };
            request.queues.iter().filter(open).cloned().collect()
        };
        let expired = self.expire(Self::MAX_EXPIRED, now).expired();
        self.promote(open.iter(), now);
        let (mut tasks, mut bytes, mut alone, mut more) = (Vec::new(), 0, false, false);
        while tasks.len() < request.max as usize && bytes < LeaseTasks::MAX_BYTES {
            let next = open.iter().filter_map(|queue| self.indexes.queues[queue].ready.first()).min();
            let Some((_, _, id)) = next.copied() else { break };
            let task = &self.tasks[&id];
            let Some(begun) = request.includes_next(task, tasks.len()).filter(|_| !alone) else {
                more = true;
                break;
            };
            alone = task.runs_alone();
            self.change(id, &TaskOp::Lease { worker: request.worker, ttl: request.ttl, begun }, now);
            bytes += self.tasks[&id].bytes();
            tasks.push(self.tasks[&id].clone());
        }
        let short = !request.is_full(&tasks);
        let next_due = open.iter().filter_map(|queue| self.indexes.queues[queue].scheduled.first()).min();
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
        if worker.is_id_only() {
            self.workers.entry(worker.id).and_modify(|status| status.seen_at = now);
        } else {
            let new = WorkerStatus { info: worker.clone(), started_at: now, seen_at: now };
            let status = self.workers.entry(worker.id).or_insert(new);
            (status.info, status.seen_at) = (worker.clone(), now);
        }
        let beat = |held: &HeldTask| match self.change(held.id, &TaskOp::Heartbeat(held.clone(), ttl), now) {
            Some(TaskAnswer::Heartbeat(beat)) => beat,
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
        let task = self.tasks.get_mut(&id)?;
        self.indexes.remove(task);
        let answer = task.apply(op, now);
        self.indexes.add(task);
        let chain = task.chain();
        self.elect(chain.as_ref(), now);
        Some(answer)
    }

    /// Ends expired leases and expired deadlines of runners, and makes due tasks ready.
    pub fn recover(&mut self, limit: u32, now: Timestamp) -> Recovered {
        let mut recovered = self.expire(limit, now);
        let queues: Vec<QueueName> = self.indexes.queues.keys().cloned().collect();
        recovered.promoted = self.promote(queues.iter(), now);
        self.workers.retain(|_, worker| now.since(worker.seen_at) < WorkerStatus::LISTED_FOR.as_duration());
        recovered
    }

    /// Ends up to `limit` expired leases and expired deadlines of runners.
    pub fn expire(&mut self, limit: u32, now: Timestamp) -> Recovered {
        let mut recovered = Recovered::default();
        let ended = self.indexes.deadlines.iter().take_while(|(end, _)| *end <= now).take(limit as usize);
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
        self.indexes.deadlines.iter().map(|(_, id)| &self.tasks[id])
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
        self.indexes.queues.iter().map(status).collect()
    }

    /// Pauses or resumes a queue; returns whether the queue exists.
    pub fn pause(&mut self, queue: &QueueName, pause: Option<Pause>) -> bool {
        self.indexes.queues.get_mut(queue).map(|queue| queue.paused = pause).is_some()
    }

    /// Returns all workers in the order of their ids.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerStatus> {
        self.workers.values()
    }

    /// Archives finished tasks and returns their number.
    pub fn archive(&mut self, which: &FinishedFilter) -> u64 {
        let ids = self.finished(which, &[false]);
        for id in &ids {
            let task = self.tasks.get_mut(id).expect("it was just found");
            self.indexes.remove(task);
            task.archived = true;
            self.indexes.add(task);
        }
        ids.len() as u64
    }

    /// Removes finished tasks and returns their number.
    pub fn purge(&mut self, which: &FinishedFilter) -> u64 {
        let ids = self.finished(which, &[false, true]);
        for id in &ids {
            let task = self.tasks.remove(id).expect("it was just found");
            self.indexes.remove(&task);
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
            let ended =
                self.indexes.finished.range((*archived, zero, no_task)..(*archived, which.before, no_task));
            let ended = ended.map(|(_, at, id)| (*at, *id)).filter(|(_, id)| fits(*id));
            found.extend(ended.take(which.limit as usize));
        }
        found.sort_unstable();
        found.into_iter().take(which.limit as usize).map(|(_, id)| id).collect()
    }

    fn promote<'a>(&mut self, queues: impl Iterator<Item = &'a QueueName>, now: Timestamp) -> u32 {
        // The tasks of a queue are ordered by their time: those that are not due are not read.
        let mut due: Vec<_> = queues
            .filter_map(|queue| self.indexes.queues.get(queue))
            .flat_map(|queue| queue.scheduled.iter().take_while(move |(run_at, _)| *run_at <= now))
            .copied()
            .collect();
        due.sort_unstable();
        due.truncate(Self::MAX_PROMOTED as usize);
        for (_, id) in &due {
            self.change(*id, &TaskOp::Promote, now);
        }
        u32::try_from(due.len()).unwrap_or(u32::MAX)
    }

    /// Ensures that a chain has a head, and that no waiting task precedes a head that is not running yet.
    fn elect(&mut self, chain: Option<&Chain>, now: Timestamp) {
        let Some(chain) = chain else { return };
        let Some(first) = self.indexes.first_blocked(chain) else { return };
        let head = self.indexes.heads.get(chain).map(|id| &self.tasks[id]);
        if self.tasks[&first].replaces(head) {
            // Without a head, the nested call elects the first task.
            let (id, op) = head.map_or((first, TaskOp::Unblock), |head| (head.id, TaskOp::Block));
            self.change(id, &op, now);
        }
    }

    /// For checkers: replaces the record with the same id and updates the indexes.
    #[cfg(feature = "testing")]
    pub fn reindex(&mut self, mut task: Task) {
        if let Some(earlier) = self.tasks.remove(&task.id) {
            self.indexes.remove(&earlier);
        }
        self.indexes.add(&mut task);
        self.tasks.insert(task.id, task);
    }

    /// For checkers: edits a record in place. Of the fields that determine its place in the indexes, only the
    /// time of its end may change.
    #[cfg(feature = "testing")]
    pub fn edit(&mut self, id: TaskId, edit: impl FnOnce(&mut Task)) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if let Some(end) = task.finished_at {
            self.indexes.finished.remove(&(task.archived, end, id));
        }
        edit(task);
        if let Some(end) = task.finished_at {
            self.indexes.finished.insert((task.archived, end, id));
        }
    }
}
