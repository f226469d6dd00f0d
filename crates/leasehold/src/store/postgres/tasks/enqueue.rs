//! Enqueuing of tasks on the slow path: those with a key, a lock or a runner's deadline. Simple tasks
//! are inserted by the insert batcher.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::codec::read_id;
use super::notifier::QueueChange;
use super::pool::{Executor, TaskSession};
use super::sql::Sql;
use super::transaction::{BEGIN, TaskTransaction};
use crate::model::{Chain, Enqueued, NewTask, QueueName, Task, TaskId, TaskKey, TaskState, Timestamp};
use crate::store::postgres::columns::{invalid_row, time};
use crate::store::postgres::error::PgError;

/// Results of adding tasks, and the queues to notify workers of.
pub(super) type EnqueueOutcome = (Vec<Enqueued>, Vec<QueueChange>);

/// Whether one statement can add the task.
pub(super) fn is_simple(new: &NewTask) -> bool {
    new.key.is_none() && new.lock.is_none() && new.wanted.is_none()
}

/// Returns the results for simple tasks, and the queues to notify workers of.
pub(super) fn all_enqueued(new: &[NewTask], since: Timestamp) -> EnqueueOutcome {
    let mut queues: BTreeMap<&QueueName, usize> = BTreeMap::new();
    for new in new {
        *queues.entry(&new.queue).or_default() += 1;
    }
    let changes = queues.into_iter().map(|(queue, tasks)| QueueChange { queue: queue.clone(), since, tasks });
    (new.iter().map(|new| Enqueued::Added(new.id)).collect(), changes.collect())
}

/// Adds any tasks, in a transaction of its own.
pub(super) async fn enqueue(
    session: &TaskSession,
    new: &[NewTask],
    now: Option<i64>,
) -> Result<EnqueueOutcome, PgError> {
    loop {
        session.simple_query(BEGIN).await?;
        if let Some(added) = enqueue_in(session, new, now).await? {
            session.simple_query("COMMIT").await?;
            return Ok(added);
        }
        // Another session has added one of them concurrently; it is visible to the next attempt.
        session.simple_query("ROLLBACK").await?;
    }
}

/// Adds any tasks, in the open transaction. Returns `None`, and the transaction must not be
/// committed, if another session added one of them concurrently.
pub(super) async fn enqueue_in(
    executor: &dyn Executor,
    new: &[NewTask],
    now: Option<i64>,
) -> Result<Option<EnqueueOutcome>, PgError> {
    let mut transaction = TaskTransaction::default();
    transaction.lock_heads(executor, &new.iter().filter_map(chain_of).collect()).await?;
    let limited = new.iter().filter(|new| new.room.is_some()).filter_map(chain_of);
    transaction.count_blocked(executor, &limited.collect()).await?;
    let existing = existing(executor, new).await?;
    let (mut owners, created) = lock_keys(executor, new, &existing).await?;
    let rows = executor.query(Sql::Now, &[&now]).await?;
    let since = rows.first().map_or(Ok(Timestamp::default()), |row| time(row, 0))?;
    let heads: Vec<TaskId> = transaction.heads().collect();
    if !load_related(executor, &mut transaction, new, &owners, &heads, since, now).await? {
        return Ok(None);
    }
    transaction.now = since;
    let answers = new.iter().map(|new| enqueue_one(&mut transaction, &mut owners, &existing, new)).collect();
    if !transaction.save(executor).await? {
        return Ok(None);
    }
    delete_keys(executor, created.into_iter().filter(|(key, _)| !transaction.has_key(key)).collect()).await?;
    Ok(Some((answers, transaction.changed_queues())))
}

/// Reads the tasks that own the keys of new ones, and the heads of their locks, and locks the rows
/// that may have to be changed: a finished task that loses its key, and a head that does not run
/// and that a new task precedes. A transaction of the caller may last long, so it must not lock a
/// running task. Returns `false` if one of them has changed meanwhile; the caller then tries again.
async fn load_related(
    executor: &dyn Executor,
    transaction: &mut TaskTransaction,
    new: &[NewTask],
    owners: &Owners,
    heads: &[TaskId],
    since: Timestamp,
    now: Option<i64>,
) -> Result<bool, PgError> {
    let owners: Vec<TaskId> = owners.values().copied().collect();
    transaction.load_by(executor, Sql::Read, &owners, now).await?;
    let finished = |id: &TaskId| transaction.get(*id).is_some_and(|task| task.state.is_terminal());
    let finished: Vec<TaskId> = owners.into_iter().filter(finished).collect();
    transaction.load_by(executor, Sql::LoadFinished, &finished, now).await?;
    if !finished.iter().all(|id| transaction.is_locked(*id)) {
        return Ok(false);
    }
    let mut head_tasks = TaskTransaction::default();
    head_tasks.load_by(executor, Sql::Read, heads, now).await?;
    let precedes_head = |new: &NewTask| {
        let head = head_tasks.get(transaction.head(&chain_of(new)?)?)?;
        let waits = head.state == TaskState::Pending;
        (waits && Task::new(new, since).order() < head.order()).then_some(head.id)
    };
    let replaced: BTreeSet<TaskId> = new.iter().filter_map(precedes_head).collect();
    transaction.load_by(executor, Sql::LoadPending, &replaced.into_iter().collect::<Vec<_>>(), now).await?;
    Ok(true)
}

