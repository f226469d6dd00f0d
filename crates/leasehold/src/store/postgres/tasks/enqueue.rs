//! Enqueuing of tasks on the slow path: those with a key, a lock or a runner's deadline. Simple tasks
//! are inserted by the insert batcher.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use super::codec::read_id;
use super::notifier::QueueChange;
use super::pool::Executor;
use super::transaction::{BEGIN, LOAD_FINISHED, LOAD_PENDING, READ, TaskTransaction, queue_changes};
use crate::model::{Admission, Enqueued, KeyOwner, NewTask, QueueName, Task, TaskId, TaskKey, Timestamp};
use crate::store::postgres::columns::{OwnedParam, column, invalid_row, params, queue_name, time};
use crate::store::postgres::connection::Session;
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, BIGS, INT, INTS, NOW, Sql, TEXT, TEXTS, UUID, UUIDS};

/// Results of adding tasks, and the queues to notify workers of.
pub(super) type EnqueueOutcome = (Vec<Enqueued>, Vec<QueueChange>);

/// Whether one statement can add the task.
pub(super) fn is_simple(new: &NewTask) -> bool {
    new.key.is_none() && new.lock.is_none() && new.runner_ttl.is_none() && new.timeout.is_none()
}

/// Returns the results for simple tasks, and the queues to notify workers of.
pub(super) fn all_enqueued(new: &[NewTask], since: Timestamp) -> EnqueueOutcome {
    let mut queues: BTreeMap<&QueueName, usize> = BTreeMap::new();
    for new in new {
        *queues.entry(&new.queue).or_default() += 1;
    }
    (new.iter().map(|new| Enqueued::Added(new.id)).collect(), queue_changes(queues, since))
}

/// Adds any tasks, in a transaction of its own.
pub(super) async fn enqueue(
    session: &Session,
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
    transaction.lock_heads(executor, &new.iter().filter_map(NewTask::chain).collect()).await?;
    let limited = new.iter().filter(|new| new.lock_queue_limit.is_some()).filter_map(NewTask::chain);
    transaction.count_blocked(executor, &limited.collect()).await?;
    let existing = existing(executor, new).await?;
    let (mut owners, created) = lock_keys(executor, new, &existing).await?;
    let rows = executor.query(&NOW, &[&now]).await?;
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
    delete_keys(
        executor,
        created.into_iter().filter(|(key, _)| !transaction.keys.contains_key(key)).collect(),
    )
    .await?;
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
    transaction.load_by(executor, &READ, &owners, now).await?;
    let finished = |id: &TaskId| transaction.get(*id).is_some_and(|task| task.state.is_terminal());
    let finished: Vec<TaskId> = owners.into_iter().filter(finished).collect();
    transaction.load_by(executor, &LOAD_FINISHED, &finished, now).await?;
    if !finished.iter().all(|id| transaction.is_locked(*id)) {
        return Ok(false);
    }
    let mut head_tasks = TaskTransaction::default();
    head_tasks.load_by(executor, &READ, heads, now).await?;
    let precedes_head = |new: &NewTask| {
        let head = head_tasks.get(transaction.head(&new.chain()?)?)?;
        Task::new(new, since).replaces(Some(head)).then_some(head.id)
    };
    let replaced: BTreeSet<TaskId> = new.iter().filter_map(precedes_head).collect();
    transaction.load_by(executor, &LOAD_PENDING, &replaced.into_iter().collect::<Vec<_>>(), now).await?;
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
    let owner = owner.map(KeyOwner::from);
    let Ok(admission) = new.admit(owner, |chain, _| Ok::<_, Infallible>(transaction.lock_queue(chain)));
    match admission {
        Admission::Refuse(answer) => return answer,
        Admission::Add { key_from: Some(earlier) } => transaction.clear_key(earlier),
        Admission::Add { key_from: None } => {}
    }
    if let Some(key) = key {
        owners.insert(key.clone(), new.id);
        transaction.keys.insert(key, new.id);
    }
    transaction.insert_task(Task::new(new, transaction.now));
    Enqueued::Added(new.id)
}

fn key_of(new: &NewTask) -> Option<(QueueName, TaskKey)> {
    new.key.clone().map(|key| (new.queue.clone(), key))
}

async fn existing(executor: &dyn Executor, new: &[NewTask]) -> Result<BTreeSet<TaskId>, PgError> {
    let ids = [column(new, |new| *new.id.as_uuid())];
    executor.query(&EXISTING_IDS, &params(&ids)).await?.iter().map(|row| read_id(row, 0)).collect()
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
    let (mut owners, mut created) = (Owners::new(), Owners::new());
    for row in executor.query(&LOCK_KEYS, &params(&key_columns(&wanted))).await? {
        let key = TaskKey::new(row.try_get::<_, &str>(1)?).map_err(invalid_row)?;
        let (key, id) = ((queue_name(&row, 0)?, key), read_id(&row, 2)?);
        if wanted.get(&key) == Some(&id) { &mut created } else { &mut owners }.insert(key, id);
    }
    Ok((owners, created))
}

/// Deletes keys that turned out not to be needed: a task that is twice in a batch may have two.
async fn delete_keys(executor: &dyn Executor, keys: Owners) -> Result<(), PgError> {
    if !keys.is_empty() {
        executor.query(&DELETE_KEYS, &params(&key_columns(&keys))).await?;
    }
    Ok(())
}

