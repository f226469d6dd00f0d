//! Fast path: acquire, renew and release of a lock that has at most one holder and no waiters, in
//! one statement, decided and timestamped by the server. An operation that does not fit changes
//! nothing and is left to the slow path.

use std::collections::HashSet;

use tokio_postgres::Row;
use uuid::Uuid;

use super::codec::{FREE, HELD, extra, lease, lease_at, new_lease, token};
use crate::model::{
    Acquire, LeaseId, LockName, LockOp, LockRequest, Mode, Outcome, Release, Renew, Withdraw,
};
use crate::store::postgres::columns::{Param, column, int4, int8, params, time, ttl_micros};
use crate::store::postgres::connection::{Connector, Session};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{BIG, BIGS, BOOL, BOOLS, INT, INTS, SMALLS, Sql, TEXT, TEXTS, UUID, UUIDS};

/// Whether SQL can decide this operation.
pub(crate) fn is_eligible(op: &LockOp) -> bool {
    statement(op).is_some()
}

/// Returns the statement that decides this operation, if SQL can decide it.
pub(crate) fn statement(op: &LockOp) -> Option<&'static Sql> {
    match op {
        LockOp::Acquire(_) => Some(&ACQUIRE),
        LockOp::Renew(_) => Some(&RENEW),
        LockOp::Release(Release { at_least: None, .. }) => Some(&RELEASE),
        _ => None,
    }
}

/// Returns the lease of the operation if SQL can decide the operation.
pub(crate) fn eligible_lease(op: &LockOp) -> Option<LeaseId> {
    lease_of(op).filter(|_| is_eligible(op))
}

pub(crate) fn lease_of(op: &LockOp) -> Option<LeaseId> {
    match op {
        LockOp::Acquire(Acquire { request, .. }) => Some(request.lease_id),
        LockOp::Renew(Renew { lease_id, .. })
        | LockOp::RenewLogged(Renew { lease_id, .. })
        | LockOp::Release(Release { lease_id, .. })
        | LockOp::Withdraw(Withdraw { lease_id }) => Some(*lease_id),
        LockOp::RequestRelease(_) | LockOp::ForceRelease(_) | LockOp::Sweep(_) | LockOp::Restarted(_) => None,
    }
}

