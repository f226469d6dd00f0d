//! Conversion of rows to tasks.

use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use uuid::Uuid;

use crate::model::{
    Fingerprint, LockName, Message, Payload, Priority, QueueName, RetryPolicy, Task, TaskId, TaskKey,
    TaskState, Timestamp, Token, Ttl, WorkerId,
};
use crate::store::postgres::trouble::Fail;

/// Number of columns of a task; additional columns of a statement follow them.
pub(super) const TASK_COLUMNS: usize = 31;

/// Reads a task from the first columns of a row.
pub(super) fn task(row: &Row) -> Result<Task, Fail> {
    let payload = Payload::trusted(row.try_get::<_, &str>(18)?);
    // A task that was added without a key has no fingerprint.
    let fingerprint =
        row.try_get::<_, Option<i64>>(23)?.map(|print| Fingerprint::from_u64(print.cast_unsigned()));
    let state = state(row.try_get(2)?)?;
    Ok(Task {
        id: id(row, 0)?,
        queue: QueueName::new(row.try_get::<_, &str>(1)?).map_err(unreadable)?,
        state,
        priority: Priority::new(row.try_get(3)?).map_err(unreadable)?,
        run_at: time(row, 4)?,
        ready_at: time(row, 5)?,
        lock: row.try_get::<_, Option<&str>>(6)?.map(LockName::new).transpose().map_err(unreadable)?,
        attempt: count(row, 7)?,
        begun: state == TaskState::Running && !row.try_get::<_, bool>(28)?,
        expiries: count(row, 29)?,
        token: Token::new(number(row.try_get(8)?)?).map_err(unreadable)?,
        version: number(row.try_get(9)?)?,
        worker: row.try_get::<_, Option<Uuid>>(10)?.map(WorkerId::from_uuid),
        leased_at: maybe_time(row, 11)?,
        lease_expires_at: maybe_time(row, 12)?,
        progress: json(row, 13)?,
        cancel: json(row, 14)?,
        updated_at: time(row, 15)?,
        finished_at: maybe_time(row, 16)?,
        archived: row.try_get(17)?,
        fingerprint: fingerprint.unwrap_or(Fingerprint::NONE),
        payload,
        result: row.try_get::<_, Option<&str>>(19)?.map(Payload::trusted),
        error: row.try_get::<_, Option<&str>>(20)?.map(Message::new),
        events: json(row, 21)?.unwrap_or_default(),
        key: row.try_get::<_, Option<&str>>(22)?.map(TaskKey::new).transpose().map_err(unreadable)?,
        retries: RetryPolicy { attempts: count(row, 24)?, first: ttl(row, 25)?, longest: ttl(row, 26)? },
        created_at: time(row, 27)?,
        wanted_until: maybe_time(row, 30)?,
    })
}

pub(super) fn id(row: &Row, at: usize) -> Result<TaskId, Fail> {
    Ok(TaskId::from_uuid(row.try_get(at)?))
}

pub(super) fn state(number: i16) -> Result<TaskState, Fail> {
    let found = usize::try_from(number).ok().and_then(|number| TaskState::ALL.get(number)).copied();
    found.ok_or_else(|| Fail::Unreadable(format!("{number} is no state of a task").into()))
}

pub(super) fn time(row: &Row, at: usize) -> Result<Timestamp, Fail> {
    number(row.try_get(at)?).map(Timestamp::from_micros)
}

pub(super) fn maybe_time(row: &Row, at: usize) -> Result<Option<Timestamp>, Fail> {
    let micros: Option<i64> = row.try_get(at)?;
    Ok(micros.map(number).transpose()?.map(Timestamp::from_micros))
}

/// Parses a JSON column, if it is not null.
pub(super) fn json<T: DeserializeOwned>(row: &Row, at: usize) -> Result<Option<T>, Fail> {
    let text: Option<&str> = row.try_get(at)?;
    text.map(serde_json::from_str).transpose().map_err(unreadable)
}

pub(super) fn number(number: i64) -> Result<u64, Fail> {
    u64::try_from(number).map_err(unreadable)
}

fn count(row: &Row, at: usize) -> Result<u32, Fail> {
    u32::try_from(row.try_get::<_, i32>(at)?).map_err(unreadable)
}

fn ttl(row: &Row, at: usize) -> Result<Ttl, Fail> {
    Ttl::try_from(number(row.try_get(at)?)?).map_err(unreadable)
}

pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Fail {
    Fail::Unreadable(Box::new(error))
}
