//! Slow path of tasks: changes several tasks atomically by the rules in leasehold-model. Rows are
//! locked, tasks are changed in memory, and then saved.
//!
//! A transaction that changes a task with a lock first locks the head row of that lock in the
//! task's queue, then the tasks in the order of their ids. So two of these transactions never
//! deadlock, and no task is blocked behind a head that is being freed.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::{TASK_COLUMNS, TaskColumns, read_task};
use super::notifier::QueueChange;
use super::pool::{Executor, TaskSession};
use super::sql::Sql;
use crate::model::{
    Chain, LockName, LockQueue, QueueName, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp,
};
use crate::store::BootInstant;
use crate::store::postgres::columns::{first_row, invalid_row, time};
use crate::store::postgres::error::PgError;

/// Statement that begins a transaction.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Like [`BEGIN`], for a transaction that fails early instead of waiting long for a locked row.
pub(super) const BEGIN_SHORT_WAIT: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 100";
/// Like [`BEGIN`], for a transaction that fails even earlier, for one of many tasks that are tried one by one.
pub(super) const BEGIN_SHORTEST_WAIT: &str =
    "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 20";

/// Time limit for trying tasks one by one because another transaction has locked some of them. A
/// call must end within seconds.
pub(super) struct OneByOneLimit(BootInstant);

impl OneByOneLimit {
    pub(super) fn new() -> Self {
        Self(BootInstant::now().plus(std::time::Duration::from_secs(1)))
    }

    /// Whether there is time for another task.
    pub(super) fn has_time_left(&self) -> bool {
        BootInstant::now() < self.0
    }
}

/// Tasks that are being changed.
#[derive(Debug, Default)]
pub(super) struct TaskTransaction {
    pub(super) now: Timestamp,
    before: BTreeMap<TaskId, Task>,
    tasks: BTreeMap<TaskId, Task>,
    /// Tasks that were read without a row lock: they must not be changed.
    read_only: BTreeSet<TaskId>,
    heads: BTreeMap<Chain, Option<TaskId>>,
    /// Chains that had a head when their head row was locked.
    had_head: BTreeSet<Chain>,
    /// Chains whose head has ended or has changed its position: a blocked task may precede it.
    chains_to_elect: BTreeSet<Chain>,
    keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    /// Number of blocked tasks in a chain, where it was requested.
    blocked: BTreeMap<Chain, usize>,
}

impl TaskTransaction {
    /// Begins a transaction and locks the rows of these tasks. `chains` are the chains that they
    /// are known to be in.
    pub(super) async fn begin(
        session: &TaskSession,
        begin_sql: &str,
        ids: &[TaskId],
        mut chains: BTreeSet<Chain>,
        now: Option<i64>,
    ) -> Result<Self, PgError> {
        session.prepare(&[Sql::LockOwners, Sql::Load]).await?;
        loop {
            let mut transaction = Self::default();
            let (begun, locked, loaded) = {
                let mut heads = Self::default();
                let (begun, locked, loaded) = tokio::join!(
                    biased;
                    session.simple_query(begin_sql),
                    heads.lock_heads(session, &chains),
                    transaction.load(session, ids, now),
                );
                (begun, locked.map(|()| heads.heads), loaded)
            };
            begun?;
            transaction.heads = locked?;
            loaded?;
            let missing = transaction.tasks.values().filter_map(Task::chain);
            let missing: Vec<_> = missing.filter(|chain| !transaction.heads.contains_key(chain)).collect();
            if missing.is_empty() {
                // A task may precede a head that does not run yet, so the heads are needed, too.
                let heads: Vec<_> =
                    transaction.heads().filter(|id| !transaction.tasks.contains_key(id)).collect();
                if !heads.is_empty() {
                    transaction.load(session, &heads, now).await?;
                }
                return Ok(transaction);
            }
            // The lock of a task never changes, so one more iteration suffices: heads must be
            // locked first.
            session.simple_query("ROLLBACK").await?;
            chains.extend(missing);
        }
    }

    /// Locks the head rows of these chains.
    pub(super) async fn lock_heads(
        &mut self,
        executor: &dyn Executor,
        chains: &BTreeSet<Chain>,
    ) -> Result<(), PgError> {
        if chains.is_empty() {
            return Ok(());
        }
        let (locks, queues) = names(chains);
        for row in executor.query(Sql::LockOwners, &[&locks, &queues]).await? {
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
        executor: &dyn Executor,
        chains: &BTreeSet<Chain>,
    ) -> Result<(), PgError> {
        if chains.is_empty() {
            return Ok(());
        }
        let (locks, queues) = names(chains);
        for row in executor.query(Sql::CountBlocked, &[&locks, &queues]).await? {
            self.blocked.insert(chain(&row)?, usize::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0));
        }
        Ok(())
    }

