//! Conversion of records and events to and from rows.
//!
//! A lock with at most one holder and no waiters is stored in columns: SQL can decide about these.
//! A lock with a simple queue is stored in columns too, with its tickets as a list beside them;
//! `held` is then null. Any other state is stored as the serialized record, and `held` is null,
//! too.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use uuid::Uuid;

use super::gate::micros;
use super::sql::ELSEWHERE;
use super::tickets;
use super::trouble::Fail;
use crate::model::{
    Ask, Event, EventKind, Holder, Lease, LeaseId, LockName, LockRecord, Metadata, Mode, Priority, Process,
    Reason, Slots, Status, Ticket, Timestamp, Token, Ttl,
};
use crate::store::ticket_rows::{Listed, RowChange, is_listed};

/// Row of a lock.
pub(super) struct LockRow {
    pub(super) record: LockRecord,
    pub(super) wake_at: Option<i64>,
    /// Whether the tickets are rows, which the record does not contain yet.
    pub(super) is_listed: bool,
}

/// Number of columns of a lock's row; additional columns of a statement follow them.
pub(super) const LOCK_COLUMNS: usize = 17;
/// Number of columns of an event's row; additional columns of a statement follow them.
pub(super) const EVENT_COLUMNS: usize = 12;

impl LockRow {
    pub(super) fn read(row: &Row) -> Result<Self, Fail> {
        let wake_at = row.try_get(14)?;
        if let Some(queue) = row.try_get::<_, Option<&str>>(16)? {
            let waiters: Vec<Waiter> = serde_json::from_str(queue).map_err(unreadable)?;
            let record = LockRecord {
                name: name(row, 0)?,
                token: token(row, 1)?,
                holders: vec![lease(row)?],
                waiters: waiters.into_iter().map(Waiter::ticket).collect::<Result<_, _>>()?,
                version: number(row, 2)?,
            };
            return Ok(Self { record, wake_at, is_listed: false });
        }
        if let Some(text) = row.try_get::<_, Option<&str>>(15)? {
            let (record, is_listed) = stored_record(text)?;
            return Ok(Self { record, wake_at, is_listed });
        }
        let holders = match row.try_get(3)? {
            Some(true) => vec![lease(row)?],
            _ => Vec::new(),
        };
        let record = LockRecord {
            name: name(row, 0)?,
            token: token(row, 1)?,
            holders,
            waiters: Vec::new(),
            version: number(row, 2)?,
        };
        Ok(Self { record, wake_at, is_listed: false })
    }

    /// Reads the record with its tickets; if these are rows, they are in the column `at`.
    pub(super) fn read_whole(row: &Row, at: usize) -> Result<LockRecord, Fail> {
        let Self { mut record, is_listed, .. } = Self::read(row)?;
        if is_listed && let Some(rows) = row.try_get::<_, Option<&str>>(at)? {
            tickets::add_from_json(&mut record, rows)?;
        }
        Ok(record)
    }
}

/// Parses the column `record`, and returns whether the tickets are rows.
pub(super) fn stored_record(text: &str) -> Result<(LockRecord, bool), Fail> {
    if is_listed(text) {
        let Listed { record, .. } = serde_json::from_str(text).map_err(unreadable)?;
        return Ok((record, true));
    }
    Ok((serde_json::from_str(text).map_err(unreadable)?, false))
}

/// Reads the lease in the columns: the current holder's, or the last one's.
pub(super) fn lease(row: &Row) -> Result<Lease, Fail> {
    lease_at(row, 5, LeaseId::from_uuid(row.try_get(4)?), token(row, 1)?)
}

/// Reads a lease whose columns begin at `at`.
pub(super) fn lease_at(row: &Row, at: usize, lease_id: LeaseId, token: Token) -> Result<Lease, Fail> {
    let extra = Extra::read(row.try_get(at + 4)?)?;
    let ask = Ask {
        lease_id,
        holder: Holder::new(row.try_get::<_, &str>(at)?).map_err(unreadable)?,
        mode: mode(row, at + 1)?,
        slots: slots(row, at + 2)?,
        priority: extra.priority,
        ttl: Ttl::try_from(number(row, at + 3)?).map_err(unreadable)?,
        metadata: extra.metadata,
        process: extra.process,
    };
    Ok(Lease {
        ask: Arc::new(ask),
        token,
        acquired_at: time(row, at + 5)?,
        renewed_at: time(row, at + 6)?,
        expires_at: time(row, at + 7)?,
        renewals: number(row, at + 8)?,
        status: Status::Active,
        asked: None,
        took_over: None,
    })
}

/// Less common fields of a request.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Extra {
    #[serde(default, skip_serializing_if = "is_default")]
    priority: Priority,
    #[serde(default, skip_serializing_if = "is_default")]
    metadata: Metadata,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
}

impl Extra {
    fn read(text: Option<&str>) -> Result<Self, Fail> {
        text.map_or(Ok(Self::default()), |text| serde_json::from_str(text).map_err(unreadable))
    }
}

