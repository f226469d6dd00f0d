//! Slow path: every operation, under a row lock, by the rules in [`LockRecord::apply`]. One
//! operation, or several on the same lock, take two round trips; on a long queue one more to read the
//! tickets, and one more to grant some of them.

use std::collections::HashSet;
use std::sync::Arc;

use super::codec::{LOCK_COLUMNS, LockColumns, LockRow, extra};
use super::history::event_columns;
use super::notify::{NOTIFY, PendingNotify, notify_remote, start_sending};
use super::router::LockLayout;
use super::{maintenance, tickets};
use crate::model::{
    Event, EventKind, Lease, LeaseId, LockName, LockOp, LockRecord, Mode, Outcome, Timestamp, Token,
};
use crate::store::postgres::columns::{OwnedParam, Param, int4, int8, micros, params, time, ttl_micros};
use crate::store::postgres::connection::{Connector, Session};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, BIGS, BOOL, BOOLS, INT, INTS, SMALL, Sql, TEXT, TEXTS, UUID, UUIDS};
use crate::store::ticket_rows::{Layout, TicketRows};

pub(crate) struct Applied {
    /// Outcome of each operation, and the leases that it granted to waiting tickets. Shorter than the
    /// list of operations if the next one would create the lock.
    pub(crate) answers: Vec<(Outcome, Vec<Lease>)>,
    /// Newest token of the lock after the operations.
    pub(crate) token: Token,
    /// Layout of the row after the operations, which determines what the fast path can decide.
    pub(crate) layout: LockLayout,
    /// Whether a transaction without writes is still open. The caller need not wait for its end.
    pub(crate) is_transaction_open: bool,
    /// Notification for waiters of other processes that is being sent. The caller need not wait for
    /// its completion.
    pub(crate) notification: Option<PendingNotify>,
}

/// Results of several operations on one lock, applied in order, at the same time and atomically.
#[derive(Default)]
struct Transition {
    answers: Vec<(Outcome, Vec<Lease>)>,
    events: Vec<Event>,
    changed: bool,
}

impl Transition {
    fn apply(record: &mut LockRecord, ops: &[&LockOp], now: Timestamp) -> Self {
        let mut transition = Self::default();
        for op in ops {
            let applied = record.apply(op, now);
            transition.answers.push((applied.outcome, applied.handed_over));
            transition.events.extend(applied.events);
            transition.changed |= applied.changed;
        }
        transition
    }

    fn granted(&self) -> impl Iterator<Item = &Lease> {
        self.answers.iter().flat_map(|(_, handed_over)| handed_over)
    }

    /// Whether only tickets were added. A ticket that a server crash loses is created again, so its
    /// commit need not wait for the disk.
    fn only_tickets(&self) -> bool {
        let waits = |(outcome, handed_over): &(Outcome, Vec<Lease>)| {
            matches!(outcome, Outcome::Queued(_)) && handed_over.is_empty()
        };
        self.answers.iter().all(waits) && self.events.iter().all(|event| event.kind == EventKind::Queued)
    }
}

/// Timeout for the row of a lock that another session has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowTimeout {
    /// The `lock_timeout` of a connection for locks: other callers wait for the connection.
    Short,
    /// As long as a caller can wait.
    Long,
}

impl RowTimeout {
    const fn begin(self) -> &'static str {
        match self {
            Self::Short => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Self::Long => "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 2000",
        }
    }
}