fn key_columns(keys: &Owners) -> [OwnedParam<'_>; 3] {
    [
        column(keys, |((queue, _), _)| queue.as_str()),
        column(keys, |((_, key), _)| key.as_str()),
        column(keys, |(_, id)| *id.as_uuid()),
    ]
}

// --- statements -----------------------------------------------------------------------------------

/// Adds simple tasks: without key or lock, each id once, sorted, so that concurrent inserts never
/// deadlock. Existing tasks are not changed. The rows are those of `Task::new` of the model.
pub(crate) static INSERT: Sql = Sql::new(
    &[UUIDS, TEXTS, TEXTS, BIGS, BIGS, INTS, INTS, BIGS, BIGS],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    new AS MATERIALIZED (
        SELECT n.*, coalesce(n.at, c.now + n.after, c.now) AS run_at, c.now FROM clock c,
            unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::integer[],
                $8::bigint[], $9::bigint[])
            AS n (id, queue, payload, at, after, priority, attempts, initial_delay, max_delay)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            queue, created_at, initial_delay, max_delay, attempts, payload)
        SELECT id, run_at, now, 0, 1, now, priority, 0, CASE WHEN run_at > now THEN 0 ELSE 2 END, false, queue,
            now, initial_delay, max_delay, attempts, payload
        FROM new ON CONFLICT (id) DO NOTHING RETURNING queue, priority, state),
    priorities AS (
        INSERT INTO $s.queue_priorities (queue, priority) SELECT DISTINCT queue, priority FROM added ORDER BY queue, priority
        ON CONFLICT DO NOTHING RETURNING queue),
    queues AS (
        INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM priorities ORDER BY queue ON CONFLICT DO NOTHING),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, count(*) FROM added GROUP BY queue, state)
    SELECT now FROM clock",
);

/// Like `INSERT`, for the most common case: all tasks are new, otherwise the statement fails; they
/// differ only in id and payload; they are due; and their queue and priority are known, otherwise
/// nothing is added and no row is returned. Most programs do this most often, so the statement
/// contains only what is necessary: each array and each step costs microseconds.
pub(crate) static INSERT_UNIFORM: Sql = Sql::new(
    &[UUIDS, TEXTS, TEXT, INT, INT, BIG, BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now FROM $s.queue_priorities WHERE queue = $3 AND priority = $4),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            queue, created_at, initial_delay, max_delay, attempts, payload)
        SELECT n.id, c.now, c.now, 0, 1, c.now, $4, 0, 2, false, $3, c.now, $6, $7, $5, n.payload
        FROM clock c, unnest($1::uuid[], $2::text[]) AS n (id, payload)),
    counted AS (INSERT INTO $s.task_counts SELECT $3, 2, cardinality($1) FROM clock)
    SELECT now FROM clock",
);

/// Like `INSERT_UNIFORM`, for one task.
pub(crate) static INSERT_ONE: Sql = Sql::new(
    &[UUID, TEXT, TEXT, INT, INT, BIG, BIG],
    "WITH clock AS MATERIALIZED (SELECT $NOW AS now FROM $s.queue_priorities WHERE queue = $3 AND priority = $4),
    counted AS (INSERT INTO $s.task_counts SELECT $3, 2, 1 FROM clock)
    INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
        queue, created_at, initial_delay, max_delay, attempts, payload)
    SELECT $1, c.now, c.now, 0, 1, c.now, $4, 0, 2, false, $3, c.now, $6, $7, $5, $2 FROM clock c RETURNING ready_at",
);

/// Creates the rows of queues and priorities.
pub(crate) static CREATE_QUEUES: Sql = Sql::new(
    &[TEXTS, INTS],
    "WITH priorities AS (
        INSERT INTO $s.queue_priorities (queue, priority) SELECT * FROM unnest($1::text[], $2::integer[])
        ON CONFLICT DO NOTHING RETURNING queue)
    INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM priorities ON CONFLICT DO NOTHING",
);

/// Selects those of these tasks that exist.
pub(crate) static EXISTING_IDS: Sql = Sql::new(
    &[UUIDS],
    "SELECT a.id FROM unnest($1::uuid[]) AS a (id)
    CROSS JOIN LATERAL (SELECT FROM $s.tasks t WHERE t.id = a.id OFFSET 0) t",
);

/// Inserts or locks the keys of these tasks, sorted, and returns their owners: no other session
/// decides about these keys until the end of the transaction.
pub(crate) static LOCK_KEYS: Sql = Sql::new(
    &[TEXTS, TEXTS, UUIDS],
    "INSERT INTO $s.task_keys AS k (queue, key, id) SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[])
    ON CONFLICT (queue, key) DO UPDATE SET id = k.id RETURNING queue, key, id",
);

/// Deletes keys that these tasks do not have after all.
pub(crate) static DELETE_KEYS: Sql = Sql::new(
    &[TEXTS, TEXTS, UUIDS],
    "DELETE FROM $s.task_keys k USING unnest($1::text[], $2::text[], $3::uuid[]) AS n (queue, key, id)
    WHERE k.queue = n.queue AND k.key = n.key AND k.id = n.id",
);
