//! All tasks together: who is next, whose key it is, whose lock is taken. The reference for every engine, and the whole
//! of `memory:`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    Beat, Chain, Enqueued, Finished, HeldTask, LeaseTasks, Leased, NewTask, Recovered, Reuse, Settle,
    Settled, Task, TaskAnswer, TaskId, TaskOp, TaskState, WorkerId, WorkerInfo, WorkerStatus,
};
use crate::{Holder, QueueName, Reason, TaskKey, Timestamp, Ttl};

/// All tasks of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct TaskTable {
    tasks: BTreeMap<TaskId, Task>,
    keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    queues: BTreeMap<QueueName, Queue>,
    /// By the end of the lease, or of the deadline of a runner.
    deadlines: BTreeSet<(Timestamp, TaskId)>,
    /// The one task of a chain that runs or is next to run…
    heads: BTreeMap<Chain, TaskId>,
    /// …and those that wait for it to end. If the head does not run yet, none of them comes before it in the order.
    blocked: BTreeMap<Chain, BTreeSet<Order>>,
    workers: BTreeMap<WorkerId, WorkerStatus>,
}

type Order = (i64, Timestamp, TaskId);

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Queue {
    ready: BTreeSet<Order>,
    scheduled: BTreeSet<(Timestamp, TaskId)>,
    counts: Counts,
    paused: Option<Pause>,
}

/// How many tasks are in which state; those put away are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Counts([u64; TaskState::ALL.len()]);

impl Counts {
    /// How many are in this state.
    pub const fn get(&self, state: TaskState) -> u64 {
        self.0[state as usize]
    }

    /// Sets how many are in this state.
    pub const fn set(&mut self, state: TaskState, count: u64) {
        self.0[state as usize] = count;
    }

    /// How many are not over yet.
    pub fn open(&self) -> u64 {
        TaskState::ALL.iter().filter(|state| !state.is_terminal()).map(|state| self.get(*state)).sum()
    }
}

/// A queue from which nothing is taken for now.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pause {
    /// Who wanted it.
    pub by: Holder,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
    /// Since when.
    pub at: Timestamp,
}

/// A queue as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Its name.
    pub queue: QueueName,
    /// Its tasks.
    pub counts: Counts,
    /// Whether it is paused.
    pub paused: Option<Pause>,
}

impl TaskTable {
    /// So many tasks whose time has come are put in line at once.
    pub const PROMOTE: u32 = 1000;
    /// So many leases that have run out are ended at most by a lease, before it looks at what is in line.
    pub const RECOVER: u32 = 100;

    /// Adds tasks, each by itself: one whose key means something else does not keep the others out.
    pub fn enqueue(&mut self, new: &[NewTask], now: Timestamp) -> Vec<Enqueued> {
        new.iter().map(|new| self.enqueue_one(new, now)).collect()
    }

    fn enqueue_one(&mut self, new: &NewTask, now: Timestamp) -> Enqueued {
        if self.tasks.contains_key(&new.id) {
            return Enqueued::Added(new.id);
        }
        let key = new.key.clone().map(|key| (new.queue.clone(), key));
        if let Some(earlier) = key.as_ref().and_then(|key| self.keys.get(key)).copied() {
            let task = &self.tasks[&earlier];
            if let Some(answer) = new.keyed_answer(earlier, task.state, task.fingerprint) {
                return answer;
            }
        }
        if let Some(head) = self.no_room(new) {
            return Enqueued::NoRoom(head);
        }
        if let Some(earlier) = key.as_ref().and_then(|key| self.keys.get(key)) {
            self.tasks.get_mut(earlier).expect("a key leads to a task").key = None;
        }
        if let Some(key) = key {
            self.keys.insert(key, new.id);
        }
        let task = Task::new(new, now);
        let chain = task.chain();
        self.file(task);
        self.elect(chain.as_ref(), now);
        Enqueued::Added(new.id)
    }

    /// Who has the lock of a new task, if there is no room for it.
    fn no_room(&self, new: &NewTask) -> Option<TaskId> {
        let (room, chain) = (new.room?, (new.lock.clone()?, new.queue.clone()));
        let head = self.heads.get(&chain)?;
        let others = 1 + self.blocked.get(&chain).map_or(0, BTreeSet::len);
        (others > room as usize).then_some(*head)
    }

