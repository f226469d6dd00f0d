//! A plain queue: one holder of the whole lock, and behind it those who want the same, in the order in which they came. Joining
//! it and handing over to its first are one statement each, as [`super::native`] is for a lock that nobody waits for. Whatever
//! does not fit changes nothing and is left to the rules.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;

use super::gate::Gate;
use super::general::{self, Word};
use super::native::lease_of;
use super::rows::{Waiter, column, extra, is_common, lease_at, time, token, ttl_column};
use super::session::{Param, Session};
use super::sql::Sql;
use super::switchboard::Shape;
use super::trouble::Fail;
use crate::model::{
    Acquire, Conflict, HeldBy, Lease, LeaseId, LockName, LockOp, Outcome, Queued, Release, Status, Ticket,
    Token, Ttl,
};
use crate::store::wake::some_who_wait_here;

/// So many who wait here are kept from hearing twice; of more than that, some may, and look once for nothing.
const MOST_HERE: usize = 256;

/// What came of one operation.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// The lease that the first ticket has turned into.
    pub(super) handed_over: Option<Lease>,
    /// The lock's newest after it.
    pub(super) token: Token,
    /// What the lock is like since.
    pub(super) shape: Shape,
}

/// Whether SQL could do all of these, in any order: those for the same lease have one.
pub(super) fn fits<'a>(ops: impl Iterator<Item = &'a LockOp>) -> bool {
    let mut leases = HashSet::new();
    ops.into_iter().all(|op| {
        let fits = match op {
            LockOp::Acquire(Acquire { ask, queue: Some(_), steal_after: None }) => is_common(ask),
            LockOp::Release(Release { at_least: None, .. }) => true,
            _ => false,
        };
        fits && lease_of(op).is_some_and(|lease| leases.insert(lease))
    })
}

/// What came of several, and the words to waiters of other processes that are on their way.
pub(super) struct AllDone {
    /// None, and nothing has changed, for those that the rules have to decide.
    pub(super) each: Vec<Result<Option<Done>, Fail>>,
    pub(super) words: Vec<Word>,
}

/// Does what it can of operations on one lock that [`fits`], each by itself, sent together; with `tells`, also a word to
/// whoever is served by them.
pub(super) async fn apply(
    session: &Arc<Session>,
    gate: &Gate,
    name: &LockName,
    ops: &[&LockOp],
    tells: bool,
) -> Result<AllDone, Fail> {
    session.ready(&[Sql::Join, Sql::HandOver, Sql::NotifyNext]).await?;
    let mut words: Vec<_> =
        ops.iter().filter(|_| tells).filter_map(|op| word(session, gate, name, op)).collect();
    let each = join_all(ops.iter().map(|op| one(session, gate, name, op)));
    let (each, ()) = tokio::join!(biased; each, general::send(words.iter_mut()));
    Ok(AllDone { each, words })
}

/// The word to whoever has the lock after a release.
fn word(session: &Arc<Session>, gate: &Gate, name: &LockName, op: &LockOp) -> Option<Word> {
    let LockOp::Release(Release { lease_id, .. }) = op else { return None };
    let (session, channel, name, lease_id) = (session.clone(), gate.channel(), name.clone(), *lease_id);
    let here: Vec<_> = some_who_wait_here(MOST_HERE).iter().map(|waiter| *waiter.as_uuid()).collect();
    Some(Box::pin(async move {
        let params: [Param<'_>; 4] = [&channel, &name.as_str(), lease_id.as_uuid(), &here];
        session.query(Sql::NotifyNext, &params).await?;
        Ok(())
    }))
}

async fn one(session: &Session, gate: &Gate, name: &LockName, op: &LockOp) -> Result<Option<Done>, Fail> {
    match op {
        LockOp::Acquire(Acquire { ask, queue: Some(patience), .. }) => {
            let (key, now, patience) = (name.as_str(), gate.now(), ttl_column(*patience));
            let (id, holder, ttl, extra) =
                (ask.lease_id.as_uuid(), ask.holder.as_str(), ttl_column(ask.ttl), extra(ask)?);
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 7] =
                [&key, id, &holder, &ttl, &extra, &patience, &now];
            let rows = session.query(Sql::Join, &params).await?;
            rows.first().map(joined).transpose()
        }
        LockOp::Release(Release { lease_id, token, .. }) => {
            let (key, now, own) = (name.as_str(), gate.now(), column(token.get()));
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
                [&key, lease_id.as_uuid(), &own, &now];
            let rows = session.query(Sql::HandOver, &params).await?;
            rows.first().map(|row| handed_over(row, *lease_id, *token)).transpose()
        }
        _ => Ok(None),
    }
}

/// How many columns a lease has without its id and token; what a statement adds comes after them.
const LEASE_COLUMNS: usize = 9;

fn joined(row: &tokio_postgres::Row) -> Result<Done, Fail> {
    let holder = LeaseId::from_uuid(row.try_get(LEASE_COLUMNS)?);
    let token = token(row, LEASE_COLUMNS + 1)?;
    let lease = lease_at(row, 0, holder, token)?;
    let waiters = row.try_get::<_, i32>(LEASE_COLUMNS + 2)?.unsigned_abs();
    let conflict = Conflict { holders: vec![HeldBy::from(&lease)], waiters, full: false };
    let outcome = Outcome::Queued(Queued { ahead: waiters.saturating_sub(1), conflict });
    Ok(Done { outcome, handed_over: None, token, shape: Shape::Queue })
}

fn handed_over(row: &tokio_postgres::Row, lease_id: LeaseId, own: Token) -> Result<Done, Fail> {
    let released = lease_at(row, 0, lease_id, own)?;
    let Ticket { ask, patience, .. } = Waiter::read(row.try_get(LEASE_COLUMNS)?)?.ticket()?;
    let now = time(row, LEASE_COLUMNS + 2)?;
    let lasts: Ttl = patience.min(ask.ttl);
    let token = token(row, LEASE_COLUMNS + 1)?;
    let lease = Lease {
        ask,
        token,
        acquired_at: now,
        renewed_at: now,
        expires_at: now.plus(lasts),
        renewals: 0,
        status: Status::Active,
        asked: None,
    };
    let shape = if row.try_get(LEASE_COLUMNS + 3)? { Shape::Plain } else { Shape::Queue };
    Ok(Done { outcome: Outcome::Released(released), handed_over: Some(lease), token, shape })
}
