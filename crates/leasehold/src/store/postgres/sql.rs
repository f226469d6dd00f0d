//! All statements on locks, as constants except for the schema's name. Names and texts are
//! parameters.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::deadline::IN_TIME;
use super::{tickets, upkeep};
use crate::model::MAX_WAITERS;

/// Server's time in µs, read when this is evaluated; in tests, the time that is sent as `$now`.
const NOW: &str = "coalesce($now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Columns of a lock's row, in the order in which `rows.rs` reads them.
const LOCK: &str =
    "l.name, l.token, l.version, l.held, l.lease_id, $LEASE, l.wake_at, l.record, l.queue::text";

/// Columns of a lease without its id and token, in the order in which `rows.rs` reads them.
const LEASE: &str =
    "l.holder, l.shared, l.slots, l.ttl, l.extra, l.acquired_at, l.renewed_at, l.expires_at, l.renewals";

/// Columns of an event's row, in the order in which `rows.rs` reads them.
const EVENT: &str = "e.seq, e.lock, e.at, e.kind, e.token, e.lease_id, e.holder, e.shared, e.slots, e.after_micros, \
                     e.renewals, e.rest";

/// Statements that a session can execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sql {
    Acquire,
    Renew,
    Release,
    Many,
    Stuck,
    Join,
    HandOver,
    Lock,
    Save,
    Get,
    Peek,
    List,
    EventsAfter,
    EventsBefore,
    EventsOfAfter,
    EventsOfBefore,
    Now,
    Due,
    Trim,
    Prune,
    Notify,
    NotifyNext,
    Tickets,
    DropTickets,
    PutTickets,
    Refresh,
    Floor,
    RaiseFloor,
    Forget,
}

/// Text of one statement.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) sql: String,
    pub(super) types: Vec<Type>,
    /// Whether the last parameter is the deadline until which the statement may begin.
    pub(super) has_deadline: bool,
}

/// All statements, for one schema.
#[derive(Debug, Clone)]
pub(super) struct Texts(Arc<Vec<Text>>);

impl Texts {
    pub(super) const COUNT: usize = Sql::Forget as usize + 1;

    /// Builds the statements; `pooled` if they are sent through a pooler.
    pub(super) fn new(schema: &str, pooled: bool) -> Self {
        let texts = ALL.iter().enumerate().map(|(at, (what, make))| {
            debug_assert_eq!(*what as usize, at, "in the order of the names");
            let (sql, types) = make();
            let now = types.len() + 1;
            let (sql, mut types) = (sql.replace("$NOW", NOW), types);
            let sql = sql.replace("$LOCK", LOCK).replace("$LEASE", LEASE).replace("$EVENT", EVENT);
            let sql = sql.replace("$s.", &format!("{schema}."));
            let has_deadline = pooled && sql.contains("$IN_TIME");
            let sql = sql.replace("$IN_TIME", if pooled { IN_TIME } else { "true" });
            if sql.contains("$now") {
                types.push(Type::INT8);
            }
            let until = types.len() + 1;
            if has_deadline {
                types.push(Type::INT8);
            }
            let sql = sql.replace("$now", &format!("${now}")).replace("$until", &format!("${until}"));
            Text { sql, types, has_deadline }
        });
        Self(Arc::new(texts.collect()))
    }

    pub(super) fn get(&self, what: Sql) -> &Text {
        &self.0[what as usize]
    }
}

type Make = fn() -> (String, Vec<Type>);

const ALL: [(Sql, Make); Texts::COUNT] = [
    (Sql::Acquire, acquire),
    (Sql::Renew, renew),
    (Sql::Release, release),
    (Sql::Many, many),
    (Sql::Stuck, stuck),
    (Sql::Join, join),
    (Sql::HandOver, hand_over),
    (Sql::Lock, lock),
    (Sql::Save, save),
    (Sql::Get, get),
    (Sql::Peek, peek),
    (Sql::List, list),
    (Sql::EventsAfter, events_after),
    (Sql::EventsBefore, events_before),
    (Sql::EventsOfAfter, events_of_after),
    (Sql::EventsOfBefore, events_of_before),
    (Sql::Now, now),
    (Sql::Due, due),
    (Sql::Trim, trim),
    (Sql::Prune, prune),
    (Sql::Notify, notify),
    (Sql::NotifyNext, notify_next),
    (Sql::Tickets, tickets::all),
    (Sql::DropTickets, tickets::remove),
    (Sql::PutTickets, tickets::put),
    (Sql::Refresh, tickets::refresh),
    (Sql::Floor, upkeep::floor),
    (Sql::RaiseFloor, upkeep::raise_floor),
    (Sql::Forget, upkeep::forget),
];

