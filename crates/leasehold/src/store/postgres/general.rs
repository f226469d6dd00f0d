//! Every operation, by the rules, under a row lock: two round trips, and a row that is as [`LockRecord::apply`] says.

use super::gate::{Gate, micros};
use super::rows::{EventColumns, LOCK_COLUMNS, LockRow, Saved, column, time};
use super::session::Session;
use super::sql::Sql;
use super::trouble::Fail;
use crate::model::{Applied, EventKind, Lease, LockName, LockOp, LockRecord, Outcome, Timestamp};

/// What came of an operation.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    pub(super) handed_over: Vec<Lease>,
    /// Whether SQL can decide about this lock from here on.
    pub(super) is_plain: bool,
    /// Whether a transaction is still open that has nothing to write: the caller need not wait for its end.
    pub(super) is_open: bool,
}

/// Applies one operation. None if it would have made the lock: the statement for that is another one. After an error the
/// transaction may be open, and the session is of no more use.
pub(super) async fn apply(
    session: &Session,
    gate: &Gate,
    name: &LockName,
    op: &LockOp,
) -> Result<Option<Done>, Fail> {
    session.ready(&[Sql::Lock, Sql::Save]).await?;
    let (key, now) = (name.as_str(), gate.now());
    let lock: [&(dyn tokio_postgres::types::ToSql + Sync); 2] = [&key, &now];
    let (begun, locked) = tokio::join!(
        biased;
        session.say("BEGIN ISOLATION LEVEL READ COMMITTED"),
        session.query(Sql::Lock, &lock),
    );
    begun?;
    let locked = locked?;
    let Some(row) = locked.first() else {
        // Nobody has ever asked for it: there is nothing that time could change.
        let mut record = LockRecord::new(name.clone());
        let applied = record.apply(op, Timestamp::default());
        let (outcome, handed_over) = (applied.outcome, applied.handed_over);
        let done = Done { outcome, handed_over, is_plain: true, is_open: true };
        if applied.changed {
            session.say("ROLLBACK").await?;
            return Ok(None);
        }
        return Ok(Some(done));
    };
    let LockRow { mut record, wake_at } = LockRow::read(row)?;
    let now = time(row, LOCK_COLUMNS)?;
    let applied = record.apply(op, now);
    let saved = Saved::new(&record)?;
    let is_plain = saved.held.is_some();
    let wakes = WakeAt::new(&record, wake_at, op);
    let is_open = !applied.changed && wakes.before == wakes.after;
    if !is_open {
        save(session, &record, &saved, wakes.after, now, &applied).await?;
    }
    Ok(Some(Done { outcome: applied.outcome, handed_over: applied.handed_over, is_plain, is_open }))
}

/// When the sweeper looks at the lock: never too late. It moves only when it would be, and when the sweeper has looked.
struct WakeAt {
    before: Option<i64>,
    after: Option<i64>,
}

impl WakeAt {
    fn new(record: &LockRecord, before: Option<i64>, op: &LockOp) -> Self {
        let exact = record.next_end().map(micros);
        let early_enough = match (exact, before) {
            (Some(end), Some(before)) => before <= end,
            (Some(_), None) => false,
            (None, _) => true,
        };
        let swept = matches!(op, LockOp::Sweep(_) | LockOp::Restarted(_));
        Self { before, after: if early_enough && !swept { before } else { exact } }
    }
}

async fn save(
    session: &Session,
    record: &LockRecord,
    saved: &Saved,
    wake_at: Option<i64>,
    now: Timestamp,
    applied: &Applied,
) -> Result<(), Fail> {
    let (key, now) = (record.name.as_str(), micros(now));
    let (token, version) = (column(record.token.get()), column(record.version));
    let events = EventColumns::new(&applied.events)?;
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 27] = [
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
    ];
    // If the first fails, the second ends a transaction in which nothing was done.
    let (saved, committed) =
        tokio::join!(biased; session.query(Sql::Save, &params), session.say(end(applied)));
    saved?;
    Ok(committed?)
}

/// A ticket that a crash of the server loses is drawn again: it need not wait for the disk.
fn end(applied: &Applied) -> &'static str {
    let only_a_ticket = matches!(applied.outcome, Outcome::Queued(_))
        && applied.handed_over.is_empty()
        && applied.events.iter().all(|event| event.kind == EventKind::Queued);
    if only_a_ticket { "SET LOCAL synchronous_commit = off; COMMIT" } else { "COMMIT" }
}