    /// Gives a worker what is next, and says when something is due if that was not enough.
    pub fn lease(&mut self, ask: &LeaseTasks, now: Timestamp) -> Leased {
        let open: Vec<QueueName> = {
            let open =
                |queue: &&QueueName| self.queues.get(*queue).is_some_and(|queue| queue.paused.is_none());
            ask.queues.iter().filter(open).cloned().collect()
        };
        let expired = self.expire(Self::RECOVER, now).expired();
        self.promote(open.iter(), now);
        let (mut tasks, mut bytes, mut alone, mut more) = (Vec::new(), 0, false, false);
        while tasks.len() < ask.max as usize && bytes < LeaseTasks::FULL {
            let next = open.iter().filter_map(|queue| self.queues[queue].ready.first()).min();
            let Some((_, _, id)) = next.copied() else { break };
            let task = &self.tasks[&id];
            let Some(begun) = ask.gives(task, tasks.len()).filter(|_| !alone) else {
                more = true;
                break;
            };
            alone = task.runs_alone();
            self.change(id, &TaskOp::Lease { worker: ask.worker, ttl: ask.ttl, begun }, now);
            bytes += self.tasks[&id].bytes();
            tasks.push(self.tasks[&id].clone());
        }
        let short = !ask.is_full(&tasks);
        let next_due = open.iter().filter_map(|queue| self.queues[queue].scheduled.first()).min();
        let next_due = next_due.filter(|_| short).map(|(due, _)| (*due, now));
        Leased { tasks, next_due, more, expired }
    }

    /// Takes a worker's signs of life.
    pub fn heartbeat(
        &mut self,
        worker: &WorkerInfo,
        held: &[HeldTask],
        ttl: Ttl,
        now: Timestamp,
    ) -> Vec<Beat> {
        if worker.says_nothing() {
            self.workers.entry(worker.id).and_modify(|status| status.seen_at = now);
        } else {
            let new = WorkerStatus { info: worker.clone(), started_at: now, seen_at: now };
            let status = self.workers.entry(worker.id).or_insert(new);
            (status.info, status.seen_at) = (worker.clone(), now);
        }
        let beat = |held: &HeldTask| match self.change(held.id, &TaskOp::Beat(held.clone(), ttl), now) {
            Some(TaskAnswer::Beat(beat)) => beat,
            _ => Beat::Lost,
        };
        held.iter().map(beat).collect()
    }

    /// A worker says good-bye.
    pub fn leave(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }

    /// Ends attempts, each by itself.
    pub fn settle(&mut self, settle: &[Settle], now: Timestamp) -> Vec<Settled> {
        let one = |settle: &Settle| match self.change(settle.id, &TaskOp::Settle(settle.clone()), now) {
            Some(TaskAnswer::Settled(settled)) => settled,
            _ => Settled::Lost,
        };
        settle.iter().map(one).collect()
    }

    /// Applies one operation to one task; nothing if there is no such task.
    pub fn change(&mut self, id: TaskId, op: &TaskOp, now: Timestamp) -> Option<TaskAnswer> {
        let mut task = self.unfile(id)?;
        let answer = task.apply(op, now);
        let chain = task.chain();
        self.file(task);
        self.elect(chain.as_ref(), now);
        Some(answer)
    }

    /// Ends leases and deadlines of runners that have run out, and puts in line whatever is due.
    pub fn recover(&mut self, limit: u32, now: Timestamp) -> Recovered {
        let mut recovered = self.expire(limit, now);
        let queues: Vec<QueueName> = self.queues.keys().cloned().collect();
        recovered.promoted = self.promote(queues.iter(), now);
        self.workers.retain(|_, worker| now.since(worker.seen_at) < WorkerStatus::REMEMBERED.as_duration());
        recovered
    }

    /// Ends up to `limit` leases that have run out.
    pub fn expire(&mut self, limit: u32, now: Timestamp) -> Recovered {
        let mut recovered = Recovered::default();
        let ended = self.deadlines.iter().take_while(|(end, _)| *end <= now).take(limit as usize);
        for id in ended.map(|(_, id)| *id).collect::<Vec<_>>() {
            self.change(id, &TaskOp::Expire, now);
            match self.tasks[&id].state {
                TaskState::Failed => recovered.failed += 1,
                TaskState::Aborted => recovered.aborted += 1,
                _ => recovered.returned += 1,
            }
        }
        recovered
    }

    /// One task.
    pub fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// All tasks, oldest first.
    pub fn tasks(&self) -> impl DoubleEndedIterator<Item = &Task> {
        self.tasks.values()
    }

