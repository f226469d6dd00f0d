//! Fast path: acquire, renew and release of a lock that has at most one holder and no waiters, in
//! one statement, decided and timestamped by the server. An operation that does not fit changes
//! nothing and is left to the slow path.

use std::collections::HashSet;

use tokio_postgres::Row;
use uuid::Uuid;

use super::gate::Gate;
use super::rows::{column, extra, lease, lease_at, slots_column, time, token, ttl_column};
use super::session::Session;
use super::sql::Sql;
use super::trouble::Fail;
use crate::model::{
    Acquire, Ask, Lease, LeaseId, Leave, LockName, LockOp, Mode, Outcome, Release, Renew, Status,
};

/// Whether SQL can decide this operation.
pub(super) fn is_hot(op: &LockOp) -> bool {
    matches!(op, LockOp::Acquire(_) | LockOp::Renew(_) | LockOp::Release(Release { at_least: None, .. }))
}

/// Returns the lease of the operation if SQL can decide the operation.
pub(super) fn hot_lease(op: &LockOp) -> Option<LeaseId> {
    lease_of(op).filter(|_| is_hot(op))
}

/// Returns the lease that the operation belongs to.
pub(super) fn lease_of(op: &LockOp) -> Option<LeaseId> {
    match op {
        LockOp::Acquire(Acquire { ask, .. }) => Some(ask.lease_id),
        LockOp::Renew(Renew { lease_id, .. })
        | LockOp::RenewLogged(Renew { lease_id, .. })
        | LockOp::Release(Release { lease_id, .. })
        | LockOp::Leave(Leave { lease_id }) => Some(*lease_id),
        LockOp::RequestRelease(_) | LockOp::ForceRelease(_) | LockOp::Sweep(_) | LockOp::Restarted(_) => None,
    }
}

/// Executes one operation. Returns `None`, with nothing changed, if the operation needs the slow
/// path.
pub(super) async fn one(
    session: &Session,
    gate: &Gate,
    name: &LockName,
    op: &LockOp,
) -> Result<Option<Outcome>, Fail> {
    let (name, now) = (name.as_str(), gate.now());
    let rows = match op {
        LockOp::Acquire(Acquire { ask, .. }) => {
            let (id, shared) = (ask.lease_id.as_uuid(), ask.mode == Mode::Shared);
            let (slots, ttl, extra) = (slots_column(ask), ttl_column(ask.ttl), extra(ask)?);
            let holder = ask.holder.as_str();
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
                [&name, id, &holder, &shared, &slots, &ttl, &extra, &now];
            session.query(Sql::Acquire, &params).await?
        }
        LockOp::Renew(Renew { lease_id, token, ttl }) => {
            let (token, ttl) = (column(token.get()), ttl.map(ttl_column));
            let mut rows =
                session.query(Sql::Renew, &[&name, lease_id.as_uuid(), &token, &ttl, &now]).await?;
            // A row of version 0 was created by this statement: the lock was purged meanwhile.
            if let Some(row) = rows.first()
                && row.try_get::<_, i64>(2)? == 0
            {
                rows.clear();
            }
            rows
        }
        LockOp::Release(Release { lease_id, token, at_least: None }) => {
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                [&name, lease_id.as_uuid(), &column(token.get()), &now];
            let rows = session.query(Sql::Release, &params).await?;
            let released = rows.first().map(|row| lease_at(row, 0, *lease_id, *token)).transpose()?;
            return Ok(released.map(Outcome::Released));
        }
        _ => return Ok(None),
    };
    rows.first().map(|row| outcome(op, row, 2)).transpose()
}

