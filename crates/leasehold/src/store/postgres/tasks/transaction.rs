//! Slow path of tasks: changes several tasks atomically by the rules in leasehold-model. Rows are
//! locked, tasks are changed in memory, and then saved.
//!
//! A transaction that changes a task with a lock first locks the head row of that lock in the
//! task's queue, then the tasks in the order of their ids. So two of these transactions never
//! deadlock, and no task is blocked behind a head that is being freed.

use std::collections::{BTreeMap, BTreeSet};

use super::codec::{self, ChangedTask, TASK_COLUMNS, read_task, save_params};
use super::notifier::QueueChange;
use super::pool::Executor;
use crate::model::{
    Chain, LockQueue, QueueName, Task, TaskAnswer, TaskId, TaskKey, TaskOp, TaskState, Timestamp,
};
use crate::store::BootInstant;
use crate::store::postgres::columns::{first_row, lock_name, params, queue_name, time};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{Sql, TEXTS, UUIDS};

/// Statement that begins a transaction.
pub(crate) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
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

    pub(super) fn has_time_left(&self) -> bool {
        BootInstant::now() < self.0
    }
}

/// Rolls back and returns `None` if the work failed because of a conflict with another transaction: none
/// of it was executed.
pub(super) async fn unless_conflict<T>(
    session: &Session,
    done: Result<T, PgError>,
) -> Result<Option<T>, PgError> {
    match done {
        Err(error) if error.is_conflict() => {
            session.simple_query("ROLLBACK").await?;
            Ok(None)
        }
        done => done.map(Some),
    }
}

/// Result of an operation on several tasks.
#[derive(Default)]
pub(super) struct ChangedTasks {
    /// States of the tasks that have changed.
    pub(super) states: Vec<TaskState>,
    pub(super) changes: Vec<QueueChange>,
    /// Whether another transaction had locked one of the rows.
    pub(super) had_conflict: bool,
    /// Tasks that were not changed because of that.
    pub(super) skipped: Vec<TaskId>,
}

/// Applies an operation to these tasks, atomically. If another transaction has locked one of the tasks,
/// or the head row of its lock, the others do not wait for it: the tasks are changed one by one.
pub(super) async fn change_all(
    session: &Session,
    ids: &[TaskId],
    chains: BTreeSet<Chain>,
    op: &TaskOp,
    now: Option<i64>,
) -> Result<ChangedTasks, PgError> {
    let mut all = ChangedTasks::default();
    let done = change_batch(session, BEGIN_SHORT_WAIT, ids, chains, op, now).await;
    if let Some((states, changes)) = unless_conflict(session, done).await? {
        return Ok(ChangedTasks { states, changes, ..all });
    }
    all.had_conflict = true;
    let one_by_one = OneByOneLimit::new();
    for id in ids {
        let mut done = None;
        if one_by_one.has_time_left() {
            let one = change_batch(session, BEGIN_SHORTEST_WAIT, &[*id], BTreeSet::new(), op, now).await;
            done = unless_conflict(session, one).await?;
        }
        match done {
            Some((states, changes)) => {
                all.states.extend(states);
                all.changes.extend(changes);
            }
            None => all.skipped.push(*id),
        }
    }
    Ok(all)
}

async fn change_batch(
    session: &Session,
    begin_sql: &str,
    ids: &[TaskId],
    chains: BTreeSet<Chain>,
    op: &TaskOp,
    now: Option<i64>,
) -> Result<(Vec<TaskState>, Vec<QueueChange>), PgError> {
    let mut transaction = TaskTransaction::begin(session, begin_sql, &LOAD_BRIEF, ids, chains, now).await?;
    let mut states = Vec::new();
    for id in ids {
        // Another session may have changed the task first.
        if transaction.change(*id, op) == Some(TaskAnswer::Done) {
            states.extend(transaction.get(*id).map(|task| task.state));
        }
    }
    Ok((states, transaction.commit(session).await?))
}

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
    /// Tasks that keys refer to now.
    pub(super) keys: BTreeMap<(QueueName, TaskKey), TaskId>,
    /// Number of blocked tasks in a chain, where it was requested.
    blocked: BTreeMap<Chain, usize>,
}

