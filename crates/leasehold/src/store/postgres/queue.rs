//! Fast path for a simple queue: one holder of the whole lock, and behind it waiters that want the
//! same, in order of arrival. Joining the queue and handing over to its first waiter are one
//! statement each, or one statement for both, like [`super::native`] for a lock without waiters. An
//! operation that does not fit changes nothing and is left to the slow path.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use uuid::Uuid;

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

/// Maximum number of local waiters that are excluded from a NOTIFY, because they are woken
/// directly. Beyond that a local waiter may be notified twice and query once for nothing.
const MOST_HERE: usize = 256;

/// Result of one operation.
pub(super) struct Done {
    pub(super) outcome: Outcome,
    /// Lease that was granted to the first ticket.
    pub(super) handed_over: Option<Lease>,
    /// Newest token of the lock after the operation.
    pub(super) token: Token,
    /// Layout of the lock after the operation.
    pub(super) shape: Shape,
}

/// Whether SQL could execute all of these in any order: no two are for the same lease, because
/// those must stay in order.
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

/// Operations of one statement: a release, a join, or both.
pub(super) struct Step<'a> {
    pub(super) goes: Option<&'a Release>,
    pub(super) comes: Option<&'a Acquire>,
}

impl<'a> Step<'a> {
    pub(super) fn new(ops: impl Iterator<Item = &'a LockOp>) -> Self {
        let mut step = Self { goes: None, comes: None };
        for op in ops {
            match op {
                LockOp::Release(release) => step.goes = Some(release),
                LockOp::Acquire(acquire) => step.comes = Some(acquire),
                _ => {}
            }
        }
        step
    }
}

/// Results of several steps, and the notifications for waiters of other processes that are being
/// sent.
pub(super) struct AllDone {
    /// Results of the operations of each step, the release first. Empty, with nothing changed, if
    /// the step needs the slow path.
    pub(super) steps: Vec<Result<Vec<Done>, Fail>>,
    pub(super) words: Vec<Word>,
}

/// Executes those operations on one lock that [`fits`] accepts, one statement per step, all sent
/// together. With `tells`, also sends a NOTIFY for the waiters that are granted the lock.
pub(super) async fn apply(
    session: &Arc<Session>,
    gate: &Gate,
    name: &LockName,
    steps: &[Step<'_>],
    tells: bool,
) -> Result<AllDone, Fail> {
    session.ready(&[Sql::Join, Sql::HandOver, Sql::NotifyNext]).await?;
    let gone = steps.iter().filter_map(|step| step.goes).filter(|_| tells);
    let mut words: Vec<_> = gone.map(|release| word(session, gate, name, release.lease_id)).collect();
    let each = join_all(steps.iter().map(|step| one(session, gate, name, step)));
    let (steps, ()) = tokio::join!(biased; each, general::send(words.iter_mut()));
    Ok(AllDone { steps, words })
}

/// Builds the NOTIFY for the new holder after a hand-over.
fn word(session: &Arc<Session>, gate: &Gate, name: &LockName, lease_id: LeaseId) -> Word {
    let (session, channel, name) = (session.clone(), gate.channel(), name.clone());
    let here: Vec<_> =
        gate.waiters.some_here(&name, MOST_HERE).iter().map(|waiter| *waiter.as_uuid()).collect();
    Box::pin(async move {
        let params: [Param<'_>; 4] = [&channel, &name.as_str(), lease_id.as_uuid(), &here];
        session.query(Sql::NotifyNext, &params).await?;
        Ok(())
    })
}

async fn one(session: &Session, gate: &Gate, name: &LockName, step: &Step<'_>) -> Result<Vec<Done>, Fail> {
    let (key, now) = (name.as_str(), gate.now());
    let comes = step.comes.map(Comes::new).transpose()?.unwrap_or_default();
    let Comes { id, holder, ttl, extra, patience } = &comes;
    match step.goes {
        Some(release) => {
            let own = column(release.token.get());
            let params: [Param<'_>; 9] =
                [&key, release.lease_id.as_uuid(), &own, id, holder, ttl, extra, patience, &now];
            let rows = session.query(Sql::HandOver, &params).await?;
            rows.first().map_or(Ok(Vec::new()), |row| handed_over(row, release, step.comes.is_some()))
        }
        None => {
            let params: [Param<'_>; 7] = [&key, id, holder, ttl, extra, patience, &now];
            let rows = session.query(Sql::Join, &params).await?;
            rows.first().map_or(Ok(Vec::new()), |row| Ok(vec![joined(row)?]))
        }
    }
}

/// Parameters of a join.
#[derive(Default)]
struct Comes<'a> {
    id: Option<Uuid>,
    holder: Option<&'a str>,
    ttl: Option<i64>,
    extra: Option<String>,
    patience: Option<i64>,
}

impl<'a> Comes<'a> {
    fn new(acquire: &'a Acquire) -> Result<Self, Fail> {
        let ask = &acquire.ask;
        Ok(Self {
            id: Some(*ask.lease_id.as_uuid()),
            holder: Some(ask.holder.as_str()),
            ttl: Some(ttl_column(ask.ttl)),
            extra: extra(ask)?,
            patience: acquire.queue.map(ttl_column),
        })
    }
}

/// Number of columns of a lease without its id and token; additional columns of a statement follow
/// them.
const LEASE_COLUMNS: usize = 9;

fn joined(row: &tokio_postgres::Row) -> Result<Done, Fail> {
    let holder = LeaseId::from_uuid(row.try_get(LEASE_COLUMNS)?);
    let token = token(row, LEASE_COLUMNS + 1)?;
    let lease = lease_at(row, 0, holder, token)?;
    Ok(queued(&lease, row.try_get::<_, i32>(LEASE_COLUMNS + 2)?.unsigned_abs()))
}

/// Builds the result of a join behind this holder, as the last waiter.
fn queued(lease: &Lease, waiters: u32) -> Done {
    let conflict = Conflict { holders: vec![HeldBy::from(lease)], waiters, full: false, now: None };
    let outcome = Outcome::Queued(Queued { ahead: waiters.saturating_sub(1), conflict });
    Done { outcome, handed_over: None, token: lease.token, shape: Shape::Queue }
}

fn handed_over(row: &tokio_postgres::Row, release: &Release, joins: bool) -> Result<Vec<Done>, Fail> {
    let released = lease_at(row, 0, release.lease_id, release.token)?;
    let Ticket { ask, patience, .. } = Waiter::read(row.try_get(LEASE_COLUMNS)?)?.ticket()?;
    let (token, now) = (token(row, LEASE_COLUMNS + 1)?, time(row, LEASE_COLUMNS + 2)?);
    let waiters = row.try_get::<_, i32>(LEASE_COLUMNS + 3)?.unsigned_abs();
    let lasts: Ttl = patience.min(ask.ttl);
    let lease = Lease {
        ask,
        token,
        acquired_at: now,
        renewed_at: now,
        expires_at: now.plus(lasts),
        renewals: 0,
        status: Status::Active,
        asked: None,
        took_over: None,
    };
    let behind = joins.then(|| queued(&lease, waiters));
    let shape = if waiters == 0 { Shape::Plain } else { Shape::Queue };
    let gone = Done { outcome: Outcome::Released(released), handed_over: Some(lease), token, shape };
    Ok([gone].into_iter().chain(behind).collect())
}