/// Executes operations on distinct locks, ordered by name, in one statement and one commit. The
/// result is `None` for operations that need the slow path.
pub(super) async fn many(
    session: &Session,
    gate: &Gate,
    ops: &[(&LockName, &LockOp)],
) -> Result<Vec<Option<Outcome>>, Fail> {
    debug_assert!(ops.is_sorted_by(|one, two| one.0 < two.0), "two statements must not wait for each other");
    match ops {
        [] => return Ok(Vec::new()),
        [(name, op)] => return Ok(vec![one(session, gate, name, op).await?]),
        _ => {}
    }
    let (columns, now) = (Columns::new(ops)?, gate.now());
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 10] = [
        &columns.name,
        &columns.held,
        &columns.lease_id,
        &columns.token,
        &columns.ttl,
        &columns.holder,
        &columns.shared,
        &columns.slots,
        &columns.extra,
        &now,
    ];
    let rows = session.query(Sql::Many, &params).await?;
    let mut outcomes: Vec<Option<Outcome>> = ops.iter().map(|_| None).collect();
    for row in &rows {
        let name: &str = row.try_get(0)?;
        // `ops` is sorted by name.
        if let Ok(at) = ops.binary_search_by(|(other, _)| other.as_str().cmp(name)) {
            outcomes[at] = Some(outcome(ops[at].1, row, ACQUIRED_AT)?);
        }
    }
    Ok(outcomes)
}

/// Returns those of these locks whose rows another session has locked at present.
pub(super) async fn stuck(session: &Session, names: &[&str]) -> Result<HashSet<LockName>, Fail> {
    let rows = session.query(Sql::Stuck, &[&names]).await?;
    let mut stuck = HashSet::new();
    for row in &rows {
        stuck.extend(LockName::new(row.try_get::<_, &str>(0)?).ok());
    }
    Ok(stuck)
}

/// Index of the column with the time of the grant in [`Sql::Many`].
const ACQUIRED_AT: usize = 10;

/// Parameters of [`Sql::Many`].
#[derive(Default)]
struct Columns<'a> {
    name: Vec<&'a str>,
    held: Vec<Option<bool>>,
    lease_id: Vec<&'a Uuid>,
    token: Vec<Option<i64>>,
    ttl: Vec<Option<i64>>,
    holder: Vec<Option<&'a str>>,
    shared: Vec<Option<bool>>,
    slots: Vec<Option<i32>>,
    extra: Vec<Option<String>>,
}

impl<'a> Columns<'a> {
    fn new(ops: &[(&'a LockName, &'a LockOp)]) -> Result<Self, Fail> {
        let mut columns = Self::default();
        for (name, op) in ops {
            let (held, lease_id, token, ttl) = match op {
                LockOp::Acquire(Acquire { ask, .. }) => (Some(true), &ask.lease_id, None, Some(ask.ttl)),
                LockOp::Renew(Renew { lease_id, token, ttl }) => (None, lease_id, Some(token), *ttl),
                LockOp::Release(Release { lease_id, token, .. }) => {
                    (Some(false), lease_id, Some(token), None)
                }
                _ => return Err(Fail::Unreadable("an operation that is not hot".into())),
            };
            let ask: Option<&'a Ask> = match op {
                LockOp::Acquire(Acquire { ask, .. }) => Some(ask),
                _ => None,
            };
            columns.name.push(name.as_str());
            columns.held.push(held);
            columns.lease_id.push(lease_id.as_uuid());
            columns.token.push(token.map(|token| column(token.get())));
            columns.ttl.push(ttl.map(ttl_column));
            columns.holder.push(ask.map(|ask| ask.holder.as_str()));
            columns.shared.push(ask.map(|ask| ask.mode == Mode::Shared));
            columns.slots.push(ask.map(slots_column));
            columns.extra.push(ask.map(extra).transpose()?.flatten());
        }
        Ok(columns)
    }
}

/// Converts a result row to the outcome of its operation.
fn outcome(op: &LockOp, row: &Row, acquired_at: usize) -> Result<Outcome, Fail> {
    match op {
        LockOp::Acquire(Acquire { ask, .. }) => {
            let now = time(row, acquired_at)?;
            Ok(Outcome::Granted(Lease {
                ask: ask.clone(),
                token: token(row, 1)?,
                acquired_at: now,
                renewed_at: now,
                expires_at: now.plus(ask.ttl),
                renewals: 0,
                status: Status::Active,
                asked: None,
                took_over: None,
            }))
        }
        LockOp::Renew(_) => lease(row).map(Outcome::Renewed),
        _ => lease(row).map(Outcome::Released),
    }
}