    /// Returns the tasks of a chain whose head row is locked and whose blocked tasks were counted.
    pub(super) fn lock_queue(&self, chain: &Chain) -> Option<LockQueue> {
        let head = self.head(chain)?;
        // Each task that was added in this transaction counts, whichever of them is the head.
        let added = |task: &&Task| {
            matches!(task.state, TaskState::Blocked | TaskState::Pending)
                && !self.before.contains_key(&task.id)
                && task.chain().as_ref() == Some(chain)
        };
        let added_count = self.tasks.values().filter(added).count();
        let had_head = usize::from(self.had_head.contains(chain));
        let blocked = self.blocked.get(chain).copied().unwrap_or(0);
        Some(LockQueue { head, tasks: blocked + had_head + added_count })
    }

    /// Loads these tasks with row locks, in the order of their ids.
    pub(super) async fn load(
        &mut self,
        executor: &dyn Executor,
        ids: &[TaskId],
        now: Option<i64>,
    ) -> Result<(), PgError> {
        self.load_by(executor, Sql::Load, ids, now).await
    }

    /// Loads these tasks by the given statement, in the order of their ids.
    pub(super) async fn load_by(
        &mut self,
        executor: &dyn Executor,
        sql: Sql,
        ids: &[TaskId],
        now: Option<i64>,
    ) -> Result<(), PgError> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut ids: Vec<uuid::Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
        ids.sort_unstable();
        ids.dedup();
        for row in executor.query(sql, &[&ids, &now]).await? {
            self.now = self.now.max(time(&row, TASK_COLUMNS)?);
            let task = read_task(&row)?;
            if sql == Sql::Read {
                self.read_only.insert(task.id);
            } else {
                self.read_only.remove(&task.id);
            }
            self.add_loaded(task);
        }
        Ok(())
    }

    /// Whether the row of a task is locked, so that the task may be changed.
    pub(super) fn is_locked(&self, id: TaskId) -> bool {
        self.tasks.contains_key(&id) && !self.read_only.contains(&id)
    }

    /// Adds a task as it is stored.
    fn add_loaded(&mut self, task: Task) {
        self.before.insert(task.id, task.clone());
        self.tasks.insert(task.id, task);
    }

    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id)
    }

    /// Applies one operation to one task; `None` if there is no such task.
    pub(super) fn change(&mut self, id: TaskId, op: &TaskOp) -> Option<TaskAnswer> {
        let mut task = self.tasks.remove(&id)?;
        let (before, was_head) = (task.chain_place(), task.state.takes_lock());
        if let Some(chain) = task.chain().filter(|_| was_head) {
            self.heads.insert(chain, None);
        }
        let answer = task.apply(op, self.now);
        // A task that was not the head is compared with the head when it is inserted.
        if was_head && task.may_change_head(before) {
            self.chains_to_elect.extend(task.chain());
        }
        self.insert_task(task);
        Some(answer)
    }

    /// Adds a task to the set. If the task could run but its chain has a head, the task is blocked
    /// behind the head, or replaces a head that it precedes and that does not run yet.
    pub(super) fn insert_task(&mut self, mut task: Task) {
        if let Some(chain) = task.chain() {
            match (task.state, self.head(&chain)) {
                (TaskState::Pending | TaskState::Blocked, Some(head)) => {
                    let replaces = |head: &Task| task.replaces(Some(head));
                    let replaces_head = self.is_locked(head) && self.tasks.get(&head).is_some_and(replaces);
                    let op = if replaces_head { TaskOp::Unblock } else { TaskOp::Block };
                    task.apply(&op, self.now);
                    if replaces_head {
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
    pub(super) fn clear_key(&mut self, from: TaskId) {
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
    pub(super) async fn commit(mut self, session: &TaskSession) -> Result<Vec<QueueChange>, PgError> {
        self.elect_heads(session).await?;
        let mut columns = self.columns()?;
        if columns.is_empty() {
            session.simple_query("ROLLBACK").await?;
            return Ok(Vec::new());
        }
        session.prepare(&[Sql::Save]).await?;
        let params = columns.params();
        // If the save fails, the commit ends a transaction without effect.
        let (saved, committed) =
            tokio::join!(biased; session.query(Sql::Save, &params), session.simple_query("COMMIT"));
        saved?;
        committed?;
        Ok(self.changed_queues())
    }

    /// Saves everything. Returns `false` if another session has just added one of the new tasks:
    /// the transaction must then be rolled back.
    pub(super) async fn save(&mut self, executor: &dyn Executor) -> Result<bool, PgError> {
        let mut columns = self.columns()?;
        let added = columns.new_tasks();
        let rows = executor.query(Sql::Save, &columns.params()).await?;
        Ok(usize::try_from(first_row(&rows)?.try_get::<_, i64>(0)?).ok() == Some(added))
    }

    fn columns(&self) -> Result<TaskColumns, PgError> {
        let mut columns = TaskColumns::default();
        for (id, task) in &self.tasks {
            columns.push_task(self.before.get(id), task)?;
        }
        for (chain, head) in &self.heads {
            columns.push_head(chain, *head);
        }
        for ((queue, key), id) in &self.keys {
            columns.push_key(queue, key, *id);
        }
        Ok(columns)
    }

    /// Ensures that each chain has a head, and that no blocked task precedes a head that does not
    /// run yet.
    pub(super) async fn elect_heads(&mut self, executor: &dyn Executor) -> Result<(), PgError> {
        let mut chains_to_elect = std::mem::take(&mut self.chains_to_elect);
        chains_to_elect.retain(|chain| {
            let head = self.head(chain).and_then(|id| self.tasks.get(&id));
            head.is_none_or(|head| head.state != TaskState::Running)
        });
        if chains_to_elect.is_empty() {
            return Ok(());
        }
        // Tasks that are loaded here may differ from their stored rows.
        let loaded: Vec<uuid::Uuid> = self.tasks.keys().map(|id| *id.as_uuid()).collect();
        let (locks, queues) = names(&chains_to_elect);
        for row in executor.query(Sql::FirstBlocked, &[&locks, &queues, &loaded]).await? {
            self.add_loaded(read_task(&row)?);
        }
        for chain in chains_to_elect {
            let waits =
                |task: &&Task| task.state == TaskState::Blocked && task.chain().as_ref() == Some(&chain);
            let first = self.tasks.values().filter(waits).min_by_key(|task| task.order()).map(|task| task.id);
            let Some(mut first) = first.and_then(|id| self.tasks.remove(&id)) else { continue };
            if self.head(&chain).is_none() {
                first.apply(&TaskOp::Unblock, self.now);
            }
            self.insert_task(first);
        }
        Ok(())
    }

    /// Returns the queues in which a worker may find tasks that it could not find before.
    pub(super) fn changed_queues(&self) -> Vec<QueueChange> {
        let mut counts: BTreeMap<&QueueName, usize> = BTreeMap::new();
        for task in self.tasks.values() {
            let before = self.before.get(&task.id);
            // A scheduled task matters to workers that sleep until a later one is due.
            let waits = matches!(task.state, TaskState::Pending | TaskState::Scheduled);
            if waits && before != Some(task) {
                *counts.entry(&task.queue).or_default() += 1;
            }
        }
        let change = |(queue, tasks): (&QueueName, usize)| QueueChange {
            queue: queue.clone(),
            since: self.now,
            tasks,
        };
        counts.into_iter().map(change).collect()
    }
}

/// Returns the locks and the queues of chains, in the same order.
fn names(chains: &BTreeSet<Chain>) -> (Vec<&str>, Vec<&str>) {
    chains.iter().map(|(lock, queue)| (lock.as_str(), queue.as_str())).unzip()
}

/// Reads the first two columns: a lock and a queue.
fn chain(row: &tokio_postgres::Row) -> Result<Chain, PgError> {
    let lock = LockName::new(row.try_get::<_, &str>(0)?).map_err(invalid_row)?;
    Ok((lock, QueueName::new(row.try_get::<_, &str>(1)?).map_err(invalid_row)?))
}

// --- statements -----------------------------------------------------------------------------------

/// Locks the head rows of these locks in these queues, sorted, creating them if necessary, and
/// returns the tasks that are the heads.
pub(super) const LOCK_OWNERS: &str = "
    INSERT INTO $s.lock_owners AS o (lock, queue) SELECT * FROM unnest($1::text[], $2::text[])
    ON CONFLICT (lock, queue) DO UPDATE SET id = o.id RETURNING lock, queue, id";

/// Counts the tasks that are blocked by each of these locks in these queues. The head rows are
/// locked, so no other session can block a task behind them now.
pub(super) const COUNT_BLOCKED: &str = "
    SELECT l.lock, l.queue, (SELECT count(*) FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock AND t.queue = l.queue)
    FROM unnest($1::text[], $2::text[]) AS l (lock, queue)";

/// Loads tasks, in the order of `$1`, which is that of their ids, with row locks until the end of
/// the transaction; and the time.
pub(super) const LOAD: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id FOR UPDATE) t";

/// Reads tasks without row locks.
pub(super) const READ: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id) t";

/// Loads those of these tasks that have ended, with row locks until the end of the transaction. A
/// transaction of the caller must not lock the row of a running task: its worker could not send
/// heartbeats for it.
pub(super) const LOAD_FINISHED: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id AND t.state >= 4 FOR UPDATE) t";

/// Loads those of these tasks that are pending, with row locks until the end of the transaction. A
/// task that is being leased is skipped.
pub(super) const LOAD_PENDING: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id AND t.state = 2 FOR UPDATE SKIP LOCKED) t";

/// Loads the first blocked task of each of these locks in these queues, except for the tasks `$3`.
pub(super) const FIRST_BLOCKED: &str = "
    SELECT t.* FROM unnest($1::text[], $2::text[]) AS l (lock, queue) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock AND t.queue = l.queue AND t.id <> ALL ($3)
        ORDER BY ($RANK), t.run_at, t.id LIMIT 1 FOR UPDATE) t";
