//! Conversion of records to and from rows.
//!
//! A lock with at most one holder and no waiters is stored in columns: SQL can decide about these.
//! A lock with a simple queue is stored in columns too, with its tickets as a list beside them;
//! `held` is then null. Any other state is stored as the serialized record, and `held` is null,
//! too.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use uuid::Uuid;

use super::fast_path_queue::STATE_IN_COLUMNS;
use super::tickets;
use crate::model::{
    Ask, Holder, Lease, LeaseId, LockName, LockRecord, Metadata, Mode, Priority, Process, Slots, Status,
    Ticket, Timestamp, Token, Ttl,
};
use crate::store::postgres::columns::{int4, int8, invalid_row, micros, number, time, ttl_micros};
use crate::store::postgres::error::PgError;
use crate::store::ticket_rows::{Listed, RowChange, is_listed};

/// Row of a lock.
pub(crate) struct LockRow {
    pub(crate) record: LockRecord,
    pub(crate) wake_at: Option<i64>,
    /// Whether the tickets are rows, which the record does not contain yet.
    pub(crate) is_listed: bool,
}

/// Number of columns of a lock's row; additional columns of a statement follow them.
pub(crate) const LOCK_COLUMNS: usize = 17;

impl LockRow {
    pub(crate) fn read(row: &Row) -> Result<Self, PgError> {
        let wake_at = row.try_get(14)?;
        if let Some(queue) = row.try_get::<_, Option<&str>>(16)? {
            let waiters: Vec<Waiter> = serde_json::from_str(queue).map_err(invalid_row)?;
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
    pub(crate) fn read_whole(row: &Row, at: usize) -> Result<LockRecord, PgError> {
        let Self { mut record, is_listed, .. } = Self::read(row)?;
        if is_listed && let Some(rows) = row.try_get::<_, Option<&str>>(at)? {
            tickets::add_from_json(&mut record, rows)?;
        }
        Ok(record)
    }
}

/// Parses the column `record`, and returns whether the tickets are rows.
pub(crate) fn stored_record(text: &str) -> Result<(LockRecord, bool), PgError> {
    if is_listed(text) {
        let Listed { record, .. } = serde_json::from_str(text).map_err(invalid_row)?;
        return Ok((record, true));
    }
    Ok((serde_json::from_str(text).map_err(invalid_row)?, false))
}

/// Reads the lease in the columns: the current holder's, or the last one's.
pub(crate) fn lease(row: &Row) -> Result<Lease, PgError> {
    lease_at(row, 5, LeaseId::from_uuid(row.try_get(4)?), token(row, 1)?)
}

/// Reads a lease whose columns begin at `at`.
pub(crate) fn lease_at(row: &Row, at: usize, lease_id: LeaseId, token: Token) -> Result<Lease, PgError> {
    let extra = Extra::read(row.try_get(at + 4)?)?;
    let request = Ask {
        lease_id,
        holder: Holder::new(row.try_get::<_, &str>(at)?).map_err(invalid_row)?,
        mode: mode(row, at + 1)?,
        slots: slots(row, at + 2)?,
        priority: extra.priority,
        ttl: Ttl::try_from(number(row, at + 3)?).map_err(invalid_row)?,
        metadata: extra.metadata,
        process: extra.process,
    };
    Ok(Lease {
        ask: Arc::new(request),
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
    fn read(text: Option<&str>) -> Result<Self, PgError> {
        text.map_or(Ok(Self::default()), |text| serde_json::from_str(text).map_err(invalid_row))
    }
}

/// Ticket of a simple queue, as `Sql::Join` writes it and `Sql::HandOver` converts it to a lease.
/// Times are in microseconds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Waiter {
    id: LeaseId,
    holder: Holder,
    ttl: Ttl,
    /// Less common fields, as in the column of a lease.
    extra: Option<String>,
    since: Timestamp,
    ends: Timestamp,
    #[serde(rename = "patience")]
    ticket_ttl: Ttl,
}

impl Waiter {
    /// Returns `None` if the ticket is not for the whole lock, or has a priority other than the
    /// default.
    fn new(ticket: &Ticket) -> Result<Option<Self>, PgError> {
        let request = &ticket.ask;
        if !is_default_request(request) {
            return Ok(None);
        }
        Ok(Some(Self {
            id: request.lease_id,
            holder: request.holder.clone(),
            ttl: request.ttl,
            extra: extra(request)?,
            since: ticket.since,
            ends: ticket.expires_at,
            ticket_ttl: ticket.patience,
        }))
    }

    pub(crate) fn read(text: &str) -> Result<Self, PgError> {
        serde_json::from_str(text).map_err(invalid_row)
    }

    pub(crate) fn ticket(self) -> Result<Ticket, PgError> {
        let extra = Extra::read(self.extra.as_deref())?;
        let request = Ask {
            lease_id: self.id,
            holder: self.holder,
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: extra.priority,
            ttl: self.ttl,
            metadata: extra.metadata,
            process: extra.process,
        };
        let (since, expires_at) = (self.since, self.ends);
        Ok(Ticket { ask: Arc::new(request), since, expires_at, patience: self.ticket_ttl })
    }
}

/// Whether the request is for the whole lock, at the end of the queue.
pub(crate) fn is_default_request(request: &Ask) -> bool {
    is_whole(request) && request.priority == Priority::default()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes the less common fields of a request for their column; usually `None`.
pub(crate) fn extra(request: &Ask) -> Result<Option<String>, PgError> {
    let extra = Extra {
        priority: request.priority,
        metadata: request.metadata.clone(),
        process: request.process.clone(),
    };
    if is_default(&extra) {
        return Ok(None);
    }
    serde_json::to_string(&extra).map(Some).map_err(invalid_row)
}

/// Columns of a lock's row, to be written.
#[derive(Default)]
pub(crate) struct LockColumns {
    pub(crate) held: Option<bool>,
    pub(crate) lease_id: Option<Uuid>,
    pub(crate) holder: Option<String>,
    pub(crate) shared: Option<bool>,
    pub(crate) slots: Option<i32>,
    pub(crate) ttl: Option<i64>,
    pub(crate) extra: Option<String>,
    pub(crate) acquired_at: Option<i64>,
    pub(crate) renewed_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) renewals: Option<i64>,
    pub(crate) record: Option<String>,
    pub(crate) queue: Option<String>,
}

impl LockColumns {
    /// Builds the row of a lock whose tickets are rows.
    pub(crate) fn listed(record: &LockRecord, change: &RowChange) -> Result<Self, PgError> {
        let record = serde_json::to_string(&change.listed(record)).map_err(invalid_row)?;
        Ok(Self { record: Some(record), ..Self::default() })
    }

    pub(crate) fn new(record: &LockRecord) -> Result<Self, PgError> {
        let queue = simple_queue(record)?;
        match (record.holders.as_slice(), queue) {
            ([], Some(queue)) if queue.is_empty() => Ok(Self { held: Some(false), ..Self::default() }),
            ([lease], Some(queue))
                if fits_columns(lease, record) && (queue.is_empty() || is_whole(&lease.ask)) =>
            {
                let request = &lease.ask;
                let (held, record, queue) = if queue.is_empty() {
                    (Some(true), None, None)
                } else {
                    let queue = serde_json::to_string(&queue).map_err(invalid_row)?;
                    (None, Some(STATE_IN_COLUMNS.to_owned()), Some(queue))
                };
                Ok(Self {
                    held,
                    lease_id: Some(*request.lease_id.as_uuid()),
                    holder: Some(request.holder.as_str().to_owned()),
                    shared: Some(request.mode == Mode::Shared),
                    slots: Some(int4(request.slots.get())),
                    ttl: Some(ttl_micros(request.ttl)),
                    extra: extra(request)?,
                    acquired_at: Some(micros(lease.acquired_at)),
                    renewed_at: Some(micros(lease.renewed_at)),
                    expires_at: Some(micros(lease.expires_at)),
                    renewals: Some(int8(lease.renewals)),
                    record,
                    queue,
                })
            }
            _ => {
                let record = serde_json::to_string(record).map_err(invalid_row)?;
                Ok(Self { record: Some(record), ..Self::default() })
            }
        }
    }
}

/// Returns the waiters if each of them fits a simple queue.
fn simple_queue(record: &LockRecord) -> Result<Option<Vec<Waiter>>, PgError> {
    record.waiters.iter().map(Waiter::new).collect()
}

/// Whether the request is for the whole lock.
fn is_whole(request: &Ask) -> bool {
    request.mode == Mode::Exclusive && request.slots == Slots::default()
}

/// Whether the columns can represent the lease. Its token may not be the newest if other holders
/// have released the lock.
fn fits_columns(lease: &Lease, record: &LockRecord) -> bool {
    lease.status == Status::Active && lease.asked.is_none() && lease.token == record.token
}

pub(crate) fn name(row: &Row, at: usize) -> Result<LockName, PgError> {
    LockName::new(row.try_get::<_, &str>(at)?).map_err(invalid_row)
}

pub(crate) fn token(row: &Row, at: usize) -> Result<Token, PgError> {
    Token::new(number(row, at)?).map_err(invalid_row)
}

pub(super) fn mode(row: &Row, at: usize) -> Result<Mode, PgError> {
    Ok(if row.try_get(at)? { Mode::Shared } else { Mode::Exclusive })
}

pub(super) fn slots(row: &Row, at: usize) -> Result<Slots, PgError> {
    let slots = u32::try_from(row.try_get::<_, i32>(at)?).map_err(invalid_row)?;
    Slots::new(slots).map_err(invalid_row)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A release that does not know `queue` must fail on such a row, and never treat the lock as
    /// free.
    #[test]
    fn the_record_of_a_state_in_columns_is_not_readable() {
        assert!(serde_json::from_str::<LockRecord>(STATE_IN_COLUMNS).is_err());
    }
}
