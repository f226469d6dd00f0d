//! Conversion of records to and from rows.
//!
//! A lock with at most one holder and no waiters is stored in columns: SQL can decide about these.
//! A lock with a simple queue is stored in columns too, with its tickets as a list beside them. Any
//! other state is stored as the serialized record. The column `layout` states which of them it is.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use crate::model::{
    Holder, Lease, LeaseId, LeaseStatus, LockRecord, LockRequest, Metadata, Mode, Priority, Process, Slots,
    Ticket, Timestamp, Token, Ttl,
};
use crate::store::postgres::columns::{
    count, invalid_row, lock_name, number, parse_json, time, to_json, ttl,
};
use crate::store::postgres::error::PgError;
use crate::store::ticket_rows::{Listed, RowChange, StoredTicket};

// Values of the column `layout`.

/// The lock has no holder; the columns contain the last lease, if there was one.
pub(crate) const FREE: i16 = 0;
/// The columns contain the only holder's lease, and there are no waiters.
pub(crate) const HELD: i16 = 1;
/// The columns contain the holder's lease, and `queue` the waiters, which want the whole lock.
pub(crate) const QUEUE: i16 = 2;
/// `record` contains the state without the waiters, which are rows of their own.
pub(crate) const TICKET_ROWS: i16 = 3;
/// `record` contains the state.
pub(crate) const RECORD: i16 = 4;

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
        let layout: Option<i16> = row.try_get(3)?;
        let record = match layout {
            Some(TICKET_ROWS | RECORD) => stored_record(layout, row.try_get(15)?)?,
            _ => LockRecord {
                name: lock_name(row, 0)?,
                token: token(row, 1)?,
                holders: match layout {
                    Some(HELD | QUEUE) => vec![lease(row)?],
                    _ => Vec::new(),
                },
                waiters: match layout {
                    Some(QUEUE) => read_queue(row.try_get(16)?)?,
                    _ => Vec::new(),
                },
                version: number(row, 2)?,
            },
        };
        Ok(Self { record, wake_at: row.try_get(14)?, is_listed: layout == Some(TICKET_ROWS) })
    }

    /// Reads the record with its tickets; if these are rows, they are in the column `at`.
    pub(crate) fn read_whole(row: &Row, at: usize) -> Result<LockRecord, PgError> {
        let Self { mut record, is_listed, .. } = Self::read(row)?;
        if is_listed && let Some(rows) = row.try_get::<_, Option<&str>>(at)? {
            add_tickets(&mut record, rows)?;
        }
        Ok(record)
    }
}

/// Adds tickets in the form in which `tickets_of_lock` of `tickets.rs` selects them.
pub(super) fn add_tickets(record: &mut LockRecord, rows: &str) -> Result<(), PgError> {
    #[derive(Deserialize)]
    struct JsonRow(String, Timestamp, Ttl, u64);
    let rows: Vec<JsonRow> = parse_json(rows)?;
    for JsonRow(text, expires_at, ticket_ttl, refreshes) in rows {
        let ticket = parse_json(&text)?;
        StoredTicket { ticket, expires_at, ticket_ttl, refreshes }.add_to(record, 0);
    }
    Ok(())
}

/// Parses the column `record`; if the tickets are rows, the record does not contain them.
pub(crate) fn stored_record(layout: Option<i16>, text: &str) -> Result<LockRecord, PgError> {
    if layout == Some(TICKET_ROWS) {
        return parse_json(text).map(|Listed { record, .. }| record);
    }
    parse_json(text)
}

pub(super) fn read_queue(text: &str) -> Result<Vec<Ticket>, PgError> {
    let waiters: Vec<Waiter> = parse_json(text)?;
    waiters.into_iter().map(Waiter::ticket).collect()
}

/// Reads the lease in the columns: the current holder's, or the last one's.
pub(crate) fn lease(row: &Row) -> Result<Lease, PgError> {
    lease_at(row, 5, LeaseId::from_uuid(row.try_get(4)?), token(row, 1)?)
}

pub(crate) fn lease_at(row: &Row, at: usize, lease_id: LeaseId, token: Token) -> Result<Lease, PgError> {
    let extra = Extra::read(row.try_get(at + 4)?)?;
    let request = LockRequest {
        lease_id,
        holder: Holder::new(row.try_get::<_, &str>(at)?).map_err(invalid_row)?,
        mode: mode(row, at + 1)?,
        slots: slots(row, at + 2)?,
        priority: extra.priority,
        ttl: ttl(row, at + 3)?,
        metadata: extra.metadata,
        process: extra.process,
    };
    let (acquired_at, ttl) = (time(row, at + 5)?, request.ttl);
    Ok(Lease {
        renewed_at: time(row, at + 6)?,
        expires_at: time(row, at + 7)?,
        renewals: number(row, at + 8)?,
        ..new_lease(Arc::new(request), token, acquired_at, ttl)
    })
}

