//! Conversion between tasks and rows.

use rusqlite::types::{Type, ValueRef};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::sql;
use super::transaction::QueueIds;
use crate::model::{
    Fingerprint, LockName, Message, Payload, Priority, Progress, RetryPolicy, StopRequest, Task, TaskEvent,
    TaskId, TaskKey, TaskState, Token, Ttl, WorkerId,
};
use crate::store::sqlite::schema::{maybe_json, micros, timestamp, to_integer, to_json, unreadable};

/// Maximum size of a payload that is stored in the task's own row.
const MAX_INLINE_PAYLOAD: usize = 256;

/// Fields that most tasks do not have.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Extra {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retries: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<Ttl>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    progress: Option<Progress>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cancel: Option<StopRequest>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    events: Vec<TaskEvent>,
}

fn extra(task: &Task) -> rusqlite::Result<Option<String>> {
    let extra = Extra {
        retries: (task.retries != RetryPolicy::default()).then_some(task.retries),
        timeout: task.timeout,
        progress: task.progress.clone(),
        error: task.error.clone(),
        cancel: task.cancel.clone(),
        events: task.events.clone(),
    };
    (extra != Extra::default()).then(|| to_json(&extra)).transpose()
}

/// Reads a task from a row of [`sql`]'s columns.
pub(super) fn decode(row: &Row<'_>, conn: &Connection, queues: &mut QueueIds) -> rusqlite::Result<Task> {
    let name = queues.name(conn, row.get(1)?)?;
    let extra: Extra = maybe_json(row, 19)?.unwrap_or_default();
    let time = |column| row.get::<_, Option<i64>>(column).map(|micros| micros.map(timestamp));
    let text = |column| -> rusqlite::Result<Option<&str>> { Ok(row.get_ref(column)?.as_str_or_null()?) };
    let state = state(row.get(2)?)?;
    Ok(Task {
        id: TaskId::from_uuid(uuid(row, 0)?),
        queue: name,
        payload: text(24)?.map(Payload::trusted).unwrap_or_default(),
        state,
        priority: Priority::new(row.get(3)?).unwrap_or_default(),
        run_at: timestamp(row.get(4)?),
        ready_at: timestamp(row.get(5)?),
        key: text(6)?.map(TaskKey::new).transpose().map_err(|e| unreadable(6, e))?,
        fingerprint: Fingerprint::from_u64(row.get::<_, i64>(7)?.cast_unsigned()),
        lock: text(8)?.map(LockName::new).transpose().map_err(|e| unreadable(8, e))?,
        attempt: row.get(9)?,
        begun: state == TaskState::Running && !row.get::<_, bool>(21)?,
        expiries: row.get(22)?,
        retries: extra.retries.unwrap_or_default(),
        timeout: extra.timeout,
        token: Token::new(row.get::<_, i64>(10)?.cast_unsigned()).map_err(|e| unreadable(10, e))?,
        version: row.get::<_, i64>(11)?.cast_unsigned(),
        worker: match row.get_ref(12)? {
            ValueRef::Null => None,
            _ => Some(WorkerId::from_uuid(uuid(row, 12)?)),
        },
        leased_at: time(13)?,
        lease_expires_at: time(14)?,
        progress: extra.progress,
        result: text(20)?.map(Payload::trusted),
        error: extra.error,
        cancel: extra.cancel,
        created_at: timestamp(row.get(15)?),
        updated_at: timestamp(row.get(16)?),
        finished_at: time(17)?,
        archived: row.get(18)?,
        runner_deadline: time(23)?,
        events: extra.events,
    })
}

