//! Changing several tasks atomically by the rules in leasehold-model: rows are locked, tasks are
//! changed in memory, and then saved.
//!
//! A transaction that changes a task with a lock first locks the head row of that lock in the
//! task's queue, then the tasks in the order of their ids. So two of these transactions never
//! deadlock, and no task is blocked behind a head that is being freed.

use std::collections::{BTreeMap, BTreeSet};

use super::columns::Saved;
use super::link::{Line, Link};
use super::rows::{self, TASK_COLUMNS, unreadable};
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{
    Chain, LockName, NewTask, QueueName, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp,
};
use crate::store::BootInstant;
use crate::store::postgres::trouble::Fail;

/// Begins a transaction.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Begins a transaction that fails early instead of waiting long for a locked row.
pub(super) const IMPATIENT: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 100";
/// Begins a transaction that fails even earlier, for one of many tasks that are tried one by one.
pub(super) const VERY_IMPATIENT: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 20";

/// Time limit for trying tasks one by one because another transaction has locked some of them. A
/// call must end within seconds.
pub(super) struct OneByOne(BootInstant);

impl OneByOne {
    pub(super) fn new() -> Self {
        Self(BootInstant::now().plus(std::time::Duration::from_secs(1)))
    }

    /// Whether there is time for another task.
    pub(super) fn goes_on(&self) -> bool {
        BootInstant::now() < self.0
    }
}

/// Tasks that are being changed.
#[derive(Debug, Default)]
pub(super) struct Bench {
    pub(super) now: Timestamp,
    before: BTreeMap<TaskId, Task>,
    tasks: BTreeMap<TaskId, Task>,
    /// Tasks that were read without a row lock: they must not be changed.
    not_held: BTreeSet<TaskId>,
    heads: BTreeMap<Chain, Option<TaskId>>,
    /// Chains that had a head when their head row was locked.
    had_head: BTreeSet<Chain>,
    /// Chains whose head has ended or has changed its position: a blocked task may precede it.
    loosened: BTreeSet<Chain>,
    keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    /// Number of blocked tasks in a chain, where it was requested.
    blocked: BTreeMap<Chain, usize>,
}

