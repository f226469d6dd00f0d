//! Conversion between tasks and rows.

use rusqlite::types::{Type, Value, ValueRef};
use rusqlite::{Connection, ErrorCode, Row, Statement, ToSql, params};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::sql;
use super::transaction::{QueueIds, Statements, StoredTask};
use crate::model::{
    Fingerprint, LockName, Message, Payload, Priority, Progress, RetryPolicy, StopRequest, Task, TaskEvent,
    TaskId, TaskKey, TaskState, Timestamp, Token, Ttl, WorkerId,
};
use crate::store::sqlite::schema::{maybe_json, micros, timestamp, to_integer, to_json, unreadable};

/// Maximum size of a payload that is stored in the task's own row.
const MAX_INLINE_PAYLOAD: usize = 256;

/// Fields that most tasks do not have.
#[derive(Debug, Default, Serialize, Deserialize)]
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
    let retries = (task.retries != RetryPolicy::default()).then_some(task.retries);
    let has_none = retries.is_none()
        && task.timeout.is_none()
        && task.progress.is_none()
        && task.error.is_none()
        && task.cancel.is_none()
        && task.events.is_empty();
    if has_none {
        return Ok(None);
    }
    let extra = Extra {
        retries,
        timeout: task.timeout,
        progress: task.progress.clone(),
        error: task.error.clone(),
        cancel: task.cancel.clone(),
        events: task.events.clone(),
    };
    to_json(&extra).map(Some)
}

/// Place of a task in the index of all lists; the table in `schema.rs` explains the values.
pub(super) struct Place {
    pub(super) list: Value,
    pub(super) sort: i64,
    pub(super) tie: Option<i64>,
}

impl Place {
    fn of(task: &Task, queue: i64) -> Self {
        let ordered = |list| {
            let (rank, run_at, _) = task.order();
            Self { list, sort: rank, tie: Some(micros(run_at)) }
        };
        let at = |list: i64, time: Option<Timestamp>| {
            let sort = time.map_or(0, micros);
            Self { list: Value::Integer(list), sort, tie: None }
        };
        match (task.state, &task.lock) {
            (TaskState::Blocked, Some(lock)) => ordered(blocked_list(queue, lock)),
            // A blocked task has a lock.
            (TaskState::Pending | TaskState::Blocked, _) => ordered(Value::Integer(queue)),
            (TaskState::Scheduled, _) => at(scheduled_list(queue), Some(task.run_at)),
            (TaskState::Running, _) => at(0, task.lease_expires_at),
            (TaskState::Succeeded | TaskState::Failed | TaskState::Aborted, _) => {
                at(finished_list(task.archived), task.finished_at)
            }
        }
    }
}

/// Returns the list of the tasks of a queue that wait for a lock.
pub(super) fn blocked_list(queue: i64, lock: &LockName) -> Value {
    Value::Text(format!("{queue} {lock}"))
}

/// Returns the list of the scheduled tasks of a queue.
pub(super) const fn scheduled_list(queue: i64) -> i64 {
    -8 - queue
}

pub(super) fn finished_list(archived: bool) -> i64 {
    -1 - i64::from(archived)
}

/// Reads a task from a row of [`sql`]'s columns.
pub(super) fn decode(
    row: &Row<'_>,
    conn: &Connection,
    queues: &mut QueueIds,
) -> rusqlite::Result<StoredTask> {
    let queue_id = row.get(1)?;
    let name = queues.name(conn, queue_id)?;
    let extra: Extra = maybe_json(row, 19)?.unwrap_or_default();
    let time = |column| row.get::<_, Option<i64>>(column).map(|micros| micros.map(timestamp));
    let text = |column| -> rusqlite::Result<Option<&str>> { Ok(row.get_ref(column)?.as_str_or_null()?) };
    let state = state(row.get(2)?)?;
    let task = Task {
        id: TaskId::from_uuid(uuid(row, 0)?),
        queue: name,
        payload: text(25)?.map(Payload::trusted).unwrap_or_default(),
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
    };
    Ok(StoredTask { rowid: row.get(24)?, queue_id, task })
}

/// Inserts a row, unless one with its id exists; returns whether it was inserted.
pub(super) fn insert(conn: &Connection, queue: i64, task: &Task) -> rusqlite::Result<bool> {
    let mut insert = conn.prepare_cached(sql::INSERT)?;
    bind_row(&mut insert, 0, queue, task)?;
    let added = insert.raw_execute()? > 0;
    if added {
        insert_long_payload(conn, task)?;
    }
    Ok(added)
}