// --- fast path ------------------------------------------------------------------------------------
//
// A grant is an INSERT … ON CONFLICT DO UPDATE, because its SET and WHERE are evaluated once the
// row is locked. A plain UPDATE that had to wait for the row would use the time from before the
// wait.

/// Acquires a lock without a holder: a new one, or one whose row is marked as free. Leases that
/// have expired are left to the slow path.
fn acquire() -> (String, Vec<Type>) {
    let sql = format!(
        "WITH done AS (
            INSERT INTO $s.locks AS l (name, token, version, held, lease_id, holder, shared, slots, ttl, extra,
                                       acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at)
            SELECT $1, {first}, 1, true, $2, $3, $4, $5, $6::bigint, $7,
                   n.now, n.now, n.now + $6::bigint, 0, n.now, n.now + $6::bigint FROM (SELECT $NOW AS now) n WHERE $IN_TIME
            ON CONFLICT (name) DO UPDATE SET (token, version, held, lease_id, holder, shared, slots, ttl, extra,
                                              acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at) = (
                SELECT {next}, l.version + 1, true, excluded.lease_id, excluded.holder, excluded.shared, excluded.slots,
                       excluded.ttl, excluded.extra, n.now, n.now, n.now + excluded.ttl, 0, n.now, {wake_at}
                FROM (SELECT $NOW AS now) n)
            WHERE l.held = false AND l.version > 0 AND $IN_TIME
            RETURNING l.name, l.token, l.acquired_at),
        told AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT name, acquired_at, 'acquired', token, $2, $3, $4, $5, 0, 0 FROM done)
        SELECT name, token, acquired_at FROM done",
        first = token(FLOOR),
        next = token("l.token"),
        wake_at = wake_at("excluded.ttl"),
    );
    let types = vec![Type::TEXT, Type::UUID, Type::TEXT, Type::BOOL, Type::INT4, Type::INT8, Type::TEXT];
    (sql, types)
}

/// `Token::next`: increments by one or jumps to the clock, and stays below 2^53.
fn token(before: &str) -> String {
    let most = crate::model::Token::MAX;
    format!("least(greatest({before} + 1, CASE WHEN n.now <= {most} THEN n.now ELSE 0 END), {most})")
}

/// Updated only if it would be too late or has passed: the column is indexed, and updating a row is
/// cheap if its indexed columns stay the same.
fn wake_at(ttl: &str) -> String {
    format!(
        "CASE WHEN n.now < l.wake_at AND l.wake_at <= n.now + {ttl} THEN l.wake_at ELSE n.now + {ttl} END"
    )
}

/// Lower bound for the tokens of a lock without a row. Read from the statement's snapshot: see
/// [`upkeep::forget`].
pub(super) const FLOOR: &str = "(SELECT m.value::bigint FROM $s.meta m WHERE m.key = 'token_floor')";

/// Matches only the exact lease, while it is active.
const MINE: &str =
    "l.held AND l.lease_id = excluded.lease_id AND l.token = excluded.token AND $NOW < l.expires_at";
/// Condition that the row exists, so that nothing is inserted, unless the lock is purged
/// concurrently. In that case a row of version 0 is inserted, which does not count as an answer:
/// the slow path treats it as a free lock, with tokens above the floor.
const THERE: &str = "EXISTS (SELECT FROM $s.locks k WHERE k.name = u.name)";

