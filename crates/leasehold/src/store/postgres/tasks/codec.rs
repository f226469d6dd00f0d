//! Conversion of tasks to and from columns.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::model::{
    Chain, Fingerprint, LockName, Message, Payload, Priority, QueueName, RetryPolicy, Task, TaskId, TaskKey,
    TaskState, Token, WorkerId,
};
use crate::store::postgres::columns::{
    count, int4, int8, invalid_row, maybe_time, micros, number, read_json, time, to_json, ttl, ttl_micros,
};
use crate::store::postgres::connection::Param;
use crate::store::postgres::error::PgError;

/// Number of columns of a task; additional columns of a statement follow them.
pub(super) const TASK_COLUMNS: usize = 31;

/// Reads a task from the first columns of a row.
pub(super) fn read_task(row: &Row) -> Result<Task, PgError> {
    let payload = Payload::trusted(row.try_get::<_, &str>(18)?);
    // A task that was added without a key has no fingerprint.
    let fingerprint =
        row.try_get::<_, Option<i64>>(23)?.map(|print| Fingerprint::from_u64(print.cast_unsigned()));
    let state = read_state(row.try_get(2)?)?;
    Ok(Task {
        id: read_id(row, 0)?,
        queue: QueueName::new(row.try_get::<_, &str>(1)?).map_err(invalid_row)?,
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
    })
}

pub(super) fn read_id(row: &Row, at: usize) -> Result<TaskId, PgError> {
    Ok(TaskId::from_uuid(row.try_get(at)?))
}

pub(super) fn read_state(number: i16) -> Result<TaskState, PgError> {
    let found = usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number)).copied();
    found.ok_or_else(|| PgError::InvalidRow(format!("invalid state of a task: {number}").into()))
}

/// Columns of tasks as the slow path has left them, with all related rows.
#[derive(Debug, Default)]
pub(super) struct TaskColumns {
    id: Vec<Uuid>,
    is_new: Vec<bool>,
    has_body: Vec<bool>,
    queue: Vec<String>,
    state: Vec<i16>,
    priority: Vec<i32>,
    run_at: Vec<i64>,
    ready_at: Vec<i64>,
    lock: Vec<Option<String>>,
    attempt: Vec<i32>,
    token: Vec<i64>,
    version: Vec<i64>,
    worker: Vec<Option<Uuid>>,
    leased_at: Vec<Option<i64>>,
    lease_expires_at: Vec<Option<i64>>,
    progress: Vec<Option<String>>,
    cancel: Vec<Option<String>>,
    updated_at: Vec<i64>,
    finished_at: Vec<Option<i64>>,
    archived: Vec<bool>,
    payload: Vec<Option<String>>,
    result: Vec<Option<String>>,
    error: Vec<Option<String>>,
    events: Vec<Option<String>>,
    key: Vec<Option<String>>,
    fingerprint: Vec<i64>,
    attempts: Vec<i32>,
    initial_delay: Vec<i64>,
    max_delay: Vec<i64>,
    created_at: Vec<i64>,
    prefetched: Vec<bool>,
    expiries: Vec<i32>,
    early: Vec<Option<bool>>,
    runner_deadline: Vec<Option<i64>>,
    count_queue: Vec<String>,
    count_state: Vec<i16>,
    count_delta: Vec<i64>,
    head_lock: Vec<String>,
    head_queue: Vec<String>,
    head_id: Vec<Option<Uuid>>,
    level_queue: Vec<String>,
    level_priority: Vec<i32>,
    level_moved: Vec<bool>,
    level_early: Vec<bool>,
    key_queue: Vec<String>,
    key_key: Vec<String>,
    key_id: Vec<Uuid>,
    counts: BTreeMap<(QueueName, TaskState), i64>,
    /// By level, which is a queue and a priority: whether a pending task was moved to another
    /// position, and whether a task became pending before others.
    levels: BTreeMap<(QueueName, i32), (bool, bool)>,
}

