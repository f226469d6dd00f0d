//! Adding tasks: simple ones in one statement; those with a key, a lock or a runner's deadline on
//! the slow path.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::bench::{BEGIN, Bench};
use super::columns::{Alike, NewColumns};
use super::link::{Line, Link};
use super::rows::{self, unreadable};
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{Chain, Enqueued, NewTask, QueueName, Task, TaskId, TaskKey, TaskState, Timestamp};
use crate::store::postgres::trouble::Fail;

/// Results of adding tasks, and the queues to notify workers of.
pub(super) type Added = (Vec<Enqueued>, Vec<Stir>);

/// Whether one statement can add the task.
pub(super) fn is_plain(new: &NewTask) -> bool {
    new.key.is_none() && new.lock.is_none() && new.wanted.is_none()
}

/// Returns each task once, in the order of the ids, so that concurrent inserts never deadlock.
pub(super) fn in_order<'a>(new: impl IntoIterator<Item = &'a NewTask>) -> Vec<&'a NewTask> {
    let mut sorted: Vec<&NewTask> = new.into_iter().collect();
    // The sort is stable: of two tasks with the same id the first is kept.
    sorted.sort_by_key(|new| new.id);
    sorted.dedup_by_key(|new| new.id);
    sorted
}

/// Adds simple tasks that are in order, and returns the time at which they were added.
pub(super) async fn plain(line: &dyn Line, new: &[&NewTask], now: Option<i64>) -> Result<Timestamp, Fail> {
    let columns = NewColumns::new(new);
    let rows = line.ask(Sql::Add, &columns.params(&now)).await?;
    let row = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()))?;
    rows::time(row, 0)
}

/// Adds simple tasks that are in order by the faster statement, and returns the time at which they
/// were added. Returns `None` if that statement does not apply to them.
pub(super) async fn alike(
    line: &dyn Line,
    new: &[&NewTask],
    now: Option<i64>,
) -> Result<Option<Timestamp>, Fail> {
    let Some(alike) = Alike::new(new) else { return Ok(None) };
    match line.ask(Sql::AddAlike, &alike.params(&now)).await.map_err(Fail::from) {
        Ok(rows) => rows.first().map(|row| rows::time(row, 0)).transpose(),
        Err(fail) if is_there(&fail) => Ok(None),
        Err(fail) => Err(fail),
    }
}

/// Whether one of the tasks already exists.
fn is_there(fail: &Fail) -> bool {
    matches!(fail, Fail::Said(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION))
}

/// Returns the results for simple tasks, and the queues to notify workers of.
pub(super) fn all_added(new: &[NewTask], since: Timestamp) -> Added {
    let mut queues: BTreeMap<&QueueName, usize> = BTreeMap::new();
    for new in new {
        *queues.entry(&new.queue).or_default() += 1;
    }
    let stirs = queues.into_iter().map(|(queue, tasks)| Stir { queue: queue.clone(), since, tasks });
    (new.iter().map(|new| Enqueued::Added(new.id)).collect(), stirs.collect())
}

/// Adds any tasks, in a transaction of its own.
pub(super) async fn in_a_transaction(link: &Link, new: &[NewTask], now: Option<i64>) -> Result<Added, Fail> {
    loop {
        link.say(BEGIN).await?;
        if let Some(added) = by_the_rules(link, new, now).await? {
            link.say("COMMIT").await?;
            return Ok(added);
        }
        // Another session has added one of them concurrently; it is visible to the next attempt.
        link.say("ROLLBACK").await?;
    }
}

/// Adds any tasks, in the open transaction. Returns `None`, and the transaction must not be
/// committed, if another session added one of them concurrently.
pub(super) async fn by_the_rules(
    line: &dyn Line,
    new: &[NewTask],
    now: Option<i64>,
) -> Result<Option<Added>, Fail> {
    let mut bench = Bench::default();
    bench.hold(line, &new.iter().filter_map(chain_of).collect()).await?;
    let narrow = new.iter().filter(|new| new.room.is_some()).filter_map(chain_of);
    bench.count_blocked(line, &narrow.collect()).await?;
    let known = known(line, new).await?;
    let (mut owners, made) = hold_keys(line, new, &known).await?;
    let rows = line.ask(Sql::Now, &[&now]).await?;
    let since = rows.first().map_or(Ok(Timestamp::default()), |row| rows::time(row, 0))?;
    let heads: Vec<TaskId> = bench.heads().collect();
    if !look(line, &mut bench, new, &owners, &heads, since, now).await? {
        return Ok(None);
    }
    bench.now = since;
    let answers = new.iter().map(|new| add_one(&mut bench, &mut owners, &known, new)).collect();
    if !bench.save(line).await? {
        return Ok(None);
    }
    drop_keys(line, made.into_iter().filter(|(key, _)| !bench.has_key(key)).collect()).await?;
    Ok(Some((answers, bench.stirred())))
}

