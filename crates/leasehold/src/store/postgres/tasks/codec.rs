//! Conversion of tasks to and from columns.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use uuid::Uuid;

use crate::model::{
    Chain, Fingerprint, LockName, Message, Payload, Priority, QueueName, RetryPolicy, Task, TaskId, TaskKey,
    TaskState, Token, WorkerId,
};
use crate::store::postgres::columns::{
    OwnedParam, column, count, int4, int8, invalid_row, json_column, maybe_time, micros, number, queue_name,
    read_json, time, ttl, ttl_micros,
};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIGS, BOOLS, INTS, SMALLS, Sql, TEXTS, UUIDS};

/// Number of columns of a task; additional columns of a statement follow them.
pub(super) const TASK_COLUMNS: usize = 32;

pub(super) fn read_task(row: &Row) -> Result<Task, PgError> {
    let payload = Payload::trusted(row.try_get::<_, &str>(18)?);
    // A task that was added without a key has no fingerprint.
    let fingerprint =
        row.try_get::<_, Option<i64>>(23)?.map(|print| Fingerprint::from_u64(print.cast_unsigned()));
    let state = read_state(row.try_get(2)?)?;
    Ok(Task {
        id: read_id(row, 0)?,
        queue: queue_name(row, 1)?,
        state,
        priority: Priority::new(row.try_get(3)?).map_err(invalid_row)?,
        run_at: time(row, 4)?,
        ready_at: time(row, 5)?,
        lock: row.try_get::<_, Option<&str>>(6)?.map(LockName::new).transpose().map_err(invalid_row)?,
        attempt: count(row, 7)?,
        begun: state == TaskState::Running && !row.try_get::<_, bool>(28)?,
        expiries: count(row, 29)?,
        token: Token::new(number(row, 8)?).map_err(invalid_row)?,
        version: number(row, 9)?,
        worker: row.try_get::<_, Option<Uuid>>(10)?.map(WorkerId::from_uuid),
        leased_at: maybe_time(row, 11)?,
        lease_expires_at: maybe_time(row, 12)?,
        progress: read_json(row, 13)?,
        cancel: read_json(row, 14)?,
        updated_at: time(row, 15)?,
        finished_at: maybe_time(row, 16)?,
        archived: row.try_get(17)?,
        fingerprint: fingerprint.unwrap_or(Fingerprint::NONE),
        payload,
        result: row.try_get::<_, Option<&str>>(19)?.map(Payload::trusted),
        error: row.try_get::<_, Option<&str>>(20)?.map(Message::new),
        events: read_json(row, 21)?.unwrap_or_default(),
        key: row.try_get::<_, Option<&str>>(22)?.map(TaskKey::new).transpose().map_err(invalid_row)?,
        retries: RetryPolicy {
            attempts: count(row, 24)?,
            initial_delay: ttl(row, 25)?,
            max_delay: ttl(row, 26)?,
        },
        created_at: time(row, 27)?,
        runner_deadline: maybe_time(row, 30)?,
        timeout: row.try_get::<_, Option<i64>>(31)?.map(|_| ttl(row, 31)).transpose()?,
    })
}

pub(super) fn read_id(row: &Row, at: usize) -> Result<TaskId, PgError> {
    Ok(TaskId::from_uuid(row.try_get(at)?))
}

pub(super) fn read_state(number: i16) -> Result<TaskState, PgError> {
    let found = usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number)).copied();
    found.ok_or_else(|| PgError::InvalidRow(format!("invalid state of a task: {number}").into()))
}

/// Task that has changed, after its state before; `None` if the task is new.
pub(super) type ChangedTask<'a> = (Option<&'a Task>, &'a Task);