    /// The task with that key.
    pub fn keyed(&self, queue: &QueueName, key: &TaskKey) -> Option<&Task> {
        self.keys.get(&(queue.clone(), key.clone())).and_then(|id| self.tasks.get(id))
    }

    /// All queues that there are.
    pub fn queues(&self) -> Vec<QueueStatus> {
        let status = |(name, queue): (&QueueName, &Queue)| QueueStatus {
            queue: name.clone(),
            counts: queue.counts,
            paused: queue.paused.clone(),
        };
        self.queues.iter().map(status).collect()
    }

    /// Pauses a queue or lets it go on; says whether there is such a queue.
    pub fn pause(&mut self, queue: &QueueName, pause: Option<Pause>) -> bool {
        self.queues.get_mut(queue).map(|queue| queue.paused = pause).is_some()
    }

    /// The workers, oldest first.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerStatus> {
        self.workers.values()
    }

    /// Puts finished tasks away; says how many.
    pub fn archive(&mut self, which: &Finished) -> u64 {
        let ids = self.finished(which, |task| !task.archived);
        for id in &ids {
            let mut task = self.unfile(*id).expect("it was just found");
            task.archived = true;
            self.file(task);
        }
        ids.len() as u64
    }

    /// Forgets finished tasks; says how many.
    pub fn purge(&mut self, which: &Finished) -> u64 {
        let ids = self.finished(which, |_| true);
        for id in &ids {
            let task = self.unfile(*id).expect("it was just found");
            if let Some(key) = task.key {
                self.keys.remove(&(task.queue, key));
            }
        }
        ids.len() as u64
    }

    fn finished(&self, which: &Finished, also: impl Fn(&Task) -> bool) -> Vec<TaskId> {
        let fits = |task: &&Task| {
            task.finished_at.is_some_and(|end| end < which.before)
                && which.queue.as_ref().is_none_or(|queue| task.queue == *queue)
                && which.state.is_none_or(|state| task.state == state)
                && also(task)
        };
        let mut found: Vec<&Task> = self.tasks.values().filter(fits).collect();
        found.sort_by_key(|task| (task.finished_at, task.id));
        found.into_iter().take(which.limit as usize).map(|task| task.id).collect()
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

    /// Sees to it that a chain has a head, and that no task which waits comes before a head that does not run yet.
    fn elect(&mut self, chain: Option<&Chain>, now: Timestamp) {
        let Some(chain) = chain else { return };
        let Some(first) = self.blocked.get(chain).and_then(BTreeSet::first).copied() else { return };
        match self.heads.get(chain).map(|id| &self.tasks[id]) {
            None => _ = self.change(first.2, &TaskOp::Unblock, now),
            Some(head) if head.state == TaskState::Pending && first < head.order() => {
                // Without a head, the first is elected.
                self.change(head.id, &TaskOp::Block, now);
            }
            Some(_) => {}
        }
    }

    /// For checkers: puts a record in the place of the one with its id, and into the lists where it belongs.
    #[cfg(feature = "testing")]
    pub fn refile(&mut self, task: Task) {
        self.unfile(task.id);
        self.file(task);
    }

    /// For checkers: changes a record where it is. What decides in which lists it is must stay as it was.
    #[cfg(feature = "testing")]
    pub fn edit(&mut self, id: TaskId, edit: impl FnOnce(&mut Task)) {
        if let Some(task) = self.tasks.get_mut(&id) {
            edit(task);
        }
    }

    /// Takes a task out of every list it is in.
    fn unfile(&mut self, id: TaskId) -> Option<Task> {
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
        if let Some(chain) = task.chain().filter(|_| task.state.takes_lock()) {
            self.heads.remove(&chain);
        }
        if !task.archived {
            queue.counts.0[task.state as usize] -= 1;
        }
        Some(task)
    }

    /// Puts a task into every list it belongs in. If it could run but its chain has a head, it waits for that.
    fn file(&mut self, mut task: Task) {
        let chain = task.chain();
        if let Some(chain) = &chain {
            if task.state == TaskState::Pending && self.heads.contains_key(chain) {
                task.state = TaskState::Blocked;
            } else if task.state.takes_lock() {
                self.heads.insert(chain.clone(), task.id);
            }
        }
        if let Some(end) = task.deadline() {
            self.deadlines.insert((end, task.id));
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

impl Reuse {
    /// Whether the key of a task in this state may be used anew.
    pub const fn allows(self, state: TaskState) -> bool {
        match self {
            Self::Never => false,
            Self::Failed => matches!(state, TaskState::Failed),
            Self::Finished => state.is_terminal(),
        }
    }
}
