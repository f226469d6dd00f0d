//! Several tasks changed by the rules, as one step: held, changed in memory, saved.
//!
//! Whoever changes a task with a lock holds the head of that lock first, then the tasks in the order of their ids. So two of
//! these never wait for each other in a circle, and nobody is put behind a head that is just being freed.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::Saved;
use super::link::{Line, Link};
use super::rows::{self, TASK_COLUMNS, unreadable};
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{
    LockName, NewTask, QueueName, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp,
};
use crate::store::postgres::trouble::Fail;

/// How a transaction begins…
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// …and how one does that would rather do without than wait.
pub(super) const IMPATIENT: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 100";

/// The tasks that are being changed.
#[derive(Debug, Default)]
pub(super) struct Bench {
    pub(super) now: Timestamp,
    before: BTreeMap<TaskId, Task>,
    tasks: BTreeMap<TaskId, Task>,
    heads: BTreeMap<LockName, Option<TaskId>>,
    /// Locks whose task has let go of them: the next may have them.
    freed: BTreeSet<LockName>,
    keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    /// How many waited for a lock, where that is asked for.
    blocked: BTreeMap<LockName, usize>,
}

impl Bench {
    /// Begins a transaction and holds these tasks. `locks` are those that they are known to have.
    pub(super) async fn begin(
        link: &Link,
        words: &str,
        ids: &[TaskId],
        mut locks: BTreeSet<LockName>,
        now: Option<i64>,
    ) -> Result<Self, Fail> {
        link.ready(&[Sql::HoldHeads, Sql::Load]).await?;
        loop {
            let mut bench = Self::default();
            let (begun, held, loaded) = {
                let mut heads = Self::default();
                let (begun, held, loaded) = tokio::join!(
                    biased;
                    link.say(words),
                    heads.hold(link, &locks),
                    bench.load(link, ids, now),
                );
                (begun, held.map(|()| heads.heads), loaded)
            };
            begun?;
            bench.heads = held?;
            loaded?;
            let missing = bench.tasks.values().filter_map(|task| task.lock.as_ref());
            let missing: Vec<_> = missing.filter(|lock| !bench.heads.contains_key(*lock)).cloned().collect();
            if missing.is_empty() {
                return Ok(bench);
            }
            // A lock never changes, so once more is enough: heads first.
            link.say("ROLLBACK").await?;
            locks.extend(missing);
        }
    }

    /// Holds the heads of these locks.
    pub(super) async fn hold(&mut self, line: &dyn Line, locks: &BTreeSet<LockName>) -> Result<(), Fail> {
        if locks.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = locks.iter().map(LockName::as_str).collect();
        for row in line.ask(Sql::HoldHeads, &[&names]).await? {
            let lock = LockName::new(row.try_get::<_, &str>(0)?).map_err(unreadable)?;
            self.heads.insert(lock, row.try_get::<_, Option<uuid::Uuid>>(1)?.map(TaskId::from_uuid));
        }
        Ok(())
    }

    /// Counts who waits for these locks, whose heads are held.
    pub(super) async fn count_blocked(
        &mut self,
        line: &dyn Line,
        locks: &BTreeSet<LockName>,
    ) -> Result<(), Fail> {
        if locks.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = locks.iter().map(LockName::as_str).collect();
        for row in line.ask(Sql::CountBlocked, &[&names]).await? {
            let lock = LockName::new(row.try_get::<_, &str>(0)?).map_err(unreadable)?;
            self.blocked.insert(lock, usize::try_from(row.try_get::<_, i64>(1)?).unwrap_or(0));
        }
        Ok(())
    }

    /// Who has the lock of a new task, if there is no room for it.
    pub(super) fn no_room(&self, new: &NewTask) -> Option<TaskId> {
        let (room, lock) = (new.room?, new.lock.as_ref()?);
        let head = self.heads.get(lock).copied().flatten()?;
        let fresh = |task: &&Task| {
            task.state == TaskState::Blocked
                && task.lock.as_ref() == Some(lock)
                && !self.before.contains_key(&task.id)
        };
        let here = self.tasks.values().filter(fresh).count();
        let others = 1 + self.blocked.get(lock).copied().unwrap_or(0) + here;
        (others > room as usize).then_some(head)
    }

    /// Holds these tasks.
    pub(super) async fn load(
        &mut self,
        line: &dyn Line,
        ids: &[TaskId],
        now: Option<i64>,
    ) -> Result<(), Fail> {
        let ids: Vec<uuid::Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
        for row in line.ask(Sql::Load, &[&ids, &now]).await? {
            self.now = self.now.max(rows::time(&row, TASK_COLUMNS)?);
            self.put(rows::task(&row)?);
        }
        Ok(())
    }

