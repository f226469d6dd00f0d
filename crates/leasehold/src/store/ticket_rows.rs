//! A long queue, stored as one row per ticket beside the lock: refreshing a ticket writes one small row, and looking at
//! the lock reads none of them. A short queue stays in the lock's own row, which is cheaper to hand over from.
//!
//! Rows are in the order of `(rank, seq)`. Each counts its refreshes: the version of the stored record and those counts
//! together are the version of the lock, so that a refresh need not write the lock's row.

use serde::{Deserialize, Serialize};

use crate::model::{LeaseId, LockRecord, Ticket, Timestamp, Ttl};

/// Queues of more tickets than this are stored as rows; they return to the lock's row when they are half as long.
pub(crate) const LONG_QUEUE: usize = 128;

/// The record of a lock whose tickets are rows. An older leasehold cannot read it, and so never takes the queue for an
/// empty one.
#[derive(Serialize, Deserialize)]
pub(crate) struct Listed {
    /// Number of tickets. The first field: [`is_listed`] tells this form by it.
    pub(crate) listed: u32,
    /// The record without its tickets.
    pub(crate) record: LockRecord,
}

/// How the text of a [`Listed`] record begins.
pub(crate) const LISTED: &str = r#"{"listed":"#;

/// Whether this text is a [`Listed`] record.
pub(crate) fn is_listed(record: &str) -> bool {
    record.starts_with(LISTED)
}

/// What is stored of one ticket beside its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TicketRow {
    pub(crate) lease_id: LeaseId,
    pub(crate) rank: i64,
    pub(crate) seq: i64,
    pub(crate) expires_at: Timestamp,
    pub(crate) patience: Ttl,
    pub(crate) refreshes: u64,
}

/// The rows of one lock, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct TicketRows(pub(crate) Vec<TicketRow>);

/// How a record and its tickets are to be stored.
pub(crate) enum Layout {
    /// The whole record in the lock's row. All rows of tickets go.
    Inline,
    /// The tickets as rows.
    Rows(RowChange),
}

/// What changes among the rows of a lock.
pub(crate) struct RowChange {
    /// Whether no row was there before: whatever is found of this lock is a leftover and goes first.
    pub(crate) is_new: bool,
    /// Rows that go.
    pub(crate) remove: Vec<LeaseId>,
    /// Rows that are new or have changed, with their place among the tickets.
    pub(crate) put: Vec<(usize, TicketRow)>,
    /// All rows as they are after it.
    pub(crate) rows: TicketRows,
}

impl TicketRows {
    /// Total of the refreshes: what the stored version lacks.
    pub(crate) fn refreshes(&self) -> u64 {
        self.0.iter().map(|row| row.refreshes).sum()
    }
}

impl RowChange {
    /// The record as its row has it, without tickets and refreshes.
    pub(crate) fn listed(&self, record: &LockRecord) -> Listed {
        let version = record.version.saturating_sub(self.rows.refreshes());
        let listed = u32::try_from(record.waiters.len()).unwrap_or(u32::MAX);
        let (name, holders) = (record.name.clone(), record.holders.clone());
        let record = LockRecord { name, token: record.token, holders, waiters: Vec::new(), version };
        Listed { listed, record }
    }
}

impl Layout {
    /// Chooses how to store `record`, whose tickets were stored as `before`; more than `long` tickets are a long queue.
    pub(crate) fn choose(record: &LockRecord, before: Option<&TicketRows>, long: usize) -> Self {
        let count = record.waiters.len();
        if count <= if before.is_some() { long / 2 } else { long } {
            return Self::Inline;
        }
        let known = before.map(|rows| rows.0.as_slice()).unwrap_or_default();
        let mut next_seq = known.iter().map(|row| row.seq).max().map_or(0, |last| last + 1);
        let (mut rows, mut put) = (Vec::with_capacity(count), Vec::new());
        // Both are in the same order, so that one pass is enough.
        let mut left = known.iter().peekable();
        let mut remove = Vec::new();
        for (place, ticket) in record.waiters.iter().enumerate() {
            let id = ticket.ask.lease_id;
            let is_known = known_at(&mut left, ticket, &mut remove);
            let row = TicketRow {
                lease_id: id,
                rank: ticket.rank(),
                seq: is_known.map_or(next_seq, |row| row.seq),
                expires_at: ticket.expires_at,
                patience: ticket.patience,
                refreshes: is_known.map_or(0, |row| row.refreshes),
            };
            if is_known.is_none() {
                next_seq += 1;
            }
            if is_known.is_none_or(|known| !known.says_the_same_as(&row)) {
                put.push((place, row));
            }
            rows.push(row);
        }
        remove.extend(left.map(|row| row.lease_id));
        // A ticket that was removed and has joined again has a new row.
        remove.retain(|id| !put.iter().any(|(_, row)| row.lease_id == *id));
        // Where ranks do not tell the order, for whatever reason, the record itself does.
        if !rows.is_sorted_by_key(|row| (row.rank, row.seq)) {
            return Self::Inline;
        }
        Self::Rows(RowChange { is_new: before.is_none(), remove, put, rows: TicketRows(rows) })
    }
}

/// The row of this ticket, if it is among those left. Rows before it have no ticket any more.
fn known_at<'a>(
    left: &mut std::iter::Peekable<std::slice::Iter<'a, TicketRow>>,
    ticket: &Ticket,
    remove: &mut Vec<LeaseId>,
) -> Option<&'a TicketRow> {
    let id = ticket.ask.lease_id;
    if left.peek().is_some_and(|row| row.lease_id != id) && !left.clone().any(|row| row.lease_id == id) {
        return None;
    }
    loop {
        let row = left.next()?;
        if row.lease_id == id {
            return Some(row);
        }
        remove.push(row.lease_id);
    }
}

impl TicketRow {
    fn says_the_same_as(&self, other: &Self) -> bool {
        (self.rank, self.expires_at, self.patience) == (other.rank, other.expires_at, other.patience)
    }
}