/// Reads the tasks that own the keys of new ones, and the heads of their locks, and locks the rows
/// that may have to be changed: a finished task that loses its key, and a head that does not run
/// and that a new task precedes. A transaction of the caller may last long, so it must not lock a
/// running task. Returns `false` if one of them has changed meanwhile; the caller then tries again.
async fn look(
    line: &dyn Line,
    bench: &mut Bench,
    new: &[NewTask],
    owners: &Owners,
    heads: &[TaskId],
    since: Timestamp,
    now: Option<i64>,
) -> Result<bool, Fail> {
    let owners: Vec<TaskId> = owners.values().copied().collect();
    bench.load_by(line, Sql::Look, &owners, now).await?;
    let over = |id: &TaskId| bench.get(*id).is_some_and(|task| task.state.is_terminal());
    let over: Vec<TaskId> = owners.into_iter().filter(over).collect();
    bench.load_by(line, Sql::LoadOver, &over, now).await?;
    if !over.iter().all(|id| bench.holds(*id)) {
        return Ok(false);
    }
    let mut seen = Bench::default();
    seen.load_by(line, Sql::Look, heads, now).await?;
    let comes_before_its_head = |new: &NewTask| {
        let head = seen.get(bench.head(&chain_of(new)?)?)?;
        let waits = head.state == TaskState::Pending;
        (waits && Task::new(new, since).order() < head.order()).then_some(head.id)
    };
    let replaced: BTreeSet<TaskId> = new.iter().filter_map(comes_before_its_head).collect();
    bench.load_by(line, Sql::LoadPending, &replaced.into_iter().collect::<Vec<_>>(), now).await?;
    Ok(true)
}

type Owners = BTreeMap<(QueueName, TaskKey), TaskId>;

/// Adds one task, like [`TaskTable::enqueue`](crate::model::TaskTable::enqueue).
fn add_one(bench: &mut Bench, owners: &mut Owners, known: &BTreeSet<TaskId>, new: &NewTask) -> Enqueued {
    if known.contains(&new.id) || bench.get(new.id).is_some() {
        return Enqueued::Added(new.id);
    }
    let key = key_of(new);
    let owner = key.as_ref().and_then(|key| owners.get(key)).and_then(|owner| bench.get(*owner));
    let owner = owner.map(|earlier| (earlier.id, earlier.state, earlier.fingerprint));
    if let Some((id, state, fingerprint)) = owner
        && let Some(answer) = new.keyed_answer(id, state, fingerprint)
    {
        return answer;
    }
    if let Some(head) = bench.no_room(new) {
        return Enqueued::NoRoom(head);
    }
    if let Some(key) = key {
        if let Some((earlier, ..)) = owner {
            bench.pass_key(earlier);
        }
        owners.insert(key.clone(), new.id);
        bench.set_key(key, new.id);
    }
    bench.file(Task::new(new, bench.now));
    Enqueued::Added(new.id)
}

fn chain_of(new: &NewTask) -> Option<Chain> {
    new.lock.clone().map(|lock| (lock, new.queue.clone()))
}

fn key_of(new: &NewTask) -> Option<(QueueName, TaskKey)> {
    new.key.clone().map(|key| (new.queue.clone(), key))
}

async fn known(line: &dyn Line, new: &[NewTask]) -> Result<BTreeSet<TaskId>, Fail> {
    let ids: Vec<Uuid> = new.iter().map(|new| *new.id.as_uuid()).collect();
    line.ask(Sql::Known, &[&ids]).await?.iter().map(|row| rows::id(row, 0)).collect()
}

/// Locks the keys of these tasks. Returns the owners of existing keys, and the keys that were
/// created for this.
async fn hold_keys(
    line: &dyn Line,
    new: &[NewTask],
    known: &BTreeSet<TaskId>,
) -> Result<(Owners, Owners), Fail> {
    let mut wanted = Owners::new();
    for new in new.iter().filter(|new| !known.contains(&new.id)) {
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
    let (mut owners, mut made) = (Owners::new(), Owners::new());
    for row in line.ask(Sql::HoldKeys, &[&queues, &keys, &ids]).await? {
        let queue = QueueName::new(row.try_get::<_, &str>(0)?).map_err(unreadable)?;
        let key = TaskKey::new(row.try_get::<_, &str>(1)?).map_err(unreadable)?;
        let (key, id) = ((queue, key), rows::id(&row, 2)?);
        if wanted.get(&key) == Some(&id) { &mut made } else { &mut owners }.insert(key, id);
    }
    Ok((owners, made))
}

/// Deletes keys that turned out not to be needed: a task that is twice in a batch may have two.
async fn drop_keys(line: &dyn Line, keys: Owners) -> Result<(), Fail> {
    if keys.is_empty() {
        return Ok(());
    }
    let queues: Vec<&str> = keys.keys().map(|(queue, _)| queue.as_str()).collect();
    let names: Vec<&str> = keys.keys().map(|(_, key)| key.as_str()).collect();
    let ids: Vec<Uuid> = keys.values().map(|id| *id.as_uuid()).collect();
    line.ask(Sql::DropKeys, &[&queues, &names, &ids]).await?;
    Ok(())
}