impl Bench {
    /// Begins a transaction and locks the rows of these tasks. `chains` are the chains that they
    /// are known to be in.
    pub(super) async fn begin(
        link: &Link,
        words: &str,
        ids: &[TaskId],
        mut chains: BTreeSet<Chain>,
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
                    heads.hold(link, &chains),
                    bench.load(link, ids, now),
                );
                (begun, held.map(|()| heads.heads), loaded)
            };
            begun?;
            bench.heads = held?;
            loaded?;
            let missing = bench.tasks.values().filter_map(Task::chain);
            let missing: Vec<_> = missing.filter(|chain| !bench.heads.contains_key(chain)).collect();
            if missing.is_empty() {
                // A task may precede a head that does not run yet, so the heads are needed, too.
                let heads: Vec<_> = bench.heads().filter(|id| !bench.tasks.contains_key(id)).collect();
                if !heads.is_empty() {
                    bench.load(link, &heads, now).await?;
                }
                return Ok(bench);
            }
            // The lock of a task never changes, so one more iteration suffices: heads must be
            // locked first.
            link.say("ROLLBACK").await?;
            chains.extend(missing);
        }
    }

    /// Locks the head rows of these chains.
    pub(super) async fn hold(&mut self, line: &dyn Line, chains: &BTreeSet<Chain>) -> Result<(), Fail> {
        if chains.is_empty() {
            return Ok(());
        }
        let (locks, queues) = names(chains);
        for row in line.ask(Sql::HoldHeads, &[&locks, &queues]).await? {
            let (chain, head) = (chain(&row)?, row.try_get::<_, Option<uuid::Uuid>>(2)?);
            if head.is_some() {
                self.had_head.insert(chain.clone());
            }
            self.heads.insert(chain, head.map(TaskId::from_uuid));
        }
        Ok(())
    }

    /// Returns the head of a chain whose head row is locked.
    pub(super) fn head(&self, chain: &Chain) -> Option<TaskId> {
        self.heads.get(chain).copied().flatten()
    }

    /// Returns the heads whose rows are locked.
    pub(super) fn heads(&self) -> impl Iterator<Item = TaskId> {
        self.heads.values().flatten().copied()
    }

    /// Counts the blocked tasks in these chains, whose head rows are locked.
    pub(super) async fn count_blocked(
        &mut self,
        line: &dyn Line,
        chains: &BTreeSet<Chain>,
    ) -> Result<(), Fail> {
        if chains.is_empty() {
            return Ok(());
        }
        let (locks, queues) = names(chains);
        for row in line.ask(Sql::CountBlocked, &[&locks, &queues]).await? {
            self.blocked.insert(chain(&row)?, usize::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0));
        }
        Ok(())
    }

    /// Returns the head of a new task's chain if the limit of the chain does not admit the task.
    pub(super) fn no_room(&self, new: &NewTask) -> Option<TaskId> {
        let (room, chain) = (new.room?, (new.lock.clone()?, new.queue.clone()));
        let head = self.heads.get(&chain).copied().flatten()?;
        // Each task that was added in this transaction counts, whichever of them is the head.
        let fresh = |task: &&Task| {
            matches!(task.state, TaskState::Blocked | TaskState::Pending)
                && !self.before.contains_key(&task.id)
                && task.chain().as_ref() == Some(&chain)
        };
        let here = self.tasks.values().filter(fresh).count();
        let had_head = usize::from(self.had_head.contains(&chain));
        let before = self.blocked.get(&chain).copied().unwrap_or(0) + had_head;
        (before + here > room as usize).then_some(head)
    }

    /// Loads these tasks with row locks, in the order of their ids.
    pub(super) async fn load(
        &mut self,
        line: &dyn Line,
        ids: &[TaskId],
        now: Option<i64>,
    ) -> Result<(), Fail> {
        self.load_by(line, Sql::Load, ids, now).await
    }

    /// Loads these tasks by the given statement, in the order of their ids.
    pub(super) async fn load_by(
        &mut self,
        line: &dyn Line,
        what: Sql,
        ids: &[TaskId],
        now: Option<i64>,
    ) -> Result<(), Fail> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<uuid::Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
        ids.sort_unstable();
        ids.dedup();
        for row in line.ask(what, &[&ids, &now]).await? {
            self.now = self.now.max(rows::time(&row, TASK_COLUMNS)?);
            let task = rows::task(&row)?;
            if what == Sql::Look {
                self.not_held.insert(task.id);
            } else {
                self.not_held.remove(&task.id);
            }
            self.put(task);
        }
        Ok(())
    }

    /// Whether the row of a task is locked, so that the task may be changed.
    pub(super) fn holds(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id) && !self.not_held.contains(&id)
    }

    fn put(&mut self, task: Task) {
        self.before.insert(task.id, task.clone());
        self.tasks.insert(task.id, task);
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// Applies one operation to one task; `None` if there is no such task.
    pub(super) fn change(&mut self, id: TaskId, op: &TaskOp) -> Option<TaskAnswer> {
        let mut task = self.tasks.remove(&id)?;
        let (state, order) = (task.state, task.order());
        if let Some(chain) = task.chain().filter(|_| state.takes_lock()) {
            self.heads.insert(chain, None);
        }
        let answer = task.apply(op, self.now);
        if state.takes_lock() && (task.state, task.order()) != (state, order) {
            self.loosened.extend(task.chain());
        }
        self.file(task);
        Some(answer)
    }

    /// Adds a task to the set. If the task could run but its chain has a head, the task is blocked
    /// behind the head, or replaces a head that it precedes and that does not run yet.
    pub(super) fn file(&mut self, mut task: Task) {
        if let Some(chain) = task.chain() {
            let head = self.heads.get(&chain).copied().flatten();
            match (task.state, head) {
                (TaskState::Pending | TaskState::Blocked, Some(head)) => {
                    let waits = |head: &Task| head.state == TaskState::Pending && task.order() < head.order();
                    let swaps = self.holds(head) && self.tasks.get(&head).is_some_and(waits);
                    let op = if swaps { TaskOp::Unblock } else { TaskOp::Block };
                    task.apply(&op, self.now);
                    if swaps {
                        let now = self.now;
                        self.tasks.entry(head).and_modify(|head| _ = head.apply(&TaskOp::Block, now));
                        self.heads.insert(chain, Some(task.id));
                    }
                }
                (TaskState::Pending | TaskState::Running, None) => {
                    self.heads.insert(chain, Some(task.id));
                }
                _ => {}
            }
        }
        self.tasks.insert(task.id, task);
    }

    /// Removes the key of a task because another task takes it over. This does not count as a
    /// change of the task.
    pub(super) fn pass_key(&mut self, from: TaskId) {
        if let Some(task) = self.tasks.get_mut(&from) {
            task.key = None;
        }
    }

    /// Sets the task that a key refers to.
    pub(super) fn set_key(&mut self, key: (QueueName, TaskKey), id: TaskId) {
        self.keys.insert(key, id);
    }

    /// Whether this transaction has assigned the key to a task.
    pub(super) fn has_key(&self, key: &(QueueName, TaskKey)) -> bool {
        self.keys.contains_key(key)
    }

    /// Saves everything and commits. Returns the queues in which tasks can run now that could not
    /// before.
    pub(super) async fn commit(mut self, link: &Link) -> Result<Vec<Stir>, Fail> {
        self.elect(link).await?;
        let mut saved = self.saved()?;
        if saved.is_empty() {
            link.say("ROLLBACK").await?;
            return Ok(Vec::new());
        }
        link.ready(&[Sql::Save]).await?;
        let params = saved.params();
        // If the save fails, the commit ends a transaction without effect.
        let (saved, committed) = tokio::join!(biased; link.query(Sql::Save, &params), link.say("COMMIT"));
        saved?;
        committed?;
        Ok(self.stirred())
    }

    /// Saves everything. Returns `false` if another session has just added one of the new tasks:
    /// the transaction must then be rolled back.
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
        for (chain, head) in &self.heads {
            saved.head(chain, *head);
        }
        for ((queue, key), id) in &self.keys {
            saved.key(queue, key, *id);
        }
        Ok(saved)
    }

    /// Ensures that each chain has a head, and that no blocked task precedes a head that does not
    /// run yet.
    pub(super) async fn elect(&mut self, line: &dyn Line) -> Result<(), Fail> {
        let mut loosened = std::mem::take(&mut self.loosened);
        loosened.retain(|chain| {
            let head = self.heads.get(chain).copied().flatten().and_then(|id| self.tasks.get(&id));
            head.is_none_or(|head| head.state != TaskState::Running)
        });
        if loosened.is_empty() {
            return Ok(());
        }
        // Tasks that are loaded here may differ from their stored rows.
        let held: Vec<uuid::Uuid> = self.tasks.keys().map(|id| *id.as_uuid()).collect();
        let (locks, queues) = names(&loosened);
        for row in line.ask(Sql::FirstBlocked, &[&locks, &queues, &held]).await? {
            self.put(rows::task(&row)?);
        }
        for chain in loosened {
            let waits =
                |task: &&Task| task.state == TaskState::Blocked && task.chain().as_ref() == Some(&chain);
            let first = self.tasks.values().filter(waits).min_by_key(|task| task.order()).map(|task| task.id);
            let Some(mut first) = first.and_then(|id| self.tasks.remove(&id)) else { continue };
            if self.heads.get(&chain).copied().flatten().is_none() {
                first.apply(&TaskOp::Unblock, self.now);
            }
            self.file(first);
        }
        Ok(())
    }

    /// Returns the queues in which a worker may find tasks that it could not find before.
    pub(super) fn stirred(&self) -> Vec<Stir> {
        let mut stirred: BTreeMap<&QueueName, usize> = BTreeMap::new();
        for task in self.tasks.values() {
            let before = self.before.get(&task.id);
            // A scheduled task matters to workers that sleep until a later one is due.
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

/// Returns the locks and the queues of chains, in the same order.
fn names(chains: &BTreeSet<Chain>) -> (Vec<&str>, Vec<&str>) {
    chains.iter().map(|(lock, queue)| (lock.as_str(), queue.as_str())).unzip()
}

/// Reads the first two columns: a lock and a queue.
fn chain(row: &tokio_postgres::Row) -> Result<Chain, Fail> {
    let lock = LockName::new(row.try_get::<_, &str>(0)?).map_err(unreadable)?;
    Ok((lock, QueueName::new(row.try_get::<_, &str>(1)?).map_err(unreadable)?))
}