/// Inserts a row, unless one with its id exists; returns whether it was inserted.
pub(super) fn insert(conn: &Connection, queue: i64, task: &Task) -> rusqlite::Result<bool> {
    let payload = Some(task.payload.as_str()).filter(|payload| payload.len() <= MAX_INLINE_PAYLOAD);
    let added = conn.prepare_cached(sql::INSERT)?.execute(params![
        id(&task.id),
        queue,
        task.state as i64,
        task.priority.get(),
        task.order().0,
        micros(task.run_at),
        micros(task.ready_at),
        task.key.as_ref().map(TaskKey::as_str),
        task.fingerprint.get().cast_signed(),
        task.lock.as_ref().map(LockName::as_str),
        micros(task.created_at),
        extra(task)?,
        payload,
        task.runner_deadline.map(micros),
    ])?;
    if added > 0 && payload.is_none() {
        insert_payload(conn, task)?;
    }
    Ok(added > 0)
}

fn insert_payload(conn: &Connection, task: &Task) -> rusqlite::Result<()> {
    let values = params![id(&task.id), task.payload.as_str()];
    conn.prepare_cached(sql::INSERT_PAYLOAD)?.execute(values).map(drop)
}

/// Saves a task that a worker has leased.
pub(super) fn save_lease(conn: &Connection, task: &Task, ttl: Ttl) -> rusqlite::Result<()> {
    let values = params![
        id(&task.id),
        task.state as i64,
        task.attempt,
        task.token.get().cast_signed(),
        task.version.cast_signed(),
        task.worker.as_ref().map(|worker| &worker.as_uuid().as_bytes()[..]),
        task.leased_at.map(micros),
        task.lease_expires_at.map(micros),
        to_integer(ttl.as_micros()),
        micros(task.updated_at),
        extra(task)?,
        !task.begun,
    ];
    conn.prepare_cached(sql::SAVE_LEASE)?.execute(values).map(drop)
}

/// Saves a task after a heartbeat of its worker.
pub(super) fn save_heartbeat(conn: &Connection, task: &Task, ttl: Ttl) -> rusqlite::Result<()> {
    let ends = task.lease_expires_at.map(micros);
    let values = params![id(&task.id), ends, to_integer(ttl.as_micros()), extra(task)?, !task.begun];
    conn.prepare_cached(sql::SAVE_HEARTBEAT)?.execute(values).map(drop)
}

/// Saves a task whose attempt has ended, or that became ready or blocked.
pub(super) fn save_transition(conn: &Connection, task: &Task) -> rusqlite::Result<()> {
    let values = params![
        id(&task.id),
        task.state as i64,
        task.order().0,
        micros(task.run_at),
        micros(task.ready_at),
        task.attempt,
        task.token.get().cast_signed(),
        task.version.cast_signed(),
        task.lease_expires_at.map(micros),
        micros(task.updated_at),
        task.finished_at.map(micros),
        extra(task)?,
        task.result.as_ref().map(Payload::as_str),
        task.expiries,
        task.runner_deadline.map(micros),
    ];
    conn.prepare_cached(sql::SAVE_TRANSITION)?.execute(values).map(drop)
}

/// Saves the fields that only operators change, in addition to [`save_transition`].
pub(super) fn save_admin_fields(conn: &Connection, task: &Task) -> rusqlite::Result<()> {
    let payload = Some(task.payload.as_str()).filter(|payload| payload.len() <= MAX_INLINE_PAYLOAD);
    let values = params![id(&task.id), task.priority.get(), task.archived, payload];
    conn.prepare_cached(sql::SAVE_ADMIN_FIELDS)?.execute(values)?;
    match payload {
        Some(_) => conn.prepare_cached(sql::DELETE_PAYLOAD)?.execute([id(&task.id)]).map(drop),
        None => insert_payload(conn, task),
    }
}

pub(super) fn id(id: &TaskId) -> &[u8] {
    id.as_uuid().as_bytes()
}

pub(super) fn uuid(row: &Row<'_>, column: usize) -> rusqlite::Result<Uuid> {
    let bytes = row.get_ref(column)?.as_blob()?;
    Uuid::from_slice(bytes)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, error.into()))
}

pub(super) fn state(number: i64) -> rusqlite::Result<TaskState> {
    let state = usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number));
    state.copied().ok_or(rusqlite::Error::IntegralValueOutOfRange(2, number))
}