impl TaskColumns {
    /// Adds a task with its previous state; does nothing if they are equal.
    pub(super) fn push_task(&mut self, before: Option<&Task>, after: &Task) -> Result<(), PgError> {
        if before == Some(after) {
            return Ok(());
        }
        self.count(before, -1);
        self.count(Some(after), 1);
        self.level(before, after);
        let same_payload = before.is_some_and(|before| before.payload == after.payload);
        self.id.push(*after.id.as_uuid());
        self.is_new.push(before.is_none());
        self.has_body.push(before.is_none_or(|before| has_other_body(before, after)));
        self.queue.push(after.queue.as_str().to_owned());
        self.state.push(after.state as i16);
        self.priority.push(after.priority.get());
        self.run_at.push(micros(after.run_at));
        self.ready_at.push(micros(after.ready_at));
        self.lock.push(after.lock.as_ref().map(|lock| lock.as_str().to_owned()));
        self.attempt.push(int4(after.attempt));
        self.token.push(int8(after.token.get()));
        self.version.push(int8(after.version));
        self.worker.push(after.worker.map(|worker| *worker.as_uuid()));
        self.leased_at.push(after.leased_at.map(micros));
        self.lease_expires_at.push(after.lease_expires_at.map(micros));
        self.progress.push(after.progress.as_ref().map(to_json).transpose()?);
        self.cancel.push(after.cancel.as_ref().map(to_json).transpose()?);
        self.updated_at.push(micros(after.updated_at));
        self.finished_at.push(after.finished_at.map(micros));
        self.archived.push(after.archived);
        self.payload.push((!same_payload).then(|| after.payload.as_str().to_owned()));
        self.result.push(after.result.as_ref().map(|result| result.as_str().to_owned()));
        self.error.push(after.error.as_ref().map(|error| error.as_str().to_owned()));
        self.events.push((!after.events.is_empty()).then(|| to_json(&after.events)).transpose()?);
        self.key.push(after.key.as_ref().map(|key| key.as_str().to_owned()));
        self.fingerprint.push(after.fingerprint.get().cast_signed());
        self.attempts.push(int4(after.retries.attempts));
        self.initial_delay.push(ttl_micros(after.retries.initial_delay));
        self.max_delay.push(ttl_micros(after.retries.max_delay));
        self.created_at.push(micros(after.created_at));
        self.prefetched.push(after.state == TaskState::Running && !after.begun);
        self.expiries.push(int4(after.expiries));
        self.early.push(is_early(before, after));
        self.runner_deadline.push(after.runner_deadline.map(micros));
        Ok(())
    }

    /// Sets the head of a chain; `None` if the chain has no head.
    pub(super) fn push_head(&mut self, (lock, queue): &Chain, id: Option<TaskId>) {
        self.head_lock.push(lock.as_str().to_owned());
        self.head_queue.push(queue.as_str().to_owned());
        self.head_id.push(id.map(|id| *id.as_uuid()));
    }

    /// Sets the task that a key refers to.
    pub(super) fn push_key(&mut self, queue: &QueueName, key: &TaskKey, id: TaskId) {
        self.key_queue.push(queue.as_str().to_owned());
        self.key_key.push(key.as_str().to_owned());
        self.key_id.push(*id.as_uuid());
    }

    /// Returns the number of new tasks.
    pub(super) fn new_tasks(&self) -> usize {
        self.is_new.iter().filter(|is_new| **is_new).count()
    }

    /// Whether there is nothing to save.
    pub(super) fn is_empty(&self) -> bool {
        self.id.is_empty()
    }

    fn count(&mut self, task: Option<&Task>, sign: i64) {
        if let Some(task) = task.filter(|task| !task.archived) {
            *self.counts.entry((task.queue.clone(), task.state)).or_default() += sign;
        }
    }

    /// Records the priority, which may be new to the queue, and whether a pending task has changed
    /// its position: cursors have passed the new position.
    fn level(&mut self, before: Option<&Task>, after: &Task) {
        let early = is_early(before, after) == Some(true);
        let stays = |before: &Task| before.priority == after.priority && !is_moved(before, after);
        if before.is_some_and(stays) && !early {
            return;
        }
        let waited = before.is_some_and(|before| before.state == TaskState::Pending);
        let moved = waited && after.state == TaskState::Pending;
        let level = self.levels.entry((after.queue.clone(), after.priority.get())).or_default();
        *level = (moved || level.0, early || level.1);
    }