fn renew() -> (String, Vec<Type>) {
    let sql = format!(
        "INSERT INTO $s.locks AS l (name, token, version, lease_id, ttl)
         SELECT u.name, $3, 0, $2, $4 FROM (SELECT $1 AS name) u WHERE {THERE}
         ON CONFLICT (name) DO UPDATE SET (version, ttl, renewed_at, expires_at, renewals, changed_at, wake_at) = (
            SELECT l.version + 1, n.ttl, n.now, n.now + n.ttl, l.renewals + 1, n.now, {wake_at}
            FROM (SELECT $NOW AS now, coalesce(excluded.ttl, l.ttl) AS ttl) n)
         WHERE {MINE} RETURNING $LOCK",
        wake_at = wake_at("n.ttl"),
    );
    (sql, vec![Type::TEXT, Type::UUID, Type::INT8, Type::INT8])
}

/// Releases a lock. The row keeps the data of the lease, so that the statement can return it.
///
/// A plain UPDATE, which is cheaper: if it had to wait for a row that then turned out unchanged, it
/// uses the time from before the wait, and a lease that is released does not count as expired. The
/// commit does not wait for the disk: if a crash of the server loses the release, the lease expires
/// by its TTL. The next grant of the lock waits for the disk, and thereby for this commit too.
fn release() -> (String, Vec<Type>) {
    let sql = "WITH done AS (
            UPDATE $s.locks l SET version = l.version + 1, held = false, changed_at = $NOW
            WHERE l.name = $1 AND l.held AND l.lease_id = $2 AND l.token = $3 AND $NOW < l.expires_at
            RETURNING $LEASE, l.changed_at),
        told AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT $1, changed_at, 'released', $3, $2, holder, shared, slots, greatest(changed_at - acquired_at, 0), renewals
            FROM done)
        SELECT $LEASE, set_config('synchronous_commit', 'off', true) FROM done l";
    (sql.to_owned(), vec![Type::TEXT, Type::UUID, Type::INT8])
}

/// Acquires, renews and releases many locks: `held` is the new value, or null to renew. In the
/// order of the names, so that two such statements never wait for each other.
fn many() -> (String, Vec<Type>) {
    let sql = format!(
        "WITH asked AS MATERIALIZED (
            SELECT * FROM unnest($1::text[], $2::boolean[], $3::uuid[], $4::bigint[], $5::bigint[], $6::text[],
                                 $7::boolean[], $8::integer[], $9::text[])
                AS u (name, held, lease_id, token, ttl, holder, shared, slots, extra)),
        done AS (
            INSERT INTO $s.locks AS l (name, token, version, held, lease_id, holder, shared, slots, ttl, extra,
                                       acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at)
            SELECT u.name, coalesce(u.token, {first}), CASE WHEN u.held THEN 1 ELSE 0 END, u.held, u.lease_id, u.holder, u.shared, u.slots, u.ttl, u.extra,
                   n.now, n.now, n.now + u.ttl, 0, n.now, n.now + u.ttl
            FROM asked u, (SELECT $NOW AS now) n WHERE CASE WHEN u.held THEN $IN_TIME ELSE {THERE} END
            ON CONFLICT (name) DO UPDATE SET (token, version, held, holder, lease_id, shared, slots, ttl, extra,
                                              acquired_at, renewed_at, expires_at, renewals, changed_at, wake_at) = (
                SELECT CASE WHEN excluded.held THEN {next} ELSE l.token END, l.version + 1,
                       excluded.held IS NOT false, coalesce(excluded.holder, l.holder), excluded.lease_id,
                       coalesce(excluded.shared, l.shared), coalesce(excluded.slots, l.slots), n.ttl,
                       CASE WHEN excluded.held THEN excluded.extra ELSE l.extra END,
                       CASE WHEN excluded.held THEN n.now ELSE l.acquired_at END,
                       CASE WHEN excluded.held IS NOT false THEN n.now ELSE l.renewed_at END,
                       CASE WHEN excluded.held IS NOT false THEN n.now + n.ttl ELSE l.expires_at END,
                       CASE WHEN excluded.held THEN 0 WHEN excluded.held IS NULL THEN l.renewals + 1 ELSE l.renewals END,
                       n.now, CASE WHEN excluded.held IS NOT false THEN {wake_at} ELSE l.wake_at END
                FROM (SELECT $NOW AS now, coalesce(excluded.ttl, l.ttl) AS ttl) n)
            WHERE CASE WHEN excluded.held THEN l.held = false AND l.version > 0 AND $IN_TIME ELSE {MINE} END
            RETURNING $LOCK, l.changed_at),
        told AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT d.name, d.changed_at, CASE WHEN u.held THEN 'acquired' ELSE 'released' END, d.token, d.lease_id,
                   d.holder, d.shared, d.slots, greatest(d.changed_at - d.acquired_at, 0), d.renewals
            FROM done d JOIN asked u ON u.name = d.name WHERE u.held IS NOT NULL AND d.version > 0)
        SELECT $LOCK FROM done l WHERE l.version > 0",
        first = token(FLOOR),
        next = token("l.token"),
        wake_at = wake_at("n.ttl"),
    );
    let types = vec![
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::UUID_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT4_ARRAY,
        Type::TEXT_ARRAY,
    ];
    (sql, types)
}

