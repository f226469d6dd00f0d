//! Adding tasks: plain ones by one statement; those with a key or a lock by the rules.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::bench::{BEGIN, Bench};
use super::columns::NewColumns;
use super::link::{Line, Link};
use super::rows::{self, unreadable};
use super::sql::Sql;
use super::wakes::Stir;
use crate::model::{Enqueued, LockName, NewTask, QueueName, Task, TaskId, TaskKey, Timestamp};
use crate::store::postgres::trouble::Fail;

/// What came of it, and what workers may want to know.
pub(super) type Added = (Vec<Enqueued>, Vec<Stir>);

/// Whether a statement is all it takes.
pub(super) fn is_plain(new: &NewTask) -> bool {
    new.key.is_none() && new.lock.is_none()
}

/// Adds plain tasks, by one of the two statements for it; says when. None if the quicker one had to leave it.
pub(super) async fn plain(
    line: &dyn Line,
    what: Sql,
    new: impl IntoIterator<Item = &NewTask> + Send,
    now: Option<i64>,
) -> Result<Option<Timestamp>, Fail> {
    let columns = NewColumns::new(new);
    let rows = line.ask(what, &columns.params(&now)).await?;
    let row = rows.first().ok_or_else(|| Fail::Unreadable("there is no time".into()))?;
    let is_added = row.try_get(1)?;
    rows::time(row, 0).map(|since| Some(since).filter(|_| is_added))
}

/// Whether one of the tasks is there already.
pub(super) fn is_there(fail: &Fail) -> bool {
    matches!(fail, Fail::Said(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION))
}

/// The answers for plain tasks, and what workers may want to know.
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
        // Somebody added one of them in between: now it is there.
        link.say("ROLLBACK").await?;
    }
}

/// Adds any tasks, in the transaction that is open. None, and it must not be committed, if one of them was added by
/// somebody else at the same time.
pub(super) async fn by_the_rules(
    line: &dyn Line,
    new: &[NewTask],
    now: Option<i64>,
) -> Result<Option<Added>, Fail> {
    let mut bench = Bench::default();
    let locks: BTreeSet<LockName> = new.iter().filter_map(|new| new.lock.clone()).collect();
    bench.hold(line, &locks).await?;
    let narrow = new.iter().filter(|new| new.room.is_some()).filter_map(|new| new.lock.clone());
    bench.count_blocked(line, &narrow.collect()).await?;
    let known = known(line, new).await?;
    let (mut owners, made) = hold_keys(line, new, &known).await?;
    let earlier: BTreeSet<TaskId> = owners.values().copied().collect();
    bench.load(line, &earlier.into_iter().collect::<Vec<_>>(), now).await?;
    let rows = line.ask(Sql::Now, &[&now]).await?;
    bench.now = rows.first().map_or(Ok(Timestamp::default()), |row| rows::time(row, 0))?;
    let answers = new.iter().map(|new| add_one(&mut bench, &mut owners, &known, new)).collect();
    if !bench.save(line).await? {
        return Ok(None);
    }
    drop_keys(line, made.into_iter().filter(|(key, _)| !bench.has_key(key)).collect()).await?;
    Ok(Some((answers, bench.stirred())))
}

type Owners = BTreeMap<(QueueName, TaskKey), TaskId>;

/// As [`TaskTable::enqueue`](crate::model::TaskTable::enqueue) does it.
fn add_one(bench: &mut Bench, owners: &mut Owners, known: &BTreeSet<TaskId>, new: &NewTask) -> Enqueued {
    if known.contains(&new.id) || bench.get(new.id).is_some() {
        return Enqueued::Added(new.id);
    }
    let key = key_of(new);
    let owner = key.as_ref().and_then(|key| owners.get(key)).and_then(|owner| bench.get(*owner));
    let owner = owner.map(|earlier| (earlier.id, earlier.state, earlier.fingerprint));
    if let Some((id, state, fingerprint)) = owner {
        if fingerprint != new.fingerprint() {
            return Enqueued::KeyReused(id);
        }
        if !new.reuse.allows(state) {
            return Enqueued::Duplicate(id);
        }
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

fn key_of(new: &NewTask) -> Option<(QueueName, TaskKey)> {
    new.key.clone().map(|key| (new.queue.clone(), key))
}

async fn known(line: &dyn Line, new: &[NewTask]) -> Result<BTreeSet<TaskId>, Fail> {
    let ids: Vec<Uuid> = new.iter().map(|new| *new.id.as_uuid()).collect();
    line.ask(Sql::Known, &[&ids]).await?.iter().map(|row| rows::id(row, 0)).collect()
}

/// Holds the keys of these tasks: says whose they are, and which of them were made for that.
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

/// Lets go of keys that turned out not to be needed: a task that is twice in a batch may have two.
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