/// Returns a lease that is granted at `now`.
pub(super) fn new_lease(request: Arc<LockRequest>, token: Token, now: Timestamp, ttl: Ttl) -> Lease {
    Lease {
        request,
        token,
        acquired_at: now,
        renewed_at: now,
        expires_at: now.plus(ttl),
        renewals: 0,
        status: LeaseStatus::Active,
        release_request: None,
        took_over: None,
    }
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
        text.map_or(Ok(Self::default()), parse_json)
    }
}

/// Ticket of a simple queue, as `JOIN` writes it and `HAND_OVER` converts it to a lease.
/// Times are in microseconds.
#[derive(Serialize, Deserialize)]
pub(crate) struct Waiter {
    id: LeaseId,
    holder: Holder,
    ttl: Ttl,
    extra: Option<String>,
    since: Timestamp,
    expires_at: Timestamp,
    ticket_ttl: Ttl,
}

impl Waiter {
    /// Returns `None` if the ticket is not for the whole lock, or has a priority other than the
    /// default.
    fn new(ticket: &Ticket) -> Result<Option<Self>, PgError> {
        let request = &ticket.request;
        if !is_default_request(request) {
            return Ok(None);
        }
        Ok(Some(Self {
            id: request.lease_id,
            holder: request.holder.clone(),
            ttl: request.ttl,
            extra: extra(request)?,
            since: ticket.since,
            expires_at: ticket.expires_at,
            ticket_ttl: ticket.ticket_ttl,
        }))
    }

    pub(crate) fn ticket(self) -> Result<Ticket, PgError> {
        let extra = Extra::read(self.extra.as_deref())?;
        let request = LockRequest {
            lease_id: self.id,
            holder: self.holder,
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: extra.priority,
            ttl: self.ttl,
            metadata: extra.metadata,
            process: extra.process,
        };
        let (since, expires_at) = (self.since, self.expires_at);
        Ok(Ticket { request: Arc::new(request), since, expires_at, ticket_ttl: self.ticket_ttl })
    }
}

/// Whether the request is for the whole lock, at the end of the queue.
pub(crate) fn is_default_request(request: &LockRequest) -> bool {
    is_whole(request) && request.priority == Priority::default()
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Serializes the less common fields of a request for their column; usually `None`.
pub(crate) fn extra(request: &LockRequest) -> Result<Option<String>, PgError> {
    let extra = Extra {
        priority: request.priority,
        metadata: request.metadata.clone(),
        process: request.process.clone(),
    };
    if is_default(&extra) {
        return Ok(None);
    }
    to_json(&extra).map(Some)
}

/// Columns of a lock's row, to be written.
#[derive(Default)]
pub(crate) struct LockColumns<'a> {
    pub(crate) layout: i16,
    /// Lease whose columns are written; otherwise they are null.
    pub(crate) lease: Option<&'a Lease>,
    pub(crate) record: Option<String>,
    pub(crate) queue: Option<String>,
}

impl<'a> LockColumns<'a> {
    /// Builds the row of a lock whose tickets are rows.
    pub(crate) fn listed(record: &LockRecord, change: &RowChange) -> Result<Self, PgError> {
        let record = to_json(&change.listed(record))?;
        Ok(Self { layout: TICKET_ROWS, record: Some(record), ..Self::default() })
    }

    pub(crate) fn new(record: &'a LockRecord) -> Result<Self, PgError> {
        // The waiters, if each of them fits a simple queue.
        let queue = record.waiters.iter().map(Waiter::new).collect::<Result<Option<Vec<_>>, _>>()?;
        match (record.holders.as_slice(), queue) {
            ([], Some(queue)) if queue.is_empty() => Ok(Self { layout: FREE, ..Self::default() }),
            ([lease], Some(queue))
                if fits_columns(lease, record) && (queue.is_empty() || is_whole(&lease.request)) =>
            {
                let (layout, queue) =
                    if queue.is_empty() { (HELD, None) } else { (QUEUE, Some(to_json(&queue)?)) };
                Ok(Self { layout, lease: Some(lease), record: None, queue })
            }
            _ => {
                let record = to_json(record)?;
                Ok(Self { layout: RECORD, record: Some(record), ..Self::default() })
            }
        }
    }
}

fn is_whole(request: &LockRequest) -> bool {
    request.mode == Mode::Exclusive && request.slots == Slots::default()
}

/// Whether the columns can represent the lease. Its token may not be the newest if other holders
/// have released the lock.
fn fits_columns(lease: &Lease, record: &LockRecord) -> bool {
    lease.status == LeaseStatus::Active && lease.release_request.is_none() && lease.token == record.token
}

pub(crate) fn token(row: &Row, at: usize) -> Result<Token, PgError> {
    Token::new(number(row, at)?).map_err(invalid_row)
}

pub(super) fn mode(row: &Row, at: usize) -> Result<Mode, PgError> {
    Ok(if row.try_get(at)? { Mode::Shared } else { Mode::Exclusive })
}

pub(super) fn slots(row: &Row, at: usize) -> Result<Slots, PgError> {
    Slots::new(count(row, at)?).map_err(invalid_row)
}