/// Selects those of these locks whose rows another session has locked at present.
fn stuck() -> (String, Vec<Type>) {
    let sql = "SELECT name FROM $s.locks WHERE name = ANY ($1) AND name NOT IN (
            SELECT f.name FROM (SELECT name FROM $s.locks WHERE name = ANY ($1) FOR UPDATE SKIP LOCKED) f)";
    (sql.to_owned(), vec![Type::TEXT_ARRAY])
}

// --- simple queue ---------------------------------------------------------------------------------
//
// One holder, and behind it tickets for the same lock as a whole, in order of arrival. As long as
// nothing can have expired (`wake_at` is never later than the first expiry), only appending a
// ticket and granting the first one are needed.

/// Value of `record` if the state is in the columns and the queue.
pub(super) const ELSEWHERE: &str = "{}";

/// Joins the queue of a held lock, with or without other waiters. A ticket that a crash of the
/// server loses is created again, so the commit need not wait for the disk.
fn join() -> (String, Vec<Type>) {
    let sql = format!(
        "WITH done AS (
            INSERT INTO $s.locks AS l (name, token, version, lease_id)
            SELECT u.name, 0, 0, $2 FROM (SELECT $1 AS name) u WHERE {THERE}
            ON CONFLICT (name) DO UPDATE SET (version, held, record, queue, changed_at, wake_at) = (
                SELECT l.version + 1, NULL::boolean, '{ELSEWHERE}', coalesce(l.queue, '[]') || {ticket}, n.now,
                       least(l.wake_at, n.now + $6::bigint)
                FROM (SELECT $NOW AS now) n)
            WHERE (l.held OR l.queue IS NOT NULL) AND NOT l.shared AND l.slots = 1 AND $NOW < l.wake_at
              AND l.lease_id <> excluded.lease_id AND $IN_TIME
              AND (l.queue IS NULL OR jsonb_array_length(l.queue) < {MAX_WAITERS} AND {comes_last})
            RETURNING $LEASE, l.lease_id, l.token, l.changed_at, l.version, jsonb_array_length(l.queue) AS waiters),
        told AS (
            INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals)
            SELECT $1, changed_at, 'queued', token, $2, $3, false, 1, 0, 0 FROM done WHERE version > 0)
        SELECT $LEASE, l.lease_id, l.token, l.waiters, set_config('synchronous_commit', 'off', true)
        FROM done l WHERE l.version > 0",
        ticket = ticket(["$2", "$3", "$4", "$5", "$6"]),
        comes_last = comes_last("$2"),
    );
    (sql, vec![Type::TEXT, Type::UUID, Type::TEXT, Type::INT8, Type::TEXT, Type::INT8])
}

/// Builds the ticket of a waiter that joins now.
fn ticket([id, holder, ttl, extra, patience]: [&str; 5]) -> String {
    format!(
        "jsonb_build_object('id', {id}::uuid, 'holder', {holder}::text, 'ttl', {ttl}::bigint, 'extra', {extra}::text,
                            'since', n.now, 'ends', n.now + {patience}::bigint, 'patience', {patience}::bigint)"
    )
}