    fn put(&mut self, task: Task) {
        self.before.insert(task.id, task.clone());
        self.tasks.insert(task.id, task);
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// Applies one operation to one task; nothing if there is no such task.
    pub(super) fn change(&mut self, id: TaskId, op: &TaskOp) -> Option<TaskAnswer> {
        let mut task = self.tasks.remove(&id)?;
        let took_lock = task.lock.clone().filter(|_| task.state.takes_lock());
        if let Some(lock) = &took_lock {
            self.heads.insert(lock.clone(), None);
        }
        let answer = task.apply(op, self.now);
        self.freed.extend(took_lock.filter(|_| !task.state.takes_lock()));
        self.file(task);
        Some(answer)
    }

    /// Puts a task among the others. If it could run but its lock is taken, it waits for that.
    pub(super) fn file(&mut self, mut task: Task) {
        if let Some(lock) = &task.lock {
            let head = self.heads.entry(lock.clone()).or_default();
            if task.state == TaskState::Pending && head.is_some() {
                task.state = TaskState::Blocked;
            } else if task.state.takes_lock() {
                *head = Some(task.id);
            }
        }
        self.tasks.insert(task.id, task);
    }

    /// A task loses its key to another: no change that anybody made to it.
    pub(super) fn pass_key(&mut self, from: TaskId) {
        if let Some(task) = self.tasks.get_mut(&from) {
            task.key = None;
        }
    }

    /// The task that a key means now.
    pub(super) fn set_key(&mut self, key: (QueueName, TaskKey), id: TaskId) {
        self.keys.insert(key, id);
    }

    /// Whether a key was given to a task here.
    pub(super) fn has_key(&self, key: &(QueueName, TaskKey)) -> bool {
        self.keys.contains_key(key)
    }

    /// Saves everything and ends the transaction; says who could run now that could not before.
    pub(super) async fn commit(mut self, link: &Link) -> Result<Vec<Stir>, Fail> {
        self.unblock(link).await?;
        let mut saved = self.saved()?;
        if saved.is_empty() {
            link.say("ROLLBACK").await?;
            return Ok(Vec::new());
        }
        link.ready(&[Sql::Save]).await?;
        let params = saved.params();
        // If the first fails, the second ends a transaction in which nothing was done.
        let (saved, committed) = tokio::join!(biased; link.query(Sql::Save, &params), link.say("COMMIT"));
        saved?;
        committed?;
        Ok(self.stirred())
    }

    /// Saves everything; false if somebody else has just added one of the new tasks, and nothing of it must come to pass.
    pub(super) async fn save(&mut self, line: &dyn Line) -> Result<bool, Fail> {
        let mut saved = self.saved()?;
        let added = saved.new_tasks();
        let rows = line.ask(Sql::Save, &saved.params()).await?;
        let row = rows.first().ok_or_else(|| Fail::Unreadable("a count that is none".into()))?;
        Ok(usize::try_from(row.try_get::<_, i64>(0)?).ok() == Some(added))
    }

    fn saved(&self) -> Result<Saved, Fail> {
        let mut saved = Saved::default();
        for (id, task) in &self.tasks {
            saved.task(self.before.get(id), task)?;
        }
        for (lock, head) in &self.heads {
            saved.head(lock, *head);
        }
        for ((queue, key), id) in &self.keys {
            saved.key(queue, key, *id);
        }
        Ok(saved)
    }

    /// Lets the first task that waits for each freed lock be next.
    async fn unblock(&mut self, line: &dyn Line) -> Result<(), Fail> {
        let freed = std::mem::take(&mut self.freed);
        let names: Vec<&str> = freed.iter().map(LockName::as_str).collect();
        if names.is_empty() {
            return Ok(());
        }
        for row in line.ask(Sql::FirstBlocked, &[&names]).await? {
            let task = rows::task(&row)?;
            let id = task.id;
            if !self.tasks.contains_key(&id) {
                self.put(task);
            }
            self.change(id, &TaskOp::Unblock);
        }
        Ok(())
    }

    /// The queues in which something can be found now that could not before.
    pub(super) fn stirred(&self) -> Vec<Stir> {
        let mut stirred: BTreeMap<&QueueName, usize> = BTreeMap::new();
        for task in self.tasks.values() {
            let before = self.before.get(&task.id);
            // One that waits for its time is news for whoever sleeps until another one's.
            let waits = matches!(task.state, TaskState::Pending | TaskState::Scheduled);
            if waits && before != Some(task) {
                *stirred.entry(&task.queue).or_default() += 1;
            }
        }
        let stir =
            |(queue, tasks): (&QueueName, usize)| Stir { queue: queue.clone(), since: self.now, tasks };
        stirred.into_iter().map(stir).collect()
    }
}