type Owners = BTreeMap<(QueueName, TaskKey), TaskId>;

/// Adds one task, like [`TaskTable::enqueue`](crate::model::TaskTable::enqueue).
fn enqueue_one(
    transaction: &mut TaskTransaction,
    owners: &mut Owners,
    existing: &BTreeSet<TaskId>,
    new: &NewTask,
) -> Enqueued {
    if existing.contains(&new.id) || transaction.get(new.id).is_some() {
        return Enqueued::Added(new.id);
    }
    let key = key_of(new);
    let owner = key.as_ref().and_then(|key| owners.get(key)).and_then(|owner| transaction.get(*owner));
    let owner = owner.map(|earlier| (earlier.id, earlier.state, earlier.fingerprint));
    if let Some((id, state, fingerprint)) = owner
        && let Some(answer) = new.keyed_answer(id, state, fingerprint)
    {
        return answer;
    }
    if let Some(head) = transaction.full_chain_head(new) {
        return Enqueued::NoRoom(head);
    }
    if let Some(key) = key {
        if let Some((earlier, ..)) = owner {
            transaction.clear_key(earlier);
        }
        owners.insert(key.clone(), new.id);
        transaction.set_key(key, new.id);
    }
    transaction.insert_task(Task::new(new, transaction.now));
    Enqueued::Added(new.id)
}

fn chain_of(new: &NewTask) -> Option<Chain> {
    new.lock.clone().map(|lock| (lock, new.queue.clone()))
}

fn key_of(new: &NewTask) -> Option<(QueueName, TaskKey)> {
    new.key.clone().map(|key| (new.queue.clone(), key))
}

async fn existing(executor: &dyn Executor, new: &[NewTask]) -> Result<BTreeSet<TaskId>, PgError> {
    let ids: Vec<Uuid> = new.iter().map(|new| *new.id.as_uuid()).collect();
    executor.query(Sql::ExistingIds, &[&ids]).await?.iter().map(|row| read_id(row, 0)).collect()
}

/// Locks the keys of these tasks. Returns the owners of existing keys, and the keys that were
/// created for this.
async fn lock_keys(
    executor: &dyn Executor,
    new: &[NewTask],
    existing: &BTreeSet<TaskId>,
) -> Result<(Owners, Owners), PgError> {
    let mut wanted = Owners::new();
    for new in new.iter().filter(|new| !existing.contains(&new.id)) {
        if let Some(key) = key_of(new) {
            wanted.entry(key).or_insert(new.id);
        }
    }
    if wanted.is_empty() {
        return Ok((wanted, Owners::new()));
    }
    let queues: Vec<&str> = wanted.keys().map(|(queue, _)| queue.as_str()).collect();
    let keys: Vec<&str> = wanted.keys().map(|(_, key)| key.as_str()).collect();
    let ids: Vec<Uuid> = wanted.values().map(|id| *id.as_uuid()).collect();
    let (mut owners, mut created) = (Owners::new(), Owners::new());
    for row in executor.query(Sql::LockKeys, &[&queues, &keys, &ids]).await? {
        let queue = QueueName::new(row.try_get::<_, &str>(0)?).map_err(invalid_row)?;
        let key = TaskKey::new(row.try_get::<_, &str>(1)?).map_err(invalid_row)?;
        let (key, id) = ((queue, key), read_id(&row, 2)?);
        if wanted.get(&key) == Some(&id) { &mut created } else { &mut owners }.insert(key, id);
    }
    Ok((owners, created))
}

/// Deletes keys that turned out not to be needed: a task that is twice in a batch may have two.
async fn delete_keys(executor: &dyn Executor, keys: Owners) -> Result<(), PgError> {
    if keys.is_empty() {
        return Ok(());
    }
    let queues: Vec<&str> = keys.keys().map(|(queue, _)| queue.as_str()).collect();
    let names: Vec<&str> = keys.keys().map(|(_, key)| key.as_str()).collect();
    let ids: Vec<Uuid> = keys.values().map(|id| *id.as_uuid()).collect();
    executor.query(Sql::DeleteKeys, &[&queues, &names, &ids]).await?;
    Ok(())
}
