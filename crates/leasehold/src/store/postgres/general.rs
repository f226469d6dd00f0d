//! Slow path: every operation, under a row lock, by the rules in [`LockRecord::apply`]. One
//! operation, or several on the same lock, take two round trips.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::gate::{Gate, micros};
use super::rows::{EventColumns, LOCK_COLUMNS, LockRow, Saved, column, time};
use super::session::{Param, Session};
use super::sql::Sql;
use super::switchboard::Shape;
use super::tickets;
use super::trouble::Fail;
use super::upkeep;
use crate::model::{Event, EventKind, Lease, LockName, LockOp, LockRecord, Outcome, Timestamp, Token};
use crate::store::ticket_rows::Layout;

/// Result of the operations.
pub(super) struct Done {
    /// Outcome of each operation, and the leases that it granted to waiting tickets.
    pub(super) answers: Vec<(Outcome, Vec<Lease>)>,
    /// Newest token of the lock after the operations.
    pub(super) token: Token,
    /// Layout of the row after the operations, which determines what the fast path can decide.
    pub(super) shape: Shape,
    /// Whether a transaction without writes is still open. The caller need not wait for its end.
    pub(super) is_open: bool,
    /// Notification for waiters of other processes that is being sent. The caller need not wait for
    /// its completion.
    pub(super) word: Option<Word>,
}

/// Response to a notification that has been sent.
pub(super) type Word = Pin<Box<dyn Future<Output = Result<(), Fail>> + Send>>;

/// Results of several operations on one lock, applied in order, at the same time and atomically.
#[derive(Default)]
struct All {
    answers: Vec<(Outcome, Vec<Lease>)>,
    events: Vec<Event>,
    changed: bool,
}

impl All {
    fn apply(record: &mut LockRecord, ops: &[&LockOp], now: Timestamp) -> Self {
        let mut all = Self::default();
        for op in ops {
            let applied = record.apply(op, now);
            all.answers.push((applied.outcome, applied.handed_over));
            all.events.extend(applied.events);
            all.changed |= applied.changed;
        }
        all
    }

    fn served(&self) -> impl Iterator<Item = &Lease> {
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

/// Builds the NOTIFY for waiters of other processes that were granted a lease, with the waiter and
/// the lock in the payload.
pub(super) fn word<'a>(
    session: &Arc<Session>,
    gate: &Gate,
    name: &LockName,
    served: impl Iterator<Item = &'a Lease>,
) -> Option<Word> {
    let elsewhere =
        served.map(|lease| lease.ask.lease_id).filter(|waiter| !gate.waiters.waits_here(name, waiter));
    let words: Vec<String> = elsewhere.map(|waiter| format!("{waiter} {name}")).collect();
    let (session, channel) = (session.clone(), gate.channel());
    (!words.is_empty()).then(|| -> Word {
        Box::pin(async move {
            let params: [Param<'_>; 2] = [&channel, &words];
            session.query(Sql::Notify, &params).await?;
            Ok(())
        })
    })
}

/// Timeout for the row of a lock that another session has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// The `lock_timeout` of a connection for locks: other callers wait for the connection.
    Short,
    /// As long as a caller can wait.
    Long,
}

impl Patience {
    const fn begin(self) -> &'static str {
        match self {
            Self::Short => "BEGIN ISOLATION LEVEL READ COMMITTED",
            Self::Long => "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 2000",
        }
    }
}