/// Condition that a joining waiter is not in the queue yet, and comes behind all others.
fn comes_last(id: &str) -> String {
    format!(
        "NOT l.queue @> jsonb_build_array(jsonb_build_object('id', {id}::uuid))
         AND (l.queue -> -1 ->> 'since')::bigint <= $NOW"
    )
}

/// Ends the exact lease and grants the lock to the first waiter; then `$4`, if present, joins at
/// the end, because a holder that hands over often requests the lock again while the next one
/// releases it. The old values are read before the update, which applies only if they are
/// unchanged: events and answer contain them.
fn hand_over() -> (String, Vec<Type>) {
    let sql = format!(
        "WITH old AS MATERIALIZED (
            SELECT $LEASE, l.queue -> 0 AS first FROM $s.locks l
            WHERE l.name = $1 AND l.lease_id = $2 AND l.token = $3 AND l.queue IS NOT NULL),
        done AS (
            INSERT INTO $s.locks AS l (name, token, version, lease_id) SELECT $1, $3, 0, $2 FROM old
            ON CONFLICT (name) DO UPDATE SET (token, version, held, lease_id, holder, ttl, extra, acquired_at, renewed_at,
                                              expires_at, renewals, changed_at, wake_at, record, queue) = (
                SELECT {next}, l.version + CASE WHEN {JOINS} THEN 2 ELSE 1 END, f.last, (f.first ->> 'id')::uuid,
                       f.first ->> 'holder', f.ttl, f.first ->> 'extra', n.now, n.now, n.now + least(f.patience, f.ttl), 0,
                       n.now, least(l.wake_at, n.now + least(f.patience, f.ttl, $8)),
                       CASE WHEN f.last THEN NULL ELSE '{ELSEWHERE}' END,
                       CASE WHEN f.last THEN NULL WHEN {JOINS} THEN l.queue - 0 || {ticket} ELSE l.queue - 0 END
                FROM (SELECT $NOW AS now) n,
                     (SELECT l.queue -> 0 AS first, (l.queue -> 0 ->> 'ttl')::bigint AS ttl,
                             (l.queue -> 0 ->> 'patience')::bigint AS patience,
                             CASE WHEN jsonb_array_length(l.queue) = 1 AND NOT {JOINS} THEN true END AS last) f)
            WHERE l.queue IS NOT NULL AND l.lease_id = excluded.lease_id AND l.token = excluded.token AND $NOW < l.wake_at
              AND (l.expires_at, l.renewals, l.queue -> 0) = (SELECT o.expires_at, o.renewals, o.first FROM old o)
              AND (NOT {JOINS} OR {comes_last} AND $IN_TIME)
            RETURNING l.token, l.lease_id, l.holder, l.changed_at, l.version,
                      coalesce(jsonb_array_length(l.queue), 0) AS waiters),
        told AS (
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
        next = token("l.token"),
        ticket = ticket(["$4", "$5", "$6", "$7", "$8"]),
        comes_last = comes_last("$4"),
    );
    let types =
        vec![Type::TEXT, Type::UUID, Type::INT8, Type::UUID, Type::TEXT, Type::INT8, Type::TEXT, Type::INT8];
    (sql, types)
}

/// Condition that a waiter joins with a hand-over.
const JOINS: &str = "($4::uuid IS NOT NULL)";

// --- slow path ------------------------------------------------------------------------------------

/// Locks a row, and reads the clock after that: the inner SELECT has the row lock before the outer
/// one is evaluated.
fn lock() -> (String, Vec<Type>) {
    let sql = "SELECT $LOCK, $NOW FROM (SELECT * FROM $s.locks WHERE name = $1 FOR UPDATE) l";
    (sql.to_owned(), vec![Type::TEXT])
}