/// Ticket of a simple queue, as `Sql::Join` writes it and `Sql::HandOver` converts it to a lease.
/// Times are in microseconds.
#[derive(Serialize, Deserialize)]
pub(super) struct Waiter {
    id: LeaseId,
    holder: Holder,
    ttl: Ttl,
    /// Less common fields, as in the column of a lease.
    extra: Option<String>,
    since: Timestamp,
    ends: Timestamp,
    patience: Ttl,
}

impl Waiter {
    /// Returns `None` if the ticket is not for the whole lock, or has a priority other than the
    /// default.
    fn new(ticket: &Ticket) -> Result<Option<Self>, Fail> {
        let ask = &ticket.ask;
        if !is_common(ask) {
            return Ok(None);
        }
        Ok(Some(Self {
            id: ask.lease_id,
            holder: ask.holder.clone(),
            ttl: ask.ttl,
            extra: extra(ask)?,
            since: ticket.since,
            ends: ticket.expires_at,
            patience: ticket.patience,
        }))
    }

    pub(super) fn read(text: &str) -> Result<Self, Fail> {
        serde_json::from_str(text).map_err(unreadable)
    }

    pub(super) fn ticket(self) -> Result<Ticket, Fail> {
        let extra = Extra::read(self.extra.as_deref())?;
        let ask = Ask {
            lease_id: self.id,
            holder: self.holder,
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: extra.priority,
            ttl: self.ttl,
            metadata: extra.metadata,
            process: extra.process,
        };
        let (since, expires_at, patience) = (self.since, self.ends, self.patience);
        Ok(Ticket { ask: Arc::new(ask), since, expires_at, patience })
    }
}

/// Whether the request is for the whole lock, at the end of the queue.
pub(super) fn is_common(ask: &Ask) -> bool {
    is_whole(ask) && ask.priority == Priority::default()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes the less common fields of a request for their column; usually `None`.
pub(super) fn extra(ask: &Ask) -> Result<Option<String>, Fail> {
    let extra =
        Extra { priority: ask.priority, metadata: ask.metadata.clone(), process: ask.process.clone() };
    if is_default(&extra) {
        return Ok(None);
    }
    serde_json::to_string(&extra).map(Some).map_err(unreadable)
}

/// Converts the number of slots to the value of its column.
pub(super) fn slots_column(ask: &Ask) -> i32 {
    i32::try_from(ask.slots.get()).unwrap_or(i32::MAX)
}

/// Converts a TTL to the value of its column.
pub(super) fn ttl_column(ttl: Ttl) -> i64 {
    i64::try_from(ttl.as_micros()).unwrap_or(i64::MAX)
}

/// Converts a number to the value of its column: tokens and counts stay below 2^53.
pub(super) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Values of a lock's row to write.
#[derive(Default)]
pub(super) struct Saved {
    pub(super) held: Option<bool>,
    pub(super) lease_id: Option<Uuid>,
    pub(super) holder: Option<String>,
    pub(super) shared: Option<bool>,
    pub(super) slots: Option<i32>,
    pub(super) ttl: Option<i64>,
    pub(super) extra: Option<String>,
    pub(super) acquired_at: Option<i64>,
    pub(super) renewed_at: Option<i64>,
    pub(super) expires_at: Option<i64>,
    pub(super) renewals: Option<i64>,
    pub(super) record: Option<String>,
    pub(super) queue: Option<String>,
}

impl Saved {
    /// Builds the row of a lock whose tickets are rows.
    pub(super) fn listed(record: &LockRecord, change: &RowChange) -> Result<Self, Fail> {
        let record = serde_json::to_string(&change.listed(record)).map_err(unreadable)?;
        Ok(Self { record: Some(record), ..Self::default() })
    }

    pub(super) fn new(record: &LockRecord) -> Result<Self, Fail> {
        let queue = plain_queue(record)?;
        match (record.holders.as_slice(), queue) {
            ([], Some(queue)) if queue.is_empty() => Ok(Self { held: Some(false), ..Self::default() }),
            ([lease], Some(queue))
                if is_plain(lease, record) && (queue.is_empty() || is_whole(&lease.ask)) =>
            {
                let ask = &lease.ask;
                let (held, record, queue) = if queue.is_empty() {
                    (Some(true), None, None)
                } else {
                    let queue = serde_json::to_string(&queue).map_err(unreadable)?;
                    (None, Some(ELSEWHERE.to_owned()), Some(queue))
                };
                Ok(Self {
                    held,
                    lease_id: Some(*ask.lease_id.as_uuid()),
                    holder: Some(ask.holder.as_str().to_owned()),
                    shared: Some(ask.mode == Mode::Shared),
                    slots: Some(slots_column(ask)),
                    ttl: Some(ttl_column(ask.ttl)),
                    extra: extra(ask)?,
                    acquired_at: Some(micros(lease.acquired_at)),
                    renewed_at: Some(micros(lease.renewed_at)),
                    expires_at: Some(micros(lease.expires_at)),
                    renewals: Some(column(lease.renewals)),
                    record,
                    queue,
                })
            }
            _ => {
                let record = serde_json::to_string(record).map_err(unreadable)?;
                Ok(Self { record: Some(record), ..Self::default() })
            }
        }
    }
}

/// Returns the waiters if each of them fits a simple queue.
fn plain_queue(record: &LockRecord) -> Result<Option<Vec<Waiter>>, Fail> {
    record.waiters.iter().map(Waiter::new).collect()
}

/// Whether the request is for the whole lock.
fn is_whole(ask: &Ask) -> bool {
    ask.mode == Mode::Exclusive && ask.slots == Slots::default()
}

/// Whether the columns can represent the lease. Its token may not be the newest if other holders
/// have released the lock.
fn is_plain(lease: &Lease, record: &LockRecord) -> bool {
    lease.status == Status::Active && lease.asked.is_none() && lease.token == record.token
}

/// Columns of several events, as parameters of a statement.
#[derive(Default)]
pub(super) struct EventColumns {
    pub(super) at: Vec<i64>,
    pub(super) kind: Vec<String>,
    pub(super) token: Vec<i64>,
    pub(super) lease_id: Vec<Uuid>,
    pub(super) holder: Vec<String>,
    pub(super) shared: Vec<bool>,
    pub(super) slots: Vec<i32>,
    pub(super) after_micros: Vec<i64>,
    pub(super) renewals: Vec<i64>,
    pub(super) rest: Vec<Option<String>>,
}

/// Less common fields of an event.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Rest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<Holder>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
}