/// Executes one operation. Returns `None`, with nothing changed, if the operation needs the slow
/// path.
pub(crate) async fn execute(
    session: &Session,
    connector: &Connector,
    name: &LockName,
    op: &LockOp,
) -> Result<Option<Outcome>, PgError> {
    let (name, now) = (name.as_str(), connector.now());
    let rows = match op {
        LockOp::Acquire(Acquire { request, .. }) => {
            let (id, shared) = (request.lease_id.as_uuid(), request.mode == Mode::Shared);
            let (slots, ttl, extra) = (int4(request.slots.get()), ttl_micros(request.ttl), extra(request)?);
            let holder = request.holder.as_str();
            let params: [Param<'_>; 8] = [&name, id, &holder, &shared, &slots, &ttl, &extra, &now];
            session.query(&ACQUIRE, &params).await?
        }
        LockOp::Renew(Renew { lease_id, token, ttl }) => {
            let (token, ttl) = (int8(token.get()), ttl.map(ttl_micros));
            let mut rows = session.query(&RENEW, &[&name, lease_id.as_uuid(), &token, &ttl, &now]).await?;
            // A row of version 0 was created by this statement: the lock was purged meanwhile.
            if let Some(row) = rows.first()
                && row.try_get::<_, i64>(2)? == 0
            {
                rows.clear();
            }
            rows
        }
        LockOp::Release(Release { lease_id, token, at_least: None }) => {
            let params: [Param<'_>; 4] = [&name, lease_id.as_uuid(), &int8(token.get()), &now];
            let rows = session.query(&RELEASE, &params).await?;
            let released = rows.first().map(|row| lease_at(row, 0, *lease_id, *token)).transpose()?;
            return Ok(released.map(Outcome::Released));
        }
        _ => return Ok(None),
    };
    rows.first().map(|row| read_outcome(op, row, 2)).transpose()
}

/// Executes operations on distinct locks, ordered by name, in one statement and one commit. The
/// result is `None` for operations that need the slow path.
pub(crate) async fn execute_many(
    session: &Session,
    connector: &Connector,
    ops: &[(&LockName, &LockOp)],
) -> Result<Vec<Option<Outcome>>, PgError> {
    debug_assert!(
        ops.is_sorted_by(|one, two| one.0 < two.0),
        "operations are in the order of their names, so that two statements never deadlock"
    );
    match ops {
        [] => return Ok(Vec::new()),
        [(name, op)] => return Ok(vec![execute(session, connector, name, op).await?]),
        _ => {}
    }
    let rows = ops.iter().map(|(name, op)| RequestedRow::new(name, op)).collect::<Result<Vec<_>, _>>()?;
    let values = [
        column(&rows, |row| row.name),
        column(&rows, |row| row.layout),
        column(&rows, |row| row.lease_id),
        column(&rows, |row| row.token),
        column(&rows, |row| row.ttl),
        column(&rows, |row| row.request.map(|request| request.holder.as_str())),
        column(&rows, |row| row.request.map(|request| request.mode == Mode::Shared)),
        column(&rows, |row| row.request.map(|request| int4(request.slots.get()))),
        column(&rows, |row| row.extra.as_deref()),
        Box::new(connector.now()),
    ];
    let rows = session.query(&EXECUTE_MANY, &params(&values)).await?;
    let mut outcomes: Vec<Option<Outcome>> = ops.iter().map(|_| None).collect();
    for row in &rows {
        let name: &str = row.try_get(0)?;
        // `ops` is sorted by name.
        if let Ok(at) = ops.binary_search_by(|(other, _)| other.as_str().cmp(name)) {
            outcomes[at] = Some(read_outcome(ops[at].1, row, ACQUIRED_AT)?);
        }
    }
    Ok(outcomes)
}

/// Returns those of these locks whose rows another session has locked at present.
pub(crate) async fn locked_rows(session: &Session, names: &[&str]) -> Result<HashSet<LockName>, PgError> {
    let rows = session.query(&LOCKED_ROWS, &[&names]).await?;
    let names = rows.iter().map(|row| row.try_get::<_, &str>(0).map(|name| LockName::new(name).ok()));
    Ok(names.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Index of the column with the time of the grant in [`EXECUTE_MANY`].
const ACQUIRED_AT: usize = 10;

/// Row of the parameters of [`EXECUTE_MANY`].
struct RequestedRow<'a> {
    name: &'a str,
    /// Layout after an acquire or a release; `None` for a renewal.
    layout: Option<i16>,
    lease_id: &'a Uuid,
    token: Option<i64>,
    ttl: Option<i64>,
    request: Option<&'a LockRequest>,
    extra: Option<String>,
}

impl<'a> RequestedRow<'a> {
    fn new(name: &'a LockName, op: &'a LockOp) -> Result<Self, PgError> {
        let (layout, lease_id, token, ttl, request) = match op {
            LockOp::Acquire(Acquire { request, .. }) => {
                (Some(HELD), &request.lease_id, None, Some(request.ttl), Some(&**request))
            }
            LockOp::Renew(Renew { lease_id, token, ttl }) => (None, lease_id, Some(token), *ttl, None),
            LockOp::Release(Release { lease_id, token, .. }) => {
                (Some(FREE), lease_id, Some(token), None, None)
            }
            _ => return Err(PgError::InvalidRow("an operation that the fast path cannot decide".into())),
        };
        Ok(Self {
            name: name.as_str(),
            layout,
            lease_id: lease_id.as_uuid(),
            token: token.map(|token| int8(token.get())),
            ttl: ttl.map(ttl_micros),
            request,
            extra: request.map(extra).transpose()?.flatten(),
        })
    }
}

fn read_outcome(op: &LockOp, row: &Row, acquired_at: usize) -> Result<Outcome, PgError> {
    match op {
        LockOp::Acquire(Acquire { request, .. }) => {
            let now = time(row, acquired_at)?;
            Ok(Outcome::Granted(new_lease(request.clone(), token(row, 1)?, now, request.ttl)))
        }
        LockOp::Renew(_) => lease(row).map(Outcome::Renewed),
        _ => lease(row).map(Outcome::Released),
    }
}

// --- statements -----------------------------------------------------------------------------------

/// Lower bound for the tokens of a lock without a row. Read from the statement's snapshot: see
/// `PURGE_IDLE` of `maintenance.rs`.
pub(super) const MIN_TOKEN: &str = "(SELECT m.value::bigint FROM $s.meta m WHERE m.key = 'min_token')";

// A grant is an INSERT … ON CONFLICT DO UPDATE, because its SET and WHERE are evaluated once the
// row is locked. A plain UPDATE that had to wait for the row would use the time from before the
// wait.

/// Acquires a lock without a holder: a new one, or one whose row is marked as free. Leases that
/// have expired are left to the slow path.
pub(crate) static ACQUIRE: Sql = Sql::built(&[TEXT, UUID, TEXT, BOOL, INT, BIG, TEXT], || {
    format!(
        "WITH done AS (
            INSERT INTO $s.locks AS l (name, token, version, layout, lease_id, holder, shared, slots, ttl, extra,
                                       acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at)
            SELECT $1, {first}, 1, {HELD}, $2, $3, $4, $5, $6::bigint, $7,
                   n.now, n.now, n.now + $6::bigint, 0, n.now, n.now + $6::bigint FROM (SELECT $NOW AS now) n WHERE $IN_TIME
            ON CONFLICT (name) DO UPDATE SET (token, version, layout, lease_id, holder, shared, slots, ttl, extra,
                                              acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at) = (
                SELECT {next}, l.version + 1, {HELD}, excluded.lease_id, excluded.holder, excluded.shared, excluded.slots,
                       excluded.ttl, excluded.extra, n.now, n.now, n.now + excluded.ttl, 0, n.now, {wake_at}
                FROM (SELECT $NOW AS now) n)
            WHERE l.layout = {FREE} AND l.version > 0 AND $IN_TIME
            RETURNING l.name, l.token, l.acquired_at),
        recorded AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT name, acquired_at, 'acquired', token, $2, $3, $4, $5, 0, 0 FROM done)
        SELECT name, token, acquired_at FROM done",
        first = next_token(MIN_TOKEN),
        next = next_token("l.token"),
        wake_at = next_wake_at("excluded.ttl"),
    )
});

/// `Token::next`: increments by one or jumps to the clock, and stays below 2^53.
pub(super) fn next_token(before: &str) -> String {
    let most = crate::model::Token::MAX;
    format!("least(greatest({before} + 1, CASE WHEN n.now <= {most} THEN n.now ELSE 0 END), {most})")
}

/// Updated only if it would be too late or has passed: the column is indexed, and updating a row is
/// cheap if its indexed columns stay the same.
fn next_wake_at(ttl: &str) -> String {
    format!(
        "CASE WHEN n.now < l.wake_at AND l.wake_at <= n.now + {ttl} THEN l.wake_at ELSE n.now + {ttl} END"
    )
}

/// Matches only the exact lease, while it is active.
fn is_active_lease() -> String {
    format!(
        "l.layout = {HELD} AND l.lease_id = excluded.lease_id AND l.token = excluded.token AND $NOW < l.expires_at"
    )
}

/// Condition that the row exists, so that nothing is inserted, unless the lock is purged
/// concurrently. In that case a row of version 0 is inserted, which does not count as an answer:
/// the slow path treats it as a free lock, with tokens above the minimum token.
pub(super) const ROW_EXISTS: &str = "EXISTS (SELECT FROM $s.locks k WHERE k.name = u.name)";

pub(crate) static RENEW: Sql = Sql::built(&[TEXT, UUID, BIG, BIG], || {
    format!(
        "INSERT INTO $s.locks AS l (name, token, version, lease_id, ttl)
         SELECT u.name, $3, 0, $2, $4 FROM (SELECT $1 AS name) u WHERE {ROW_EXISTS}
         ON CONFLICT (name) DO UPDATE SET (version, ttl, renewed_at, expires_at, renewals, changed_at, wake_at) = (
            SELECT l.version + 1, n.ttl, n.now, n.now + n.ttl, l.renewals + 1, n.now, {wake_at}
            FROM (SELECT $NOW AS now, coalesce(excluded.ttl, l.ttl) AS ttl) n)
         WHERE {is_active_lease} RETURNING $LOCK",
        is_active_lease = is_active_lease(),
        wake_at = next_wake_at("n.ttl"),
    )
});

/// Releases a lock. The row keeps the data of the lease, so that the statement can return it.
///
/// A plain UPDATE, which is cheaper: if it had to wait for a row that then turned out unchanged, it
/// uses the time from before the wait, and a lease that is released does not count as expired. The
/// commit does not wait for the disk: if a crash of the server loses the release, the lease expires
/// by its TTL. The next grant of the lock waits for the disk, and thereby for this commit too.
pub(crate) static RELEASE: Sql = Sql::built(&[TEXT, UUID, BIG], || {
    format!(
        "WITH done AS (
            UPDATE $s.locks l SET version = l.version + 1, layout = {FREE}, changed_at = $NOW
            WHERE l.name = $1 AND l.layout = {HELD} AND l.lease_id = $2 AND l.token = $3 AND $NOW < l.expires_at
            RETURNING $LEASE, l.changed_at),
        recorded AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT $1, changed_at, 'released', $3, $2, holder, shared, slots, greatest(changed_at - acquired_at, 0), renewals
            FROM done)
        SELECT $LEASE, set_config('synchronous_commit', 'off', true) FROM done l"
    )
});