/// Updates a row and adds its events.
fn save() -> (String, Vec<Type>) {
    let sql = "WITH saved AS (
            UPDATE $s.locks SET token = $2, version = $3, held = $4, lease_id = $5, holder = $6, shared = $7, slots = $8,
                ttl = $9, extra = $10, acquired_at = $11, renewed_at = $12, expires_at = $13, renewals = $14,
                wake_at = $15, record = $16, changed_at = $17, queue = $28::text::jsonb
            WHERE name = $1)
        INSERT INTO $s.events (lock, at, kind, token, lease_id, holder, shared, slots, after_micros, renewals, rest)
        SELECT $1, e.* FROM unnest($18::bigint[], $19::text[], $20::bigint[], $21::uuid[], $22::text[], $23::boolean[],
                                   $24::integer[], $25::bigint[], $26::bigint[], $27::text[]) e";
    let (text, number, yes) = (Type::TEXT, Type::INT8, Type::BOOL);
    let lock = [
        text.clone(),
        number.clone(),
        number.clone(),
        yes.clone(),
        Type::UUID,
        text.clone(),
        yes,
        Type::INT4,
        number.clone(),
        text.clone(),
        number.clone(),
        number.clone(),
        number.clone(),
        number.clone(),
        number.clone(),
        text,
        number,
    ];
    let events = [
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::UUID_ARRAY,
        Type::TEXT_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
    ];
    (sql.to_owned(), lock.into_iter().chain(events).chain([Type::TEXT]).collect())
}

// --- reads ----------------------------------------------------------------------------------------

fn get() -> (String, Vec<Type>) {
    let sql = format!("SELECT $LOCK, {} FROM $s.locks l WHERE l.name = $1", tickets::OF_LOCK);
    (sql, vec![Type::TEXT])
}

/// Selects what a waiter needs: the lease in the columns, the record only without a simple queue,
/// and no ticket of a long queue.
fn peek() -> (String, Vec<Type>) {
    let sql = "SELECT l.lease_id, l.token, l.held, $LEASE, l.wake_at, CASE WHEN l.queue IS NULL THEN l.record END, $NOW
        FROM $s.locks l WHERE l.name = $1";
    (sql.to_owned(), vec![Type::TEXT])
}

/// Lists locks by name: after `$1`, from the prefix `$2` on and before `$3`; with `$4` only those
/// that may have a holder.
fn list() -> (String, Vec<Type>) {
    let sql = format!(
        "SELECT $LOCK, (SELECT $NOW), {} FROM $s.locks l
        WHERE l.name > $1 AND l.name >= $2 AND ($3::text IS NULL OR l.name < $3)
          AND (NOT $4 OR l.held IS DISTINCT FROM false)
        ORDER BY l.name LIMIT $5",
        tickets::OF_LOCK
    );
    (sql, vec![Type::TEXT, Type::TEXT, Type::TEXT, Type::BOOL, Type::INT8])
}

fn events_after() -> (String, Vec<Type>) {
    let sql = "SELECT $EVENT, (SELECT $NOW), (SELECT value::bigint FROM $s.meta WHERE key = 'pruned_to')
        FROM $s.events e WHERE e.seq > $1 ORDER BY e.seq LIMIT $2";
    (sql.to_owned(), vec![Type::INT8, Type::INT8])
}

fn events_before() -> (String, Vec<Type>) {
    let sql = "SELECT $EVENT FROM $s.events e WHERE e.seq < $1 ORDER BY e.seq DESC LIMIT $2";
    (sql.to_owned(), vec![Type::INT8, Type::INT8])
}

fn events_of_after() -> (String, Vec<Type>) {
    let sql = "SELECT $EVENT FROM $s.events e WHERE e.lock = $3 AND e.seq > $1 ORDER BY e.seq LIMIT $2";
    (sql.to_owned(), vec![Type::INT8, Type::INT8, Type::TEXT])
}

fn events_of_before() -> (String, Vec<Type>) {
    let sql = "SELECT $EVENT FROM $s.events e WHERE e.lock = $3 AND e.seq < $1 ORDER BY e.seq DESC LIMIT $2";
    (sql.to_owned(), vec![Type::INT8, Type::INT8, Type::TEXT])
}

fn now() -> (String, Vec<Type>) {
    ("SELECT $NOW".to_owned(), Vec::new())
}