impl TaskTransaction {
    /// Begins a transaction, locks the rows of these tasks, and loads them by the given statement. `chains` are the
    /// chains that they are known to be in.
    pub(super) async fn begin(
        session: &Session,
        begin_sql: &str,
        load: &'static Sql,
        ids: &[TaskId],
        mut chains: BTreeSet<Chain>,
        now: Option<i64>,
    ) -> Result<Self, PgError> {
        session.prepare(&[&LOCK_OWNERS, load]).await?;
        loop {
            let (mut transaction, mut heads) = (Self::default(), Self::default());
            let (begun, locked, loaded) = tokio::join!(
                biased;
                session.simple_query(begin_sql),
                heads.lock_heads(session, &chains),
                transaction.load_by(session, load, ids, now),
            );
            begun?;
            locked?;
            loaded?;
            transaction.heads = heads.heads;
            let missing = transaction.tasks.values().filter_map(Task::chain);
            let missing: Vec<_> = missing.filter(|chain| !transaction.heads.contains_key(chain)).collect();
            if missing.is_empty() {
                // A task may precede a head that does not run yet, so the heads are needed, too.
                let heads: Vec<_> =
                    transaction.heads().filter(|id| !transaction.tasks.contains_key(id)).collect();
                if !heads.is_empty() {
                    transaction.load_by(session, &LOAD_BRIEF, &heads, now).await?;
                }
                return Ok(transaction);
            }
            // The lock of a task never changes, so one more iteration suffices: heads must be
            // locked first.
            session.simple_query("ROLLBACK").await?;
            chains.extend(missing);
        }
    }

