//! Fast path for a simple queue: one holder of the whole lock, and behind it waiters that want the
//! same, in order of arrival. Joining the queue and handing over to its first waiter are one
//! statement each, or one statement for both, like the [fast path](super::fast_path) of a lock without
//! waiters. An operation that does not fit changes nothing and is left to the slow path.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::join_all;
use tokio_postgres::Row;
use uuid::Uuid;

use super::codec::{HELD, QUEUE, Waiter, extra, is_default_request, lease_at, new_lease, token};
use super::fast_path::{ROW_EXISTS, lease_of, next_token};
use super::notify::{NOTIFY_NEXT, PendingNotify, notify_new_holder, start_sending};
use super::router::LockLayout;
use crate::model::{
    Acquire, Conflict, HeldBy, Lease, LeaseId, LockName, LockOp, MAX_WAITERS, Outcome, Queued, Release,
    Ticket, Token,
};
use crate::store::postgres::columns::{Param, int8, parse_json, time, ttl_micros};
use crate::store::postgres::connection::{Connector, Session};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, Sql, TEXT, UUID};

pub(crate) struct OpResult {
    pub(crate) outcome: Outcome,
    /// Lease that was granted to the first ticket.
    pub(crate) handed_over: Option<Lease>,
    /// Newest token of the lock after the operation.
    pub(crate) token: Token,
    pub(crate) layout: LockLayout,
}

/// Whether SQL could execute all of these in any order: no two are for the same lease, because
/// those must stay in order.
pub(crate) fn are_eligible<'a>(ops: impl Iterator<Item = &'a LockOp>) -> bool {
    let mut leases = HashSet::new();
    ops.into_iter().all(|op| {
        let is_eligible = match op {
            LockOp::Acquire(Acquire { request, queue: Some(_), steal_after: None }) => {
                is_default_request(request)
            }
            LockOp::Release(Release { at_least: None, .. }) => true,
            _ => false,
        };
        is_eligible && lease_of(op).is_some_and(|lease| leases.insert(lease))
    })
}

/// Operations of one statement: a release, a join, or both.
pub(crate) struct Step<'a> {
    pub(crate) release: Option<&'a Release>,
    pub(crate) join: Option<&'a Acquire>,
}

impl<'a> Step<'a> {
    pub(crate) fn new(ops: impl Iterator<Item = &'a LockOp>) -> Self {
        let mut step = Self { release: None, join: None };
        for op in ops {
            match op {
                LockOp::Release(release) => step.release = Some(release),
                LockOp::Acquire(acquire) => step.join = Some(acquire),
                _ => {}
            }
        }
        step
    }
}

/// Results of the operations of a step, the release first. Empty, with nothing changed, if the step needs
/// the slow path.
type StepResult = Result<Vec<OpResult>, PgError>;