/// Applies operations to one lock. Returns `None` if they would create the lock: another statement
/// does that. After an error the transaction may be open, and the session must not be used again.
pub(super) async fn apply(
    session: &Arc<Session>,
    gate: &Gate,
    name: &LockName,
    ops: &[&LockOp],
    patience: Patience,
) -> Result<Option<Done>, Fail> {
    session.ready(&[Sql::Lock, Sql::Save, Sql::Notify]).await?;
    let (key, now) = (name.as_str(), gate.now());
    let lock: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&key, &now];
    let (begun, locked) = tokio::join!(
        biased;
        session.say(patience.begin()),
        session.query(Sql::Lock, &lock),
    );
    begun?;
    let locked = locked?;
    let Some(row) = locked.first() else {
        // The lock has no record, so the time does not matter.
        let all = All::apply(&mut LockRecord::new(name.clone()), ops, Timestamp::default());
        if all.changed {
            session.say("ROLLBACK").await?;
            return Ok(None);
        }
        let (token, shape) = (Token::default(), Shape::Plain);
        return Ok(Some(Done { answers: all.answers, token, shape, is_open: true, word: None }));
    };
    let LockRow { mut record, wake_at, is_listed } = LockRow::read(row)?;
    let now = time(row, LOCK_COLUMNS)?;
    if record.version == 0 {
        record.token = upkeep::floor_of(session).await?;
    }
    // Under the row lock and in a statement of its own, so that it reads everything that was
    // committed before the row lock was granted.
    let before = if is_listed { Some(tickets::load(session, &mut record).await?) } else { None };
    let all = All::apply(&mut record, ops, now);
    let layout = Layout::choose(&record, before.as_ref(), gate.options.long_queue);
    let saved = match &layout {
        Layout::Inline => Saved::new(&record)?,
        Layout::Rows(change) => Saved::listed(&record, change)?,
    };
    let shape = Shape::of(&saved);
    let wakes = WakeAt::new(&record, wake_at, ops, now);
    let is_open = !all.changed && wakes.before == wakes.after;
    let mut word = None;
    if !is_open {
        tickets::save(session, &record, before.is_some(), &layout).await?;
        // Sent right behind the commit, on the same connection.
        word = self::word(session, gate, name, all.served());
        save(session, &record, &saved, wakes.after, now, &all, word.as_mut()).await?;
    }
    Ok(Some(Done { answers: all.answers, token: record.token, shape, is_open, word }))
}

/// Time at which the sweeper visits the lock; never too late. It is updated only if it would be too
/// late, if it has passed, or after a sweep.
struct WakeAt {
    before: Option<i64>,
    after: Option<i64>,
}

impl WakeAt {
    fn new(record: &LockRecord, before: Option<i64>, ops: &[&LockOp], now: Timestamp) -> Self {
        let exact = record.next_end().map(micros);
        let early_enough = match (exact, before) {
            (Some(end), Some(before)) => micros(now) < before && before <= end,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let swept = ops.iter().any(|op| matches!(op, LockOp::Sweep(_) | LockOp::Restarted(_)));
        Self { before, after: if early_enough && !swept { before } else { exact } }
    }
}

async fn save(
    session: &Session,
    record: &LockRecord,
    saved: &Saved,
    wake_at: Option<i64>,
    now: Timestamp,
    all: &All,
    word: Option<&mut Word>,
) -> Result<(), Fail> {
    let (key, now) = (record.name.as_str(), micros(now));
    let (token, version) = (column(record.token.get()), column(record.version));
    let events = EventColumns::new(&all.events)?;
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 28] = [
        &key,
        &token,
        &version,
        &saved.held,
        &saved.lease_id,
        &saved.holder,
        &saved.shared,
        &saved.slots,
        &saved.ttl,
        &saved.extra,
        &saved.acquired_at,
        &saved.renewed_at,
        &saved.expires_at,
        &saved.renewals,
        &wake_at,
        &saved.record,
        &now,
        &events.at,
        &events.kind,
        &events.token,
        &events.lease_id,
        &events.holder,
        &events.shared,
        &events.slots,
        &events.after_micros,
        &events.renewals,
        &events.rest,
        &saved.queue,
    ];
    let end = if all.only_tickets() { "SET LOCAL synchronous_commit = off; COMMIT" } else { "COMMIT" };
    // If the save fails, the commit ends a transaction without effect, and the notification wakes a
    // waiter for nothing.
    let (saved, committed, ()) =
        tokio::join!(biased; session.query(Sql::Save, &params), session.say(end), send(word.into_iter()));
    saved?;
    Ok(committed?)
}

/// Starts sending notifications without waiting for the responses.
pub(super) async fn send(words: impl Iterator<Item = &mut Word>) {
    for word in words {
        poll_fn(|context| {
            // A response that arrives before the others can only be an error, which they receive
            // too.
            let _ = word.as_mut().poll(context);
            Poll::Ready(())
        })
        .await;
    }
}
