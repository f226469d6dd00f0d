//! The hot path: acquire, renew and release of a lock that at most one holder has and nobody waits for, in one statement,
//! decided and stamped by the server. Whatever does not fit changes nothing and is left to the rules.

use std::sync::Arc;

use tokio_postgres::Row;
use uuid::Uuid;

use super::gate::Gate;
use super::rows::{column, extra, lease, slots_column, time, token, ttl_column};
use super::session::Session;
use super::sql::Sql;
use super::trouble::Fail;
use crate::model::{Acquire, Ask, Lease, LockName, LockOp, Mode, Outcome, Release, Renew, Status};

/// The operations that SQL can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hot {
    Acquire,
    Renew,
    Release,
}

impl Hot {
    pub(super) fn of(op: &LockOp) -> Option<Self> {
        match op {
            LockOp::Acquire(_) => Some(Self::Acquire),
            LockOp::Renew(_) => Some(Self::Renew),
            LockOp::Release(Release { at_least: None, .. }) => Some(Self::Release),
            _ => None,
        }
    }
}

/// One operation. None, and nothing has changed, if the rules have to decide.
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
            session.query(Sql::AcquireOne, &params).await?
        }
        LockOp::Renew(Renew { lease_id, token, ttl }) => {
            let (token, ttl) = (column(token.get()), ttl.map(ttl_column));
            session.query(Sql::RenewOne, &[&name, lease_id.as_uuid(), &token, &ttl, &now]).await?
        }
        LockOp::Release(Release { lease_id, token, at_least: None }) => {
            let token = column(token.get());
            session.query(Sql::ReleaseOne, &[&name, lease_id.as_uuid(), &token, &now]).await?
        }
        _ => return Ok(None),
    };
    rows.first().map(|row| outcome(op, row)).transpose()
}

/// Several operations of one kind, on locks that are all different, in the order of their names: one statement, one
/// commit. None for those that the rules have to decide.
pub(super) async fn many(
    session: &Session,
    gate: &Gate,
    hot: Hot,
    ops: &[(&LockName, &LockOp)],
) -> Result<Vec<Option<Outcome>>, Fail> {
    debug_assert!(ops.is_sorted_by(|one, two| one.0 < two.0), "two statements must not wait for each other");
    match ops {
        [] => return Ok(Vec::new()),
        [(name, op)] => return Ok(vec![one(session, gate, name, op).await?]),
        _ => {}
    }
    let rows = match hot {
        Hot::Acquire => acquire(session, gate, ops).await?,
        Hot::Renew => renew(session, gate, ops).await?,
        Hot::Release => release(session, gate, ops).await?,
    };
    let mut outcomes: Vec<Option<Outcome>> = ops.iter().map(|_| None).collect();
    for row in &rows {
        let name: &str = row.try_get(0)?;
        // In the order of the names, as they were sent.
        if let Ok(at) = ops.binary_search_by(|(other, _)| other.as_str().cmp(name)) {
            outcomes[at] = Some(outcome(ops[at].1, row)?);
        }
    }
    Ok(outcomes)
}

async fn acquire(session: &Session, gate: &Gate, ops: &[(&LockName, &LockOp)]) -> Result<Vec<Row>, Fail> {
    let asks: Vec<&Arc<Ask>> = ops
        .iter()
        .filter_map(|(_, op)| match op {
            LockOp::Acquire(Acquire { ask, .. }) => Some(ask),
            _ => None,
        })
        .collect();
    let ids: Vec<&Uuid> = asks.iter().map(|ask| ask.lease_id.as_uuid()).collect();
    let holders: Vec<&str> = asks.iter().map(|ask| ask.holder.as_str()).collect();
    let shared: Vec<bool> = asks.iter().map(|ask| ask.mode == Mode::Shared).collect();
    let slots: Vec<i32> = asks.iter().map(|ask| slots_column(ask)).collect();
    let ttls: Vec<i64> = asks.iter().map(|ask| ttl_column(ask.ttl)).collect();
    let extras = asks.iter().map(|ask| extra(ask)).collect::<Result<Vec<_>, _>>()?;
    let (names, now) = (names(ops), gate.now());
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 8] =
        [&names, &ids, &holders, &shared, &slots, &ttls, &extras, &now];
    Ok(session.query(Sql::AcquireMany, &params).await?)
}

async fn renew(session: &Session, gate: &Gate, ops: &[(&LockName, &LockOp)]) -> Result<Vec<Row>, Fail> {
    let renewals = ops.iter().filter_map(|(_, op)| match op {
        LockOp::Renew(renew) => Some(renew),
        _ => None,
    });
    let renewals: Vec<&Renew> = renewals.collect();
    let ids: Vec<&Uuid> = renewals.iter().map(|renew| renew.lease_id.as_uuid()).collect();
    let tokens: Vec<i64> = renewals.iter().map(|renew| column(renew.token.get())).collect();
    let ttls: Vec<Option<i64>> = renewals.iter().map(|renew| renew.ttl.map(ttl_column)).collect();
    let (names, now) = (names(ops), gate.now());
    Ok(session.query(Sql::RenewMany, &[&names, &ids, &tokens, &ttls, &now]).await?)
}

async fn release(session: &Session, gate: &Gate, ops: &[(&LockName, &LockOp)]) -> Result<Vec<Row>, Fail> {
    let releases = ops.iter().filter_map(|(_, op)| match op {
        LockOp::Release(release) => Some(release),
        _ => None,
    });
    let releases: Vec<&Release> = releases.collect();
    let ids: Vec<&Uuid> = releases.iter().map(|release| release.lease_id.as_uuid()).collect();
    let tokens: Vec<i64> = releases.iter().map(|release| column(release.token.get())).collect();
    let (names, now) = (names(ops), gate.now());
    Ok(session.query(Sql::ReleaseMany, &[&names, &ids, &tokens, &now]).await?)
}

fn names<'a>(ops: &[(&'a LockName, &LockOp)]) -> Vec<&'a str> {
    ops.iter().map(|(name, _)| name.as_str()).collect()
}

/// What a row says of the operation that it answers.
fn outcome(op: &LockOp, row: &Row) -> Result<Outcome, Fail> {
    match op {
        LockOp::Acquire(Acquire { ask, .. }) => {
            let now = time(row, 2)?;
            Ok(Outcome::Granted(Lease {
                ask: ask.clone(),
                token: token(row, 1)?,
                acquired_at: now,
                renewed_at: now,
                expires_at: now.plus(ask.ttl),
                renewals: 0,
                status: Status::Active,
                asked: None,
            }))
        }
        LockOp::Renew(_) => lease(row).map(Outcome::Renewed),
        _ => lease(row).map(Outcome::Released),
    }
}