/// Executes those operations on one lock that [`are_eligible`] accepts, one statement per step, all sent
/// together. With `notify`, also sends a NOTIFY for the waiters that are granted the lock, and returns the
/// notifications that are being sent.
pub(crate) async fn apply(
    session: &Arc<Session>,
    connector: &Connector,
    name: &LockName,
    steps: &[Step<'_>],
    notify: bool,
) -> Result<(Vec<StepResult>, Vec<PendingNotify>), PgError> {
    session.prepare(&[&JOIN, &HAND_OVER, &NOTIFY_NEXT]).await?;
    let releases = steps.iter().filter_map(|step| step.release).filter(|_| notify);
    let mut notifications: Vec<_> =
        releases.map(|release| notify_new_holder(session, connector, name, release.lease_id)).collect();
    let executed = join_all(steps.iter().map(|step| execute(session, connector, name, step)));
    let (steps, ()) = tokio::join!(biased; executed, start_sending(notifications.iter_mut()));
    Ok((steps, notifications))
}

async fn execute(session: &Session, connector: &Connector, name: &LockName, step: &Step<'_>) -> StepResult {
    let (key, now) = (name.as_str(), connector.now());
    let join = step.join.map(JoinParams::new).transpose()?.unwrap_or_default();
    let JoinParams { id, holder, ttl, extra, ticket_ttl } = &join;
    match step.release {
        Some(release) => {
            let own = int8(release.token.get());
            let params: [Param<'_>; 9] =
                [&key, release.lease_id.as_uuid(), &own, id, holder, ttl, extra, ticket_ttl, &now];
            let rows = session.query(&HAND_OVER, &params).await?;
            rows.first().map_or(Ok(Vec::new()), |row| read_hand_over(row, release, step.join.is_some()))
        }
        None => {
            let params: [Param<'_>; 7] = [&key, id, holder, ttl, extra, ticket_ttl, &now];
            let rows = session.query(&JOIN, &params).await?;
            rows.first().map_or(Ok(Vec::new()), |row| Ok(vec![read_join(row)?]))
        }
    }
}

#[derive(Default)]
struct JoinParams<'a> {
    id: Option<Uuid>,
    holder: Option<&'a str>,
    ttl: Option<i64>,
    extra: Option<String>,
    ticket_ttl: Option<i64>,
}

impl<'a> JoinParams<'a> {
    fn new(acquire: &'a Acquire) -> Result<Self, PgError> {
        let request = &acquire.request;
        Ok(Self {
            id: Some(*request.lease_id.as_uuid()),
            holder: Some(request.holder.as_str()),
            ttl: Some(ttl_micros(request.ttl)),
            extra: extra(request)?,
            ticket_ttl: acquire.queue.map(ttl_micros),
        })
    }
}

/// Number of columns of a lease without its id and token; additional columns of a statement follow
/// them.
const LEASE_COLUMNS: usize = 9;

fn read_join(row: &Row) -> Result<OpResult, PgError> {
    let holder = LeaseId::from_uuid(row.try_get(LEASE_COLUMNS)?);
    let token = token(row, LEASE_COLUMNS + 1)?;
    let lease = lease_at(row, 0, holder, token)?;
    Ok(queued(&lease, row.try_get::<_, i32>(LEASE_COLUMNS + 2)?.unsigned_abs()))
}

/// Builds the result of a join behind this holder, as the last waiter.
fn queued(lease: &Lease, waiters: u32) -> OpResult {
    let conflict = Conflict { holders: vec![HeldBy::from(lease)], waiters, full: false, now: None };
    let outcome = Outcome::Queued(Queued { ahead: waiters.saturating_sub(1), conflict });
    OpResult { outcome, handed_over: None, token: lease.token, layout: LockLayout::Queue }
}

fn read_hand_over(row: &Row, release: &Release, joins: bool) -> Result<Vec<OpResult>, PgError> {
    let released = lease_at(row, 0, release.lease_id, release.token)?;
    let Ticket { request, ticket_ttl, .. } = parse_json::<Waiter>(row.try_get(LEASE_COLUMNS)?)?.ticket()?;
    let (token, now) = (token(row, LEASE_COLUMNS + 1)?, time(row, LEASE_COLUMNS + 2)?);
    let waiters = row.try_get::<_, i32>(LEASE_COLUMNS + 3)?.unsigned_abs();
    let ttl = ticket_ttl.min(request.ttl);
    let lease = new_lease(request, token, now, ttl);
    let joined = joins.then(|| queued(&lease, waiters));
    let layout = if waiters == 0 { LockLayout::Simple } else { LockLayout::Queue };
    let released = OpResult { outcome: Outcome::Released(released), handed_over: Some(lease), token, layout };
    Ok([released].into_iter().chain(joined).collect())
}

// --- statements -----------------------------------------------------------------------------------
//
// As long as nothing can have expired (`wake_at` is never later than the first expiry), only
// appending a ticket and granting the first one are needed.

/// Joins the queue of a held lock, with or without other waiters. A ticket that a crash of the
/// server loses is created again, so the commit need not wait for the disk.
pub(crate) static JOIN: Sql = Sql::built(&[TEXT, UUID, TEXT, BIG, TEXT, BIG], || {
    format!(
        "WITH done AS (
            INSERT INTO $s.locks AS l (name, token, version, lease_id)
            SELECT u.name, 0, 0, $2 FROM (SELECT $1 AS name) u WHERE {ROW_EXISTS}
            ON CONFLICT (name) DO UPDATE SET (version, layout, queue, changed_at, wake_at) = (
                SELECT l.version + 1, {QUEUE}, coalesce(l.queue, '[]') || {ticket}, n.now,
                       least(l.wake_at, n.now + $6::bigint)
                FROM (SELECT $NOW AS now) n)
            WHERE l.layout IN ({HELD}, {QUEUE}) AND NOT l.shared AND l.slots = 1 AND $NOW < l.wake_at
              AND l.lease_id <> excluded.lease_id AND $IN_TIME
              AND (l.queue IS NULL OR jsonb_array_length(l.queue) < {MAX_WAITERS} AND {joins_last})
            RETURNING $LEASE, l.lease_id, l.token, l.changed_at, l.version, jsonb_array_length(l.queue) AS waiters),
        recorded AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT $1, changed_at, 'queued', token, $2, $3, false, 1, 0, 0 FROM done WHERE version > 0)
        SELECT $LEASE, l.lease_id, l.token, l.waiters, set_config('synchronous_commit', 'off', true)
        FROM done l WHERE l.version > 0",
        ticket = ticket(["$2", "$3", "$4", "$5", "$6"]),
        joins_last = joins_last("$2"),
    )
});

