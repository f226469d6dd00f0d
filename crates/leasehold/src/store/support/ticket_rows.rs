//! Long queues, stored as one row per ticket beside the lock: refreshing a ticket writes one small
//! row, and reading the lock reads none of them. A short queue stays in the lock's own row, where a
//! hand-over is cheaper.
//!
//! Rows are ordered by their places, which are rising integers. The lock's row contains the first
//! place and the empty places in between, so that the position of a ticket is known without counting
//! rows. Each row counts its refreshes: the version of the lock is the version of the stored record
//! plus those counts, so that a refresh need not write the lock's row.

use serde::{Deserialize, Serialize};

use crate::model::{Conflict, HeldBy, LeaseId, LockRecord, Outcome, Queued, Ticket, Timestamp, Ttl};

/// Number of tickets above which a queue is stored as rows; the queue returns to the lock's row at
/// half this length.
pub(crate) const LONG_QUEUE: usize = 128;
/// Number of empty places above which all tickets get new places.
const MAX_GAPS: usize = 64;

/// Record of a lock whose tickets are rows. It cannot be read as a [`LockRecord`], so the queue is never
/// taken for an empty one.
#[derive(Serialize, Deserialize)]
pub(crate) struct Listed {
    /// Number of tickets. Must be the first field: [`is_listed`] recognises this form by it.
    #[serde(rename = "listed")]
    pub(crate) tickets: u32,
    /// Request of the first ticket.
    pub(crate) next: LeaseId,
    /// Place of the first ticket.
    first_position: i64,
    /// Empty places between the first and the last ticket.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    gaps: Vec<i64>,
    /// Record without its tickets.
    pub(crate) record: LockRecord,
}

/// First characters of the text of a [`Listed`] record. PostgreSQL has a column for this instead.
#[cfg(feature = "sqlite")]
pub(crate) const LISTED: &str = r#"{"listed":"#;

/// Whether this text is a [`Listed`] record.
#[cfg(feature = "sqlite")]
pub(crate) fn is_listed(record: &str) -> bool {
    record.starts_with(LISTED)
}

impl Listed {
    /// Returns the number of tickets before the one at this place.
    fn ahead(&self, place: i64) -> u32 {
        let empty = self.gaps.iter().filter(|gap| **gap < place).count();
        let before = usize::try_from(place.saturating_sub(self.first_position)).unwrap_or(0);
        u32::try_from(before.saturating_sub(empty)).unwrap_or(u32::MAX)
    }

    /// Returns the outcome for the ticket at this place, after a refresh that changed nothing else.
    pub(crate) fn queued(&self, place: i64) -> Outcome {
        let holders = self.record.holders.iter().map(HeldBy::from).collect();
        let conflict = Conflict { holders, waiters: self.tickets, full: false, now: None };
        Outcome::Queued(Queued { ahead: self.ahead(place), conflict })
    }
}

/// Ticket as its text contains it, and the columns beside the text, which are newer.
pub(crate) struct StoredTicket {
    pub(crate) ticket: Ticket,
    pub(crate) expires_at: Timestamp,
    pub(crate) ticket_ttl: Ttl,
    pub(crate) refreshes: u64,
}

impl StoredTicket {
    /// Adds the ticket at this place to a record that was read without it.
    pub(crate) fn add_to(self, record: &mut LockRecord, place: i64) -> TicketRow {
        let Self { ticket, expires_at, ticket_ttl, refreshes } = self;
        let (lease_id, since) = (ticket.request.lease_id, ticket.since);
        record.version = record.version.saturating_add(refreshes);
        record.waiters.push(Ticket { expires_at, ticket_ttl, ..ticket });
        TicketRow { lease_id, place, since, expires_at, ticket_ttl, refreshes }
    }
}

/// Stored columns of one ticket beside its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TicketRow {
    pub(crate) lease_id: LeaseId,
    pub(crate) place: i64,
    /// Start of the wait: together with the request, it distinguishes the ticket from a later one.
    pub(crate) since: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) ticket_ttl: Ttl,
    pub(crate) refreshes: u64,
}

/// Rows of one lock, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct TicketRows(pub(crate) Vec<TicketRow>);