/// Applies operations to one lock. If the lock has no row, applies only those before the first one that
/// would create it: another statement does that. After an error the transaction may be open, and the
/// session must not be used again.
pub(crate) async fn apply(
    session: &Arc<Session>,
    connector: &Connector,
    name: &LockName,
    ops: &[&LockOp],
    row_timeout: RowTimeout,
) -> Result<Applied, PgError> {
    session.prepare(&[&LOCK_ROW, &SAVE, &NOTIFY]).await?;
    let (key, now) = (name.as_str(), connector.now());
    let lock: [Param<'_>; 2] = [&key, &now];
    let (begun, locked) = tokio::join!(
        biased;
        session.simple_query(row_timeout.begin()),
        session.query(&LOCK_ROW, &lock),
    );
    begun?;
    let locked = locked?;
    let Some(row) = locked.first() else {
        let answers = answers_without_record(name, ops);
        let creates_lock = answers.len() < ops.len();
        if creates_lock {
            session.simple_query("ROLLBACK").await?;
        }
        return Ok(Applied {
            answers,
            token: Token::default(),
            layout: LockLayout::Simple,
            is_transaction_open: !creates_lock,
            notification: None,
        });
    };
    let LockRow { mut record, wake_at, is_listed } = LockRow::read(row)?;
    let mut now = time(row, LOCK_COLUMNS)?;
    if record.version == 0 {
        record.token = maintenance::min_token(session).await?;
    }
    // Under the row lock and in a statement of its own, so that it reads everything that was
    // committed before the row lock was granted.
    let mut before = if is_listed { Some(tickets::load(session, &mut record).await?) } else { None };
    let transition = match &mut before {
        Some(rows) => apply_to_rows(session, connector, &mut record, rows, ops, &mut now).await?,
        None => Transition::apply(&mut record, ops, now),
    };
    let ticket_layout = Layout::choose(&record, before.as_ref(), connector.options.long_queue);
    let columns = match &ticket_layout {
        Layout::Inline => LockColumns::new(&record)?,
        Layout::Rows(change) => LockColumns::listed(&record, change)?,
    };
    let layout = LockLayout::of(columns.layout);
    let next_wake_at = next_wake_at(&record, wake_at, ops, now);
    let is_transaction_open = !transition.changed && wake_at == next_wake_at;
    let mut notification = None;
    if !is_transaction_open {
        tickets::save(session, &record, before.is_some(), &ticket_layout).await?;
        // Sent right behind the commit, on the same connection.
        notification = notify_remote(session, connector, name, transition.granted());
        save(session, &record, columns, next_wake_at, now, &transition, notification.as_mut()).await?;
    }
    Ok(Applied {
        answers: transition.answers,
        token: record.token,
        layout,
        is_transaction_open,
        notification,
    })
}

/// Applies operations to a lock whose tickets are rows. Refreshes do not lock the lock's row. So the rows of
/// the tickets that are granted are locked, and the operations are applied at a time that is read after that:
/// a refresh that was answered was sent before the lease begins, and a later one waits, and then finds no
/// ticket.
async fn apply_to_rows(
    session: &Session,
    connector: &Connector,
    record: &mut LockRecord,
    rows: &mut TicketRows,
    ops: &[&LockOp],
    now: &mut Timestamp,
) -> Result<Transition, PgError> {
    let mut locked = HashSet::new();
    loop {
        let mut applied = record.clone();
        let transition = Transition::apply(&mut applied, ops, *now);
        let granted = transition.granted().map(|lease| lease.request.lease_id);
        let granted: Vec<LeaseId> = granted.filter(|id| !locked.contains(id)).collect();
        if granted.is_empty() {
            *record = applied;
            return Ok(transition);
        }
        // At the later time, other tickets may be granted.
        let at = tickets::lock_rows(session, connector, record, rows, &granted).await?;
        *now = at.map_or(*now, |at| at.max(*now));
        locked.extend(granted);
    }
}

/// Returns the answers of the operations before the first one that would create the lock. The lock has no
/// record, so the time does not matter.
fn answers_without_record(name: &LockName, ops: &[&LockOp]) -> Vec<(Outcome, Vec<Lease>)> {
    let mut record = LockRecord::new(name.clone());
    let applied = ops.iter().map(|op| record.apply(op, Timestamp::default()));
    let unchanged = applied.take_while(|applied| !applied.changed);
    unchanged.map(|applied| (applied.outcome, applied.handed_over)).collect()
}

/// Returns the time at which the sweeper visits the lock; never too late. It is updated only if it would
/// be too late, if it has passed, or after a sweep.
fn next_wake_at(record: &LockRecord, before: Option<i64>, ops: &[&LockOp], now: Timestamp) -> Option<i64> {
    let exact = record.next_end().map(micros);
    let early_enough = match (exact, before) {
        (Some(end), Some(before)) => micros(now) < before && before <= end,
        (Some(_), None) => false,
        (None, _) => true,
    };
    let swept = ops.iter().any(|op| matches!(op, LockOp::Sweep(_) | LockOp::Restarted(_)));
    if early_enough && !swept { before } else { exact }
}

async fn save(
    session: &Session,
    record: &LockRecord,
    columns: LockColumns<'_>,
    wake_at: Option<i64>,
    now: Timestamp,
    transition: &Transition,
    notification: Option<&mut PendingNotify>,
) -> Result<(), PgError> {
    let LockColumns { layout, lease, record: text, queue } = columns;
    let request = lease.map(|lease| &*lease.request);
    let mut values: Vec<OwnedParam<'_>> = vec![
        Box::new(record.name.as_str()),
        Box::new(int8(record.token.get())),
        Box::new(int8(record.version)),
        Box::new(layout),
        Box::new(request.map(|request| request.lease_id.as_uuid())),
        Box::new(request.map(|request| request.holder.as_str())),
        Box::new(request.map(|request| request.mode == Mode::Shared)),
        Box::new(request.map(|request| int4(request.slots.get()))),
        Box::new(request.map(|request| ttl_micros(request.ttl))),
        Box::new(request.map(extra).transpose()?.flatten()),
        Box::new(lease.map(|lease| micros(lease.acquired_at))),
        Box::new(lease.map(|lease| micros(lease.renewed_at))),
        Box::new(lease.map(|lease| micros(lease.expires_at))),
        Box::new(lease.map(|lease| int8(lease.renewals))),
        Box::new(wake_at),
        Box::new(text),
        Box::new(micros(now)),
    ];
    values.extend(event_columns(&transition.events)?);
    values.push(Box::new(queue));
    let save = params(&values);
    let commit =
        if transition.only_tickets() { "SET LOCAL synchronous_commit = off; COMMIT" } else { "COMMIT" };
    // If the save fails, the commit ends a transaction without effect, and the notification wakes a
    // waiter for nothing.
    let (saved, committed, ()) = tokio::join!(biased; session.query(&SAVE, &save), session.simple_query(commit), start_sending(notification.into_iter()));
    saved?;
    Ok(committed?)
}