// --- maintenance ----------------------------------------------------------------------------------

/// Selects locks with expired state, and due ones whose record must be read to find out.
fn due() -> (String, Vec<Type>) {
    let sql = "SELECT l.name FROM $s.locks l
        WHERE l.wake_at <= (SELECT $NOW) AND (l.held IS NULL OR l.held AND l.expires_at <= (SELECT $NOW))
        ORDER BY l.wake_at LIMIT $1";
    (sql.to_owned(), vec![Type::INT8])
}

/// Corrects `wake_at` in rows where it was too early.
fn trim() -> (String, Vec<Type>) {
    let sql = "UPDATE $s.locks SET wake_at = CASE WHEN held THEN expires_at END WHERE name IN (
            SELECT l.name FROM $s.locks l
            WHERE l.wake_at <= (SELECT $NOW) AND (NOT l.held OR l.held AND l.expires_at > (SELECT $NOW))
            ORDER BY l.wake_at LIMIT $1 FOR UPDATE SKIP LOCKED)";
    (sql.to_owned(), vec![Type::INT8])
}

/// Deletes the oldest events: those beyond the newest `$1`, and those older than `$2` µs. The
/// newest event stays. The work per call is bounded, and negligible if there is nothing to delete.
fn prune() -> (String, Vec<Type>) {
    let sql = "WITH ends AS (
            SELECT (SELECT min(seq) FROM $s.events) AS first, (SELECT max(seq) FROM $s.events) AS last,
                   set_config('lock_timeout', '2000', true)),
        old AS (
            SELECT max(seq) AS seq FROM (SELECT seq, at FROM $s.events ORDER BY seq LIMIT 10000) o
            WHERE at < (SELECT $NOW) - $2
              AND (SELECT at FROM $s.events WHERE seq = (SELECT first FROM ends)) < (SELECT $NOW) - $2),
        bound AS (
            SELECT first, least(first + 9999, last - 1, greatest(last - $1, coalesce(old.seq, 0))) AS until
            FROM ends, old),
        gone AS (DELETE FROM $s.events e USING bound b WHERE e.seq <= b.until)
        UPDATE $s.meta m SET value = b.until::text FROM bound b
        WHERE m.key = 'pruned_to' AND b.until >= b.first AND b.until > m.value::bigint";
    (sql.to_owned(), vec![Type::INT8, Type::INT8])
}

/// Notifies waiters, outside of any other transaction: a commit that notifies waits for every other
/// one that does. The commit need not wait for the disk: if a crash of the server loses the
/// notification, no listener is connected to receive it.
fn notify() -> (String, Vec<Type>) {
    let sql = "SELECT set_config('synchronous_commit', 'off', true), count(pg_notify($1, word)) FROM unnest($2::text[]) word";
    (sql.to_owned(), vec![Type::TEXT, Type::TEXT_ARRAY])
}

/// Notifies the holder of the lock after `$3`, without knowing it in advance; not those in `$4`,
/// which are woken directly.
fn notify_next() -> (String, Vec<Type>) {
    let sql =
        "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, l.lease_id || ' ' || l.name)
        FROM $s.locks l WHERE l.name = $2 AND l.lease_id <> $3 AND l.lease_id <> ALL ($4)";
    (sql.to_owned(), vec![Type::TEXT, Type::TEXT, Type::UUID, Type::UUID_ARRAY])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_and_nothing_is_left_to_fill_in() {
        for (what, pooled) in ALL.into_iter().flat_map(|(what, _)| [(what, false), (what, true)]) {
            let texts = Texts::new("some_schema", pooled);
            let text = texts.get(what);
            for left in ["$NOW", "$now", "$LOCK", "$LEASE", "$EVENT", "$IN_TIME", "$until", "$s."] {
                assert!(!text.sql.contains(left), "{left} in {}", text.sql);
            }
            for number in 1..=text.types.len() {
                assert!(text.sql.contains(&format!("${number}")), "${number} in {}", text.sql);
            }
            assert!(!text.sql.contains(&format!("${}", text.types.len() + 1)), "{}", text.sql);
        }
    }
}