/// Builds the ticket of a waiter that joins now.
fn ticket([id, holder, ttl, extra, ticket_ttl]: [&str; 5]) -> String {
    format!(
        "jsonb_build_object('id', {id}::uuid, 'holder', {holder}::text, 'ttl', {ttl}::bigint, 'extra', {extra}::text,
                            'since', n.now, 'expires_at', n.now + {ticket_ttl}::bigint, 'ticket_ttl', {ticket_ttl}::bigint)"
    )
}

/// Condition that a joining waiter is not in the queue yet, and comes behind all others.
fn joins_last(id: &str) -> String {
    format!(
        "NOT l.queue @> jsonb_build_array(jsonb_build_object('id', {id}::uuid))
         AND (l.queue -> -1 ->> 'since')::bigint <= $NOW"
    )
}

/// Ends the exact lease and grants the lock to the first waiter; then `$4`, if present, joins at
/// the end, because a holder that hands over often requests the lock again while the next one
/// releases it. The old values are read before the update, which applies only if they are
/// unchanged: events and answer contain them.
pub(crate) static HAND_OVER: Sql = Sql::built(&[TEXT, UUID, BIG, UUID, TEXT, BIG, TEXT, BIG], || {
    format!(
        "WITH old AS MATERIALIZED (
            SELECT $LEASE, l.queue -> 0 AS first FROM $s.locks l
            WHERE l.name = $1 AND l.lease_id = $2 AND l.token = $3 AND l.layout = {QUEUE}),
        done AS (
            INSERT INTO $s.locks AS l (name, token, version, lease_id) SELECT $1, $3, 0, $2 FROM old
            ON CONFLICT (name) DO UPDATE SET (token, version, layout, lease_id, holder, ttl, extra, acquired_at, renewed_at,
                                              expires_at, renewals, changed_at, wake_at, queue) = (
                SELECT {next}, l.version + CASE WHEN {JOINS} THEN 2 ELSE 1 END,
                       CASE WHEN f.is_last THEN {HELD} ELSE {QUEUE} END, (f.first ->> 'id')::uuid,
                       f.first ->> 'holder', f.ttl, f.first ->> 'extra', n.now, n.now, n.now + least(f.ticket_ttl, f.ttl), 0,
                       n.now, least(l.wake_at, n.now + least(f.ticket_ttl, f.ttl, $8)),
                       CASE WHEN f.is_last THEN NULL WHEN {JOINS} THEN l.queue - 0 || {ticket} ELSE l.queue - 0 END
                FROM (SELECT $NOW AS now) n,
                     (SELECT l.queue -> 0 AS first, (l.queue -> 0 ->> 'ttl')::bigint AS ttl,
                             (l.queue -> 0 ->> 'ticket_ttl')::bigint AS ticket_ttl,
                             jsonb_array_length(l.queue) = 1 AND NOT {JOINS} AS is_last) f)
            WHERE l.layout = {QUEUE} AND l.lease_id = excluded.lease_id AND l.token = excluded.token AND $NOW < l.wake_at
              AND (l.expires_at, l.renewals, l.queue -> 0) = (SELECT o.expires_at, o.renewals, o.first FROM old o)
              AND (NOT {JOINS} OR {joins_last} AND $IN_TIME)
            RETURNING l.token, l.lease_id, l.holder, l.changed_at, l.version,
                      coalesce(jsonb_array_length(l.queue), 0) AS waiters),
        recorded AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT $1, d.changed_at, e.kind, e.token, e.lease_id, e.holder, false, 1,
                   greatest(d.changed_at - e.since, 0), e.renewals
            FROM done d, old o, LATERAL (VALUES
                ('released', $3, $2, o.holder, o.acquired_at, o.renewals),
                ('acquired', d.token, d.lease_id, d.holder, (o.first ->> 'since')::bigint, 0),
                ('queued', d.token, $4, $5, d.changed_at, 0)
            ) e (kind, token, lease_id, holder, since, renewals)
            WHERE e.lease_id IS NOT NULL AND d.version > 0)
        SELECT $LEASE, l.first::text, d.token, d.changed_at, d.waiters FROM old l, done d WHERE d.version > 0",
        next = next_token("l.token"),
        ticket = ticket(["$4", "$5", "$6", "$7", "$8"]),
        joins_last = joins_last("$4"),
    )
});

/// Condition that a waiter joins with a hand-over.
const JOINS: &str = "($4::uuid IS NOT NULL)";