// --- statements -----------------------------------------------------------------------------------

/// Locks a row, and reads the clock after that: the inner SELECT has the row lock before the outer
/// one is evaluated.
pub(crate) static LOCK_ROW: Sql =
    Sql::new(&[TEXT], "SELECT $LOCK, $NOW FROM (SELECT * FROM $s.locks WHERE name = $1 FOR UPDATE) l");

/// Updates a row and adds its events.
pub(crate) static SAVE: Sql = Sql::new(
    &[
    TEXT, BIG, BIG, SMALL, UUID, TEXT, BOOL, INT, BIG, TEXT, BIG, BIG, BIG, BIG, BIG, TEXT, BIG, BIGS, TEXTS,
    BIGS, UUIDS, TEXTS, BOOLS, INTS, BIGS, BIGS, TEXTS, TEXT,
],
    "WITH saved AS (
            UPDATE $s.locks SET token = $2, version = $3, layout = $4, lease_id = $5, holder = $6, shared = $7, slots = $8,
                ttl = $9, extra = $10, acquired_at = $11, renewed_at = $12, expires_at = $13, renewals = $14,
                wake_at = $15, record = $16, changed_at = $17, queue = $28::text::jsonb
            WHERE name = $1)
        INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals, extra)
        SELECT $1, e.* FROM unnest($18::bigint[], $19::text[], $20::bigint[], $21::uuid[], $22::text[], $23::boolean[],
                                   $24::integer[], $25::bigint[], $26::bigint[], $27::text[]) e",
);