/// Returns the parameters of [`SAVE`]: the changed tasks, the heads of chains, `None` where a chain has no
/// head, and the tasks that keys refer to.
pub(super) fn save_params<'a>(
    changed: &'a [ChangedTask<'a>],
    heads: &'a BTreeMap<Chain, Option<TaskId>>,
    keys: &'a BTreeMap<(QueueName, TaskKey), TaskId>,
) -> Result<Vec<OwnedParam<'a>>, PgError> {
    let mut counts: BTreeMap<(&QueueName, TaskState), i64> = BTreeMap::new();
    for (before, after) in changed {
        for (task, sign) in before.iter().map(|before| (before, -1)).chain([(after, 1)]) {
            if !task.archived {
                *counts.entry((&task.queue, task.state)).or_default() += sign;
            }
        }
    }
    counts.retain(|_, delta| *delta != 0);
    let levels = changed_levels(changed);
    Ok(vec![
        column(changed, |(_, task)| *task.id.as_uuid()),
        column(changed, |(before, _)| before.is_none()),
        column(changed, |(before, task)| before.is_none_or(|before| has_other_body(before, task))),
        column(changed, |(_, task)| task.queue.as_str()),
        column(changed, |(_, task)| task.state as i16),
        column(changed, |(_, task)| task.priority.get()),
        column(changed, |(_, task)| micros(task.run_at)),
        column(changed, |(_, task)| micros(task.ready_at)),
        column(changed, |(_, task)| task.lock.as_ref().map(LockName::as_str)),
        column(changed, |(_, task)| int4(task.attempt)),
        column(changed, |(_, task)| int8(task.token.get())),
        column(changed, |(_, task)| int8(task.version)),
        column(changed, |(_, task)| task.worker.map(|worker| *worker.as_uuid())),
        column(changed, |(_, task)| task.leased_at.map(micros)),
        column(changed, |(_, task)| task.lease_expires_at.map(micros)),
        json_column(changed, |(_, task)| task.progress.as_ref())?,
        json_column(changed, |(_, task)| task.cancel.as_ref())?,
        column(changed, |(_, task)| micros(task.updated_at)),
        column(changed, |(_, task)| task.finished_at.map(micros)),
        column(changed, |(_, task)| task.archived),
        column(changed, |(before, task)| {
            let is_same = before.is_some_and(|before| before.payload == task.payload);
            (!is_same).then(|| task.payload.as_str())
        }),
        column(changed, |(_, task)| task.result.as_ref().map(Payload::as_str)),
        column(changed, |(_, task)| task.error.as_ref().map(Message::as_str)),
        json_column(changed, |(_, task)| Some(&task.events).filter(|events| !events.is_empty()))?,
        column(changed, |(_, task)| task.key.as_ref().map(TaskKey::as_str)),
        column(changed, |(_, task)| task.fingerprint.get().cast_signed()),
        column(changed, |(_, task)| int4(task.retries.attempts)),
        column(changed, |(_, task)| ttl_micros(task.retries.initial_delay)),
        column(changed, |(_, task)| ttl_micros(task.retries.max_delay)),
        column(changed, |(_, task)| micros(task.created_at)),
        column(changed, |(_, task)| task.state == TaskState::Running && !task.begun),
        column(changed, |(_, task)| int4(task.expiries)),
        column(changed, |(before, task)| is_early(*before, task)),
        column(changed, |(_, task)| task.runner_deadline.map(micros)),
        column(&counts, |((queue, _), _)| queue.as_str()),
        column(&counts, |((_, state), _)| *state as i16),
        column(&counts, |(_, delta)| *delta),
        column(heads, |((lock, _), _)| lock.as_str()),
        column(heads, |((_, queue), _)| queue.as_str()),
        column(heads, |(_, id)| id.map(|id| *id.as_uuid())),
        column(&levels, |((queue, _), _)| queue.as_str()),
        column(&levels, |((_, priority), _)| *priority),
        column(&levels, |(_, (moved, _))| *moved),
        column(&levels, |(_, (_, early))| *early),
        column(keys, |((queue, _), _)| queue.as_str()),
        column(keys, |((_, key), _)| key.as_str()),
        column(keys, |(_, id)| *id.as_uuid()),
        column(changed, |(_, task)| task.timeout.map(ttl_micros)),
    ])
}

/// Returns the levels, which are a queue and a priority, that may be new, or whose tasks have changed
/// their positions, so that cursors have passed them: whether a pending task was moved to another
/// position, and whether a task became pending before others.
fn changed_levels<'a>(changed: &[ChangedTask<'a>]) -> BTreeMap<(&'a QueueName, i32), (bool, bool)> {
    let mut levels: BTreeMap<_, (bool, bool)> = BTreeMap::new();
    for (before, after) in changed {
        let early = is_early(*before, after) == Some(true);
        let stays = |before: &Task| before.priority == after.priority && !is_moved(before, after);
        if before.is_some_and(stays) && !early {
            continue;
        }
        let waited = before.is_some_and(|before| before.state == TaskState::Pending);
        let moved = waited && after.state == TaskState::Pending;
        let level = levels.entry((&after.queue, after.priority.get())).or_default();
        *level = (moved || level.0, early || level.1);
    }
    levels
}

/// Whether the task was pending and is now pending at another position.
fn is_moved(before: &Task, after: &Task) -> bool {
    let pending = |task: &Task| task.state == TaskState::Pending;
    pending(before) && pending(after) && before.order() != after.order()
}

/// Whether the task became pending before tasks that were pending already; `None` if that has not
/// changed. A task that is moved to another priority is found there because the generation increases.
fn is_early(before: Option<&Task>, after: &Task) -> Option<bool> {
    let before = before?;
    match (before.state, after.state) {
        (TaskState::Pending, TaskState::Pending) => (before.priority != after.priority).then_some(false),
        (_, TaskState::Pending) => Some(after.ready_at == before.ready_at),
        _ => None,
    }
}

fn has_other_body(before: &Task, after: &Task) -> bool {
    before.payload != after.payload
        || before.result != after.result
        || before.error != after.error
        || before.events != after.events
        || before.key != after.key
        || before.retries != after.retries
}

// --- statements -----------------------------------------------------------------------------------

