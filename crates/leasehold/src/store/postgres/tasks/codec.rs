//! Conversion of tasks to and from columns.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::model::{
    Chain, Fingerprint, LockName, Message, Payload, Priority, QueueName, RetryPolicy, Task, TaskId, TaskKey,
    TaskState, Timestamp, Token, Ttl, WorkerId,
};
use crate::store::postgres::columns::{int4, int8, invalid_row, micros, number, time, ttl_micros};
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
        retries: RetryPolicy { attempts: count(row, 24)?, first: ttl(row, 25)?, longest: ttl(row, 26)? },
        created_at: time(row, 27)?,
        wanted_until: maybe_time(row, 30)?,
    })
}

pub(super) fn read_id(row: &Row, at: usize) -> Result<TaskId, PgError> {
    Ok(TaskId::from_uuid(row.try_get(at)?))
}

pub(super) fn read_state(number: i16) -> Result<TaskState, PgError> {
    let found = usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number)).copied();
    found.ok_or_else(|| PgError::InvalidRow(format!("invalid state of a task: {number}").into()))
}

pub(super) fn maybe_time(row: &Row, at: usize) -> Result<Option<Timestamp>, PgError> {
    row.try_get::<_, Option<i64>>(at)?.map(|_| time(row, at)).transpose()
}

/// Parses a JSON column, if it is not null.
pub(super) fn read_json<T: DeserializeOwned>(row: &Row, at: usize) -> Result<Option<T>, PgError> {
    let text: Option<&str> = row.try_get(at)?;
    text.map(serde_json::from_str).transpose().map_err(invalid_row)
}

fn count(row: &Row, at: usize) -> Result<u32, PgError> {
    u32::try_from(row.try_get::<_, i32>(at)?).map_err(invalid_row)
}

fn ttl(row: &Row, at: usize) -> Result<Ttl, PgError> {
    Ttl::try_from(number(row, at)?).map_err(invalid_row)
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
    marred: Vec<bool>,
    payload: Vec<Option<String>>,
    result: Vec<Option<String>>,
    error: Vec<Option<String>>,
    events: Vec<Option<String>>,
    key: Vec<Option<String>>,
    fingerprint: Vec<i64>,
    attempts: Vec<i32>,
    first: Vec<i64>,
    longest: Vec<i64>,
    created_at: Vec<i64>,
    ahead: Vec<bool>,
    expiries: Vec<i32>,
    count_queue: Vec<String>,
    count_state: Vec<i16>,
    count_delta: Vec<i64>,
    early: Vec<Option<bool>>,
    wanted_until: Vec<Option<i64>>,
    head_lock: Vec<String>,
    head_queue: Vec<String>,
    head_id: Vec<Option<Uuid>>,
    level_queue: Vec<String>,
    level_priority: Vec<i32>,
    level_moved: Vec<i64>,
    level_early: Vec<bool>,
    key_queue: Vec<String>,
    key_key: Vec<String>,
    key_id: Vec<Uuid>,
    counts: BTreeMap<(QueueName, TaskState), i64>,
    /// By queue and priority: number of moved tasks, and whether one became pending before others.
    levels: BTreeMap<(QueueName, i32), (i64, bool)>,
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
        self.progress.push(to_json(after.progress.as_ref())?);
        self.cancel.push(to_json(after.cancel.as_ref())?);
        self.updated_at.push(micros(after.updated_at));
        self.finished_at.push(after.finished_at.map(micros));
        self.archived.push(after.archived);
        self.marred.push(after.error.is_some());
        self.payload.push((!same_payload).then(|| after.payload.as_str().to_owned()));
        self.result.push(after.result.as_ref().map(|result| result.as_str().to_owned()));
        self.error.push(after.error.as_ref().map(|error| error.as_str().to_owned()));
        self.events.push(to_json(Some(&after.events).filter(|events| !events.is_empty()))?);
        self.key.push(after.key.as_ref().map(|key| key.as_str().to_owned()));
        self.fingerprint.push(after.fingerprint.get().cast_signed());
        self.attempts.push(int4(after.retries.attempts));
        self.first.push(ttl_micros(after.retries.first));
        self.longest.push(ttl_micros(after.retries.longest));
        self.created_at.push(micros(after.created_at));
        self.ahead.push(after.state == TaskState::Running && !after.begun);
        self.expiries.push(int4(after.expiries));
        self.early.push(is_early(before, after));
        self.wanted_until.push(after.wanted_until.map(micros));
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
        let moved = i64::from(waited && after.state == TaskState::Pending);
        let level = self.levels.entry((after.queue.clone(), after.priority.get())).or_default();
        *level = (moved.max(level.0), early || level.1);
    }

    /// Returns the parameters in the order of the statement.
    pub(super) fn params(&mut self) -> [Param<'_>; 48] {
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
            &self.marred,
            &self.payload,
            &self.result,
            &self.error,
            &self.events,
            &self.key,
            &self.fingerprint,
            &self.attempts,
            &self.first,
            &self.longest,
            &self.created_at,
            &self.count_queue,
            &self.count_state,
            &self.count_delta,
            &self.head_lock,
            &self.head_id,
            &self.level_queue,
            &self.level_priority,
            &self.level_moved,
            &self.key_queue,
            &self.key_key,
            &self.key_id,
            &self.ahead,
            &self.expiries,
            &self.early,
            &self.wanted_until,
            &self.head_queue,
            &self.level_early,
        ]
    }
}

/// Whether the task was pending and is now pending at another position.
fn is_moved(before: &Task, after: &Task) -> bool {
    let pending = |task: &Task| task.state == TaskState::Pending;
    pending(before) && pending(after) && before.order() != after.order()
}

/// Whether the task became pending before tasks that were pending already; `None` if that has not
/// changed. A task that is moved to another priority is found there because the move is counted.
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

pub(super) fn to_json<T: Serialize>(value: Option<&T>) -> Result<Option<String>, PgError> {
    value.map(serde_json::to_string).transpose().map_err(invalid_row)
}