impl EventColumns {
    pub(super) fn new(events: &[Event]) -> Result<Self, Fail> {
        let mut columns = Self::default();
        for event in events {
            let rest = Rest { until: event.until, by: event.by.clone(), reason: event.reason.clone() };
            let rest = (rest != Rest::default()).then(|| serde_json::to_string(&rest)).transpose();
            columns.at.push(micros(event.at));
            columns.kind.push(event.kind.to_string());
            columns.token.push(column(event.token.get()));
            columns.lease_id.push(*event.lease_id.as_uuid());
            columns.holder.push(event.holder.as_str().to_owned());
            columns.shared.push(event.mode == Mode::Shared);
            columns.slots.push(i32::try_from(event.slots.get()).unwrap_or(i32::MAX));
            columns.after_micros.push(column(event.after_micros));
            columns.renewals.push(column(event.renewals));
            columns.rest.push(rest.map_err(unreadable)?);
        }
        Ok(columns)
    }
}

/// Reads an event and its number.
pub(super) fn event(row: &Row) -> Result<(i64, Event), Fail> {
    let rest: Rest = match row.try_get::<_, Option<&str>>(11)? {
        Some(rest) => serde_json::from_str(rest).map_err(unreadable)?,
        None => Rest::default(),
    };
    let event = Event {
        at: time(row, 2)?,
        lock: name(row, 1)?,
        kind: kind(row.try_get(3)?)?,
        token: token(row, 4)?,
        lease_id: LeaseId::from_uuid(row.try_get(5)?),
        holder: Holder::new(row.try_get::<_, &str>(6)?).map_err(unreadable)?,
        mode: mode(row, 7)?,
        slots: slots(row, 8)?,
        after_micros: number(row, 9)?,
        renewals: number(row, 10)?,
        until: rest.until,
        by: rest.by,
        reason: rest.reason,
    };
    Ok((row.try_get(0)?, event))
}

fn kind(text: &str) -> Result<EventKind, Fail> {
    use serde::de::IntoDeserializer;
    let text: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    EventKind::deserialize(text).map_err(unreadable)
}

pub(super) fn name(row: &Row, at: usize) -> Result<LockName, Fail> {
    LockName::new(row.try_get::<_, &str>(at)?).map_err(unreadable)
}

pub(super) fn token(row: &Row, at: usize) -> Result<Token, Fail> {
    Token::new(number(row, at)?).map_err(unreadable)
}

pub(super) fn time(row: &Row, at: usize) -> Result<Timestamp, Fail> {
    number(row, at).map(Timestamp::from_micros)
}

fn mode(row: &Row, at: usize) -> Result<Mode, Fail> {
    Ok(if row.try_get(at)? { Mode::Shared } else { Mode::Exclusive })
}

fn slots(row: &Row, at: usize) -> Result<Slots, Fail> {
    let slots = u32::try_from(row.try_get::<_, i32>(at)?).map_err(unreadable)?;
    Slots::new(slots).map_err(unreadable)
}

pub(super) fn number(row: &Row, at: usize) -> Result<u64, Fail> {
    u64::try_from(row.try_get::<_, i64>(at)?).map_err(unreadable)
}

pub(super) fn unreadable(error: impl std::error::Error + Send + Sync + 'static) -> Fail {
    Fail::Unreadable(Box::new(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release that does not know `queue` must fail on such a row, and never treat the lock as
    /// free.
    #[test]
    fn what_stands_elsewhere_is_no_record() {
        assert!(serde_json::from_str::<LockRecord>(ELSEWHERE).is_err());
    }
}