    /// Returns the parameters in the order of the statement.
    pub(super) fn params(&mut self) -> [Param<'_>; 47] {
        for ((queue, state), delta) in std::mem::take(&mut self.counts) {
            if delta != 0 {
                self.count_queue.push(queue.into());
                self.count_state.push(state as i16);
                self.count_delta.push(delta);
            }
        }
        for ((queue, priority), (moved, early)) in std::mem::take(&mut self.levels) {
            self.level_queue.push(queue.into());
            self.level_priority.push(priority);
            self.level_moved.push(moved);
            self.level_early.push(early);
        }
        [
            &self.id,
            &self.is_new,
            &self.has_body,
            &self.queue,
            &self.state,
            &self.priority,
            &self.run_at,
            &self.ready_at,
            &self.lock,
            &self.attempt,
            &self.token,
            &self.version,
            &self.worker,
            &self.leased_at,
            &self.lease_expires_at,
            &self.progress,
            &self.cancel,
            &self.updated_at,
            &self.finished_at,
            &self.archived,
            &self.payload,
            &self.result,
            &self.error,
            &self.events,
            &self.key,
            &self.fingerprint,
            &self.attempts,
            &self.initial_delay,
            &self.max_delay,
            &self.created_at,
            &self.prefetched,
            &self.expiries,
            &self.early,
            &self.runner_deadline,
            &self.count_queue,
            &self.count_state,
            &self.count_delta,
            &self.head_lock,
            &self.head_queue,
            &self.head_id,
            &self.level_queue,
            &self.level_priority,
            &self.level_moved,
            &self.level_early,
            &self.key_queue,
            &self.key_key,
            &self.key_id,
        ]
    }
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
pub(super) const SAVE: &str = "
    WITH tasks AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::boolean[], $3::boolean[], $4::text[], $5::smallint[], $6::integer[],
            $7::bigint[], $8::bigint[], $9::text[], $10::integer[], $11::bigint[], $12::bigint[], $13::uuid[],
            $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::bigint[], $19::bigint[], $20::boolean[],
            $21::text[], $22::text[], $23::text[], $24::text[], $25::text[], $26::bigint[], $27::integer[],
            $28::bigint[], $29::bigint[], $30::bigint[], $31::boolean[], $32::integer[], $33::boolean[], $34::bigint[])
        AS n (id, is_new, has_body, queue, state, priority, run_at, ready_at, lock, attempt, token, version, worker,
            leased_at, lease_expires_at, progress, cancel, updated_at, finished_at, archived, payload, result,
            error, events, key, fingerprint, attempts, initial_delay, max_delay, created_at, prefetched, expiries,
            early, runner_deadline)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, queue,
            lock, created_at, fingerprint, initial_delay, max_delay, attempts, payload, key, runner_deadline)
        SELECT id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, queue, lock,
            created_at, fingerprint, initial_delay, max_delay, attempts, payload, key, runner_deadline
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
    SELECT count(*) FROM added";

const TEXTS: Type = Type::TEXT_ARRAY;
const BIGS: Type = Type::INT8_ARRAY;
const INTS: Type = Type::INT4_ARRAY;
const SMALLS: Type = Type::INT2_ARRAY;
const BOOLS: Type = Type::BOOL_ARRAY;
const UUIDS: Type = Type::UUID_ARRAY;

pub(super) const SAVE_TYPES: &[Type] = &[
    UUIDS, BOOLS, BOOLS, TEXTS, SMALLS, INTS, BIGS, BIGS, TEXTS, INTS, BIGS, BIGS, UUIDS, BIGS, BIGS, TEXTS,
    TEXTS, BIGS, BIGS, BOOLS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, BIGS, INTS, BIGS, BIGS, BIGS, BOOLS, INTS,
    BOOLS, BIGS, TEXTS, SMALLS, BIGS, TEXTS, TEXTS, UUIDS, TEXTS, INTS, BOOLS, BOOLS, TEXTS, TEXTS, UUIDS,
];