    pub(super) async fn lock_heads(
        &mut self,
        executor: &dyn Executor,
        chains: &BTreeSet<Chain>,
    ) -> Result<(), PgError> {
        if chains.is_empty() {
            return Ok(());
        }
        let (locks, queues) = names(chains);
        for row in executor.query(&LOCK_OWNERS, &[&locks, &queues]).await? {
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
        for row in executor.query(&COUNT_BLOCKED, &[&locks, &queues]).await? {
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

    /// Loads these tasks by the given statement, in the order of their ids.
    pub(super) async fn load_by(
        &mut self,
        executor: &dyn Executor,
        sql: &'static Sql,
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
            if sql.key() == READ.key() {
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

    /// Saves everything and commits. Returns the queues in which tasks can run now that could not
    /// before.
    pub(super) async fn commit(mut self, session: &Session) -> Result<Vec<QueueChange>, PgError> {
        self.elect_heads(session).await?;
        let changed = self.changed_tasks();
        if changed.is_empty() {
            session.simple_query("ROLLBACK").await?;
            return Ok(Vec::new());
        }
        session.prepare(&[&codec::SAVE]).await?;
        let values = save_params(&changed, &self.heads, &self.keys)?;
        let save = params(&values);
        // If the save fails, the commit ends a transaction without effect.
        let (saved, committed) =
            tokio::join!(biased; session.query(&codec::SAVE, &save), session.simple_query("COMMIT"));
        saved?;
        committed?;
        Ok(self.changed_queues())
    }

    /// Saves everything. Returns `false` if another session has just added one of the new tasks:
    /// the transaction must then be rolled back.
    pub(super) async fn save(&self, executor: &dyn Executor) -> Result<bool, PgError> {
        let changed = self.changed_tasks();
        let added = changed.iter().filter(|(before, _)| before.is_none()).count();
        let values = save_params(&changed, &self.heads, &self.keys)?;
        let rows = executor.query(&codec::SAVE, &params(&values)).await?;
        Ok(usize::try_from(first_row(&rows)?.try_get::<_, i64>(0)?).ok() == Some(added))
    }

    fn changed_tasks(&self) -> Vec<ChangedTask<'_>> {
        let tasks = self.tasks.iter().map(|(id, task)| (self.before.get(id), task));
        tasks.filter(|(before, after)| *before != Some(*after)).collect()
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
        for row in executor.query(&FIRST_BLOCKED, &[&locks, &queues, &loaded]).await? {
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
        for (_, task) in self.changed_tasks() {
            // A scheduled task matters to workers that sleep until a later one is due.
            if matches!(task.state, TaskState::Pending | TaskState::Scheduled) {
                *counts.entry(&task.queue).or_default() += 1;
            }
        }
        queue_changes(counts, self.now)
    }
}

pub(super) fn queue_changes(counts: BTreeMap<&QueueName, usize>, since: Timestamp) -> Vec<QueueChange> {
    counts.into_iter().map(|(queue, tasks)| QueueChange { queue: queue.clone(), since, tasks }).collect()
}

/// Returns the locks and the queues of chains, in the same order.
fn names(chains: &BTreeSet<Chain>) -> (Vec<&str>, Vec<&str>) {
    chains.iter().map(|(lock, queue)| (lock.as_str(), queue.as_str())).unzip()
}

/// Reads the first two columns: a lock and a queue.
fn chain(row: &tokio_postgres::Row) -> Result<Chain, PgError> {
    Ok((lock_name(row, 0)?, queue_name(row, 1)?))
}

// --- statements -----------------------------------------------------------------------------------

/// Locks the head rows of these locks in these queues, sorted, creating them if necessary, and
/// returns the tasks that are the heads.
pub(crate) static LOCK_OWNERS: Sql = Sql::new(
    &[TEXTS, TEXTS],
    "INSERT INTO $s.lock_owners AS o (lock, queue) SELECT * FROM unnest($1::text[], $2::text[])
    ON CONFLICT (lock, queue) DO UPDATE SET id = o.id RETURNING lock, queue, id",
);

/// Counts the tasks that are blocked by each of these locks in these queues. The head rows are
/// locked, so no other session can block a task behind them now.
pub(crate) static COUNT_BLOCKED: Sql = Sql::new(
    &[TEXTS, TEXTS],
    "SELECT l.lock, l.queue, (SELECT count(*) FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock AND t.queue = l.queue)
    FROM unnest($1::text[], $2::text[]) AS l (lock, queue)",
);

/// Loads tasks, in the order of `$1`, which is that of their ids, with row locks until the end of
/// the transaction; and the time.
pub(crate) static LOAD: Sql = Sql::new(
    &[UUIDS],
    "SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id FOR UPDATE) t",
);

/// Like [`LOAD`], without the payloads. Of a task that was loaded so, [`codec::SAVE`] keeps the payload: it does
/// not write one that is as it was loaded.
pub(crate) static LOAD_BRIEF: Sql = Sql::new(
    &[UUIDS],
    "SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $BRIEF_TASK FROM $s.tasks t WHERE t.id = a.id FOR UPDATE) t",
);

/// Reads tasks without row locks.
pub(crate) static READ: Sql = Sql::new(
    &[UUIDS],
    "SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id) t",
);

/// Loads those of these tasks that have ended, with row locks until the end of the transaction. A
/// transaction of the caller must not lock the row of a running task: its worker could not send
/// heartbeats for it.
pub(crate) static LOAD_FINISHED: Sql = Sql::new(
    &[UUIDS],
    "SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id AND t.state >= 4 FOR UPDATE) t",
);

/// Loads those of these tasks that are pending, with row locks until the end of the transaction. A
/// task that is being leased is skipped.
pub(crate) static LOAD_PENDING: Sql = Sql::new(
    &[UUIDS],
    "SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id AND t.state = 2 FOR UPDATE SKIP LOCKED) t",
);

/// Loads the first blocked task of each of these locks in these queues, except for the tasks `$3`, without the
/// payloads.
pub(crate) static FIRST_BLOCKED: Sql = Sql::new(
    &[TEXTS, TEXTS, UUIDS],
    "SELECT t.* FROM unnest($1::text[], $2::text[]) AS l (lock, queue) CROSS JOIN LATERAL (
        SELECT $BRIEF_TASK FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock AND t.queue = l.queue AND t.id <> ALL ($3)
        ORDER BY ($RANK), t.run_at, t.id LIMIT 1 FOR UPDATE) t",
);