/// How a record and its tickets are stored.
pub(crate) enum Layout {
    /// The whole record is in the lock's row. All rows of tickets are deleted.
    Inline,
    /// The tickets are rows.
    Rows(RowChange),
}

/// Changes of the rows of a lock.
pub(crate) struct RowChange {
    /// Whether the lock had no rows before: rows of this lock that are found anyway are leftovers,
    /// and are deleted first.
    pub(crate) is_new: bool,
    /// Rows to delete.
    pub(crate) remove: Vec<LeaseId>,
    /// Rows that are new or have changed, with their index among the tickets.
    pub(crate) put: Vec<(usize, TicketRow)>,
    /// All rows after the change.
    pub(crate) rows: TicketRows,
}

impl TicketRows {
    /// Returns the total of the refreshes: the difference between the lock's version and the stored
    /// one.
    fn refreshes(&self) -> u64 {
        self.0.iter().map(|row| row.refreshes).sum()
    }

    fn gaps(&self) -> Vec<i64> {
        let pairs = self.0.windows(2);
        pairs.flat_map(|pair| pair[0].place + 1..pair[1].place).take(MAX_GAPS + 1).collect()
    }
}

impl RowChange {
    /// Returns the record as the lock's row stores it, without tickets and refreshes.
    pub(crate) fn listed(&self, record: &LockRecord) -> Listed {
        let version = record.version.saturating_sub(self.rows.refreshes());
        let tickets = u32::try_from(record.waiters.len()).unwrap_or(u32::MAX);
        let (name, holders) = (record.name.clone(), record.holders.clone());
        let record = LockRecord { name, token: record.token, holders, waiters: Vec::new(), version };
        let first = self.rows.0.first();
        let next = first.map_or_else(|| LeaseId::from_uuid(uuid::Uuid::nil()), |row| row.lease_id);
        let first_position = first.map_or(0, |row| row.place);
        Listed { tickets, next, first_position, gaps: self.rows.gaps(), record }
    }
}

impl Layout {
    /// Chooses how to store `record`, whose tickets were stored as `before`; more than `long` tickets
    /// are a long queue.
    pub(crate) fn choose(record: &LockRecord, before: Option<&TicketRows>, long: usize) -> Self {
        let count = record.waiters.len();
        if count <= if before.is_some() { long / 2 } else { long } {
            return Self::Inline;
        }
        let known = before.map(|rows| rows.0.as_slice()).unwrap_or_default();
        let mut rows = TicketRows(place_all(record, known));
        if rows.gaps().len() > MAX_GAPS {
            rows.0.iter_mut().zip(0..).for_each(|(row, place)| row.place = place);
        }
        let by_id = |row: &TicketRow| row.lease_id;
        let sorted = |rows: &[TicketRow]| {
            let mut rows = rows.to_vec();
            rows.sort_unstable_by_key(by_id);
            rows
        };
        let (old, new) = (sorted(known), sorted(&rows.0));
        let find = |rows: &[TicketRow], id: LeaseId| rows.binary_search_by_key(&id, by_id).ok();
        let put = rows.0.iter().copied().enumerate();
        let put = put.filter(|(_, row)| find(&old, row.lease_id).is_none_or(|at| old[at] != *row)).collect();
        let remove = old.iter().map(by_id).filter(|id| find(&new, *id).is_none()).collect();
        Self::Rows(RowChange { is_new: before.is_none(), remove, put, rows })
    }
}