/// Inserts [`sql::MANY`] rows with one statement; returns `false`, without any change, if one of
/// them exists.
pub(super) fn insert_many(conn: &Connection, tasks: &[(i64, Task)]) -> rusqlite::Result<bool> {
    let mut insert = conn.prepare_cached(sql::INSERT_MANY)?;
    for (number, (queue, task)) in tasks.iter().enumerate() {
        bind_row(&mut insert, number * sql::ROW_VALUES, *queue, task)?;
    }
    match insert.raw_execute() {
        Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::ConstraintViolation => {
            return Ok(false);
        }
        done => _ = done?,
    }
    tasks.iter().try_for_each(|(_, task)| insert_long_payload(conn, task)).map(|()| true)
}

/// Binds the values of one row, from the parameter after `before` on.
fn bind_row(insert: &mut Statement<'_>, before: usize, queue: i64, task: &Task) -> rusqlite::Result<()> {
    let Place { list, sort, tie } = Place::of(task, queue);
    let created_at = micros(task.created_at);
    let values: [&dyn ToSql; sql::ROW_VALUES] = [
        &id(&task.id),
        &queue,
        &(task.state as i64),
        &task.priority.get(),
        &list,
        &sort,
        &tie,
        &micros(task.run_at),
        &micros(task.ready_at),
        &task.key.as_ref().map(TaskKey::as_str),
        &task.fingerprint.get().cast_signed(),
        &task.lock.as_ref().map(LockName::as_str),
        &created_at,
        &created_at,
        &extra(task)?,
        &inline_payload(task),
        &task.runner_deadline.map(micros),
    ];
    for (number, value) in values.into_iter().enumerate() {
        insert.raw_bind_parameter(before + number + 1, value)?;
    }
    Ok(())
}

/// Returns the payload if it is stored in the task's own row.
fn inline_payload(task: &Task) -> Option<&str> {
    Some(task.payload.as_str()).filter(|payload| payload.len() <= MAX_INLINE_PAYLOAD)
}

fn insert_long_payload(conn: &Connection, task: &Task) -> rusqlite::Result<()> {
    if inline_payload(task).is_some() { Ok(()) } else { insert_payload(conn, task) }
}

fn insert_payload(conn: &Connection, task: &Task) -> rusqlite::Result<()> {
    let values = params![id(&task.id), task.payload.as_str()];
    conn.prepare_cached(sql::INSERT_PAYLOAD)?.execute(values).map(drop)
}

/// Saves a task that a worker has leased.
pub(super) fn save_lease(
    statements: &mut Statements<'_>,
    task: &StoredTask,
    ttl: Ttl,
) -> rusqlite::Result<()> {
    let Place { list, sort, tie } = Place::of(task, task.queue_id);
    let values = params![
        task.rowid,
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
        list,
        sort,
        tie,
    ];
    statements.save_lease()?.execute(values).map(drop)
}

/// Saves a task after a heartbeat of its worker.
pub(super) fn save_heartbeat(conn: &Connection, task: &StoredTask, ttl: Ttl) -> rusqlite::Result<()> {
    let Place { list, sort, tie } = Place::of(task, task.queue_id);
    let ends = task.lease_expires_at.map(micros);
    let ttl = to_integer(ttl.as_micros());
    let values = params![task.rowid, ends, ttl, extra(task)?, !task.begun, list, sort, tie];
    conn.prepare_cached(sql::SAVE_HEARTBEAT)?.execute(values).map(drop)
}

/// Saves a task whose attempt has ended, or that became ready or blocked.
pub(super) fn save_transition(statements: &mut Statements<'_>, task: &StoredTask) -> rusqlite::Result<()> {
    let Place { list, sort, tie } = Place::of(task, task.queue_id);
    let values = params![
        task.rowid,
        task.state as i64,
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
        list,
        sort,
        tie,
    ];
    statements.save_transition()?.execute(values).map(drop)
}

/// Saves the fields that only operators change, in addition to [`save_transition`].
pub(super) fn save_admin_fields(conn: &Connection, task: &StoredTask) -> rusqlite::Result<()> {
    let payload = inline_payload(task);
    let values = params![task.rowid, task.priority.get(), task.archived, payload];
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