/// Saves new tasks and changed tasks, with all related rows. Returns the number of new tasks that
/// were added: a lower number than expected means that another session has just added one of them,
/// and the transaction must be rolled back. A priority that is already as required is not written: all
/// transactions that change its tasks would wait for each other.
pub(crate) static SAVE: Sql = Sql::new(
    &[
    UUIDS, BOOLS, BOOLS, TEXTS, SMALLS, INTS, BIGS, BIGS, TEXTS, INTS, BIGS, BIGS, UUIDS, BIGS, BIGS, TEXTS,
    TEXTS, BIGS, BIGS, BOOLS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, BIGS, INTS, BIGS, BIGS, BIGS, BOOLS, INTS,
    BOOLS, BIGS, TEXTS, SMALLS, BIGS, TEXTS, TEXTS, UUIDS, TEXTS, INTS, BOOLS, BOOLS, TEXTS, TEXTS, UUIDS,
    BIGS,
],
    "WITH tasks AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::boolean[], $3::boolean[], $4::text[], $5::smallint[], $6::integer[],
            $7::bigint[], $8::bigint[], $9::text[], $10::integer[], $11::bigint[], $12::bigint[], $13::uuid[],
            $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::bigint[], $19::bigint[], $20::boolean[],
            $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::bigint[], $27::integer[],
            $28::bigint[], $29::bigint[], $30::bigint[], $31::boolean[], $32::integer[], $33::boolean[], $34::bigint[],
            $48::bigint[])
        AS n (id, is_new, has_body, queue, state, priority, run_at, ready_at, lock, attempt, token, version, worker,
            leased_at, lease_expires_at, progress, cancel, updated_at, finished_at, archived, payload, result,
            error, events, key, fingerprint, attempts, initial_delay, max_delay, created_at, prefetched, expiries,
            early, runner_deadline, timeout)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, queue,
            lock, created_at, fingerprint, initial_delay, max_delay, attempts, payload, key, runner_deadline,
            timeout)
        SELECT id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, queue, lock,
            created_at, fingerprint, initial_delay, max_delay, attempts, payload, key, runner_deadline, timeout
        FROM tasks WHERE is_new ON CONFLICT (id) DO NOTHING RETURNING id),
    changed AS (
        UPDATE $s.tasks t SET run_at = n.run_at, ready_at = n.ready_at, token = n.token, version = n.version,
            updated_at = n.updated_at, priority = n.priority, attempt = n.attempt, state = n.state,
            archived = n.archived, leased_at = n.leased_at,
            lease_expires_at = n.lease_expires_at, finished_at = n.finished_at, worker = n.worker,
            prefetched = n.prefetched, expiries = n.expiries, progress = n.progress, cancel = n.cancel,
            fingerprint = n.fingerprint, key = n.key, attempts = n.attempts, early = coalesce(n.early, t.early),
            runner_deadline = n.runner_deadline, initial_delay = n.initial_delay, max_delay = n.max_delay,
            payload = coalesce(n.payload, t.payload),
            result = CASE WHEN n.has_body THEN n.result ELSE t.result END,
            error = CASE WHEN n.has_body THEN n.error ELSE t.error END,
            events = CASE WHEN n.has_body THEN n.events ELSE t.events END
        FROM tasks n WHERE t.id = n.id AND NOT n.is_new),
    counted AS (
        INSERT INTO $s.task_counts SELECT * FROM unnest($35::text[], $36::smallint[], $37::bigint[])),
    owners AS MATERIALIZED (SELECT * FROM unnest($38::text[], $39::text[], $40::uuid[]) AS n (lock, queue, id)),
    locks_freed AS (
        DELETE FROM $s.lock_owners o USING owners n WHERE o.lock = n.lock AND o.queue = n.queue AND n.id IS NULL),
    locks_taken AS (
        UPDATE $s.lock_owners o SET id = n.id FROM owners n
        WHERE o.lock = n.lock AND o.queue = n.queue AND n.id IS NOT NULL AND o.id IS DISTINCT FROM n.id),
    priorities AS (
        INSERT INTO $s.queue_priorities AS p (queue, priority, generation, has_early)
        SELECT n.queue, n.priority, n.moved::integer, n.early
        FROM unnest($41::text[], $42::integer[], $43::boolean[], $44::boolean[]) AS n (queue, priority, moved, early)
        WHERE n.moved OR NOT EXISTS (
            SELECT FROM $s.queue_priorities p
            WHERE p.queue = n.queue AND p.priority = n.priority AND (p.has_early OR NOT n.early))
        ON CONFLICT (queue, priority) DO UPDATE
            SET generation = p.generation + excluded.generation, has_early = p.has_early OR excluded.has_early
        RETURNING queue),
    queues AS (
        INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM priorities ON CONFLICT DO NOTHING),
    keys AS (
        UPDATE $s.task_keys k SET id = n.id FROM unnest($45::text[], $46::text[], $47::uuid[]) AS n (queue, key, id)
        WHERE k.queue = n.queue AND k.key = n.key AND k.id <> n.id)
    SELECT count(*) FROM added",
);