/// Returns a row for each ticket: its known place, or the next one after the preceding ticket, so
/// that places rise.
fn place_all(record: &LockRecord, known: &[TicketRow]) -> Vec<TicketRow> {
    let mut rows: Vec<TicketRow> = Vec::with_capacity(record.waiters.len());
    // Tickets are mostly in the order of their rows, so the search starts after the row that was
    // found last.
    let mut from = 0;
    for ticket in &record.waiters {
        let (lease_id, since) = (ticket.request.lease_id, ticket.since);
        let is_same = |row: &TicketRow| row.lease_id == lease_id;
        let found = known[from..].iter().position(is_same).map(|at| from + at);
        let same = found.map(|at| {
            from = at + 1;
            known[at]
        });
        let next = rows.last().map(|row| row.place + 1);
        let place = match (same, next) {
            (Some(row), Some(next)) => row.place.max(next),
            (Some(row), None) => row.place,
            (None, next) => next.unwrap_or_else(|| known.get(from).map_or(0, |row| row.place - 1)),
        };
        // A ticket of the same request that was withdrawn and created again starts at zero.
        let refreshes = same.filter(|row| row.since == since).map_or(0, |row| row.refreshes);
        let (expires_at, ticket_ttl) = (ticket.expires_at, ticket.ticket_ttl);
        rows.push(TicketRow { lease_id, place, since, expires_at, ticket_ttl, refreshes });
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::model::{Holder, LockName, LockRequest, Metadata, Mode, Priority, Slots};

    fn ticket(number: u128) -> Ticket {
        let request = LockRequest {
            lease_id: LeaseId::from_uuid(Uuid::from_u128(number)),
            holder: Holder::new("ada").unwrap(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: Priority::default(),
            ttl: Ttl::from_secs(10),
            metadata: Metadata::default(),
            process: None,
        };
        let (since, expires_at) = (Timestamp::from_micros(1), Timestamp::from_micros(2));
        Ticket { request: Arc::new(request), since, expires_at, ticket_ttl: Ttl::from_secs(10) }
    }

    fn record(tickets: impl IntoIterator<Item = u128>) -> LockRecord {
        let waiters = tickets.into_iter().map(ticket).collect();
        LockRecord { waiters, version: 100, ..LockRecord::new(LockName::new("lock").unwrap()) }
    }

    fn change(record: &LockRecord, before: Option<&TicketRows>) -> RowChange {
        match Layout::choose(record, before, 2) {
            Layout::Rows(change) => change,
            Layout::Inline => panic!("it is long"),
        }
    }

    /// Checks that every ticket has its place, and that exactly the changed rows are written.
    fn check(record: &LockRecord, change: &RowChange) {
        let listed = change.listed(record);
        for (at, row) in change.rows.0.iter().enumerate() {
            let (id, ahead) = (record.waiters[at].request.lease_id, u32::try_from(at).unwrap());
            assert_eq!((row.lease_id, listed.ahead(row.place)), (id, ahead));
        }
        assert!(change.rows.0.is_sorted_by(|one, two| one.place < two.place));
    }

    #[test]
    fn who_joins_and_who_goes_touches_no_other_row() {
        let first = record(1..=10);
        let all = change(&first, None);
        assert!(all.is_new && all.put.len() == 10 && all.remove.is_empty());
        check(&first, &all);
        // The first ticket is granted, one in the middle is withdrawn, and another one joins.
        let next = record((2..=4).chain(6..=11));
        let some = change(&next, Some(&all.rows));
        check(&next, &some);
        assert_eq!(some.put.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [8]);
        assert_eq!(some.remove, [1, 5].map(|number| ticket(number).request.lease_id));
        // One ticket joins at the front, and one of higher priority in the gap: no other row changes.
        let urgent = record([20, 2, 3, 4, 21].into_iter().chain(6..=11));
        let front = change(&urgent, Some(&some.rows));
        check(&urgent, &front);
        assert_eq!(front.put.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 4]);
    }

    #[test]
    fn places_are_given_again_when_too_many_are_empty() {
        let first = record(0..500);
        let all = change(&first, None);
        let half = record((0..500).filter(|number| number % 2 == 0));
        let some = change(&half, Some(&all.rows));
        check(&half, &some);
        assert_eq!((some.rows.0.last().unwrap().place, some.remove.len()), (249, 250));
    }

    #[test]
    fn refreshes_are_part_of_the_version() {
        let first = record(1..=3);
        let mut rows = change(&first, None).rows;
        rows.0[1].refreshes = 7;
        let again = change(&first, Some(&rows));
        assert!(again.put.is_empty() && again.remove.is_empty());
        assert_eq!(again.listed(&first).record.version, 93);
    }

    #[test]
    fn a_queue_returns_when_it_is_half_as_long() {
        let rows = change(&record(1..=3), None).rows;
        assert!(matches!(Layout::choose(&record(1..=2), Some(&rows), 2), Layout::Rows(_)));
        assert!(matches!(Layout::choose(&record(1..=1), Some(&rows), 2), Layout::Inline));
        assert!(matches!(Layout::choose(&record(1..=2), None, 2), Layout::Inline));
    }
}