/// Acquires, renews and releases many locks: `layout` is the new value, or null to renew. In the
/// order of the names, so that two such statements never wait for each other.
pub(crate) static EXECUTE_MANY: Sql = Sql::built(
    &[TEXTS, SMALLS, UUIDS, BIGS, BIGS, TEXTS, BOOLS, INTS, TEXTS],
    || {
        format!(
        "WITH requested AS MATERIALIZED (
            SELECT * FROM unnest($1::text[], $2::smallint[], $3::uuid[], $4::bigint[], $5::bigint[], $6::text[],
                                 $7::boolean[], $8::integer[], $9::text[])
                AS u (name, layout, lease_id, token, ttl, holder, shared, slots, extra)),
        done AS (
            INSERT INTO $s.locks AS l (name, token, version, layout, lease_id, holder, shared, slots, ttl, extra,
                                       acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at)
            SELECT u.name, coalesce(u.token, {first}), CASE WHEN u.layout = {HELD} THEN 1 ELSE 0 END, u.layout, u.lease_id,
                   u.holder, u.shared, u.slots, u.ttl, u.extra, n.now, n.now, n.now + u.ttl, 0, n.now, n.now + u.ttl
            FROM requested u, (SELECT $NOW AS now) n WHERE CASE WHEN u.layout = {HELD} THEN $IN_TIME ELSE {ROW_EXISTS} END
            ON CONFLICT (name) DO UPDATE SET (token, version, layout, holder, lease_id, shared, slots, ttl, extra,
                                              acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at) = (
                SELECT CASE WHEN excluded.layout = {HELD} THEN {next} ELSE l.token END, l.version + 1,
                       coalesce(excluded.layout, {HELD}), coalesce(excluded.holder, l.holder), excluded.lease_id,
                       coalesce(excluded.shared, l.shared), coalesce(excluded.slots, l.slots), n.ttl,
                       CASE WHEN excluded.layout = {HELD} THEN excluded.extra ELSE l.extra END,
                       CASE WHEN excluded.layout = {HELD} THEN n.now ELSE l.acquired_at END,
                       CASE WHEN excluded.layout = {FREE} THEN l.renewed_at ELSE n.now END,
                       CASE WHEN excluded.layout = {FREE} THEN l.expires_at ELSE n.now + n.ttl END,
                       CASE excluded.layout WHEN {HELD} THEN 0 WHEN {FREE} THEN l.renewals ELSE l.renewals + 1 END,
                       n.now, CASE WHEN excluded.layout = {FREE} THEN l.wake_at ELSE {wake_at} END
                FROM (SELECT $NOW AS now, coalesce(excluded.ttl, l.ttl) AS ttl) n)
            WHERE CASE WHEN excluded.layout = {HELD} THEN l.layout = {FREE} AND l.version > 0 AND $IN_TIME
                       ELSE {is_active_lease} END
            RETURNING $LOCK, l.changed_at),
        recorded AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT d.name, d.changed_at, CASE WHEN u.layout = {HELD} THEN 'acquired' ELSE 'released' END, d.token, d.lease_id,
                   d.holder, d.shared, d.slots, greatest(d.changed_at - d.acquired_at, 0), d.renewals
            FROM done d JOIN requested u ON u.name = d.name WHERE u.layout IS NOT NULL AND d.version > 0)
        SELECT $LOCK FROM done l WHERE l.version > 0",
        first = next_token(MIN_TOKEN),
        next = next_token("l.token"),
        wake_at = next_wake_at("n.ttl"),
        is_active_lease = is_active_lease(),
    )
    },
);

/// Selects those of these locks whose rows another session has locked at present.
pub(crate) static LOCKED_ROWS: Sql = Sql::new(
    &[TEXTS],
    "SELECT name FROM $s.locks WHERE name = ANY ($1) AND name NOT IN (
    SELECT f.name FROM (SELECT name FROM $s.locks WHERE name = ANY ($1) FOR UPDATE SKIP LOCKED) f)",
);
