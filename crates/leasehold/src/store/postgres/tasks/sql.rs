//! Every statement about tasks and documents. Names and texts are parameters. The numbers are states: see `schema.rs`.

use tokio_postgres::types::Type;

use super::sql_rules as rules;

/// What can be asked of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::postgres) enum Sql {
    Add,
    AddNew,
    Lease,
    Promote,
    Done,
    Beat,
    Leave,
    Known,
    HoldKeys,
    DropKeys,
    HoldHeads,
    CountBlocked,
    Load,
    FirstBlocked,
    Save,
    DueLocked,
    Expired,
    Pause,
    Queues,
    QueueNames,
    Workers,
    ForgetWorkers,
    Keyed,
    Archive,
    Purge,
    Fold,
    Now,
    Notify,
    Level,
    DocGet,
    DocPut,
    DocList,
    DocForget,
}

pub(super) const COUNT: usize = Sql::DocForget as usize + 1;

const UUID: Type = Type::UUID;
const UUIDS: Type = Type::UUID_ARRAY;
const TEXT: Type = Type::TEXT;
const TEXTS: Type = Type::TEXT_ARRAY;
const BIG: Type = Type::INT8;
const BIGS: Type = Type::INT8_ARRAY;
const INTS: Type = Type::INT4_ARRAY;

const NEW_TYPES: &[Type] = &[UUIDS, TEXTS, TEXTS, BIGS, BIGS, INTS, BIGS, INTS, BIGS, BIGS, TEXTS, INTS];

pub(super) const ALL: &[(Sql, &str, &[Type])] = &[
    (Sql::Add, ADD, NEW_TYPES),
    (Sql::AddNew, ADD_NEW, NEW_TYPES),
    (Sql::Lease, LEASE, &[TEXTS, BIGS, BIG, UUID, BIG, TEXTS, INTS, BIGS, BIGS, Type::BOOL, BIGS, UUIDS]),
    (Sql::Promote, PROMOTE, &[TEXTS, BIGS, Type::BOOL]),
    (Sql::Done, DONE, &[UUIDS, BIGS, TEXTS]),
    (Sql::Beat, BEAT, &[UUID, TEXT, UUIDS, BIGS, TEXTS, BIG]),
    (Sql::Leave, "DELETE FROM $s.workers WHERE id = $1", &[UUID]),
    (Sql::Known, rules::KNOWN, &[UUIDS]),
    (Sql::HoldKeys, rules::HOLD_KEYS, &[TEXTS, TEXTS, UUIDS]),
    (Sql::DropKeys, rules::DROP_KEYS, &[TEXTS, TEXTS, UUIDS]),
    (Sql::HoldHeads, rules::HOLD_HEADS, &[TEXTS]),
    (Sql::CountBlocked, rules::COUNT_BLOCKED, &[TEXTS]),
    (Sql::Load, rules::LOAD, &[UUIDS]),
    (Sql::FirstBlocked, rules::FIRST_BLOCKED, &[TEXTS]),
    (Sql::Save, rules::SAVE, rules::SAVE_TYPES),
    (Sql::DueLocked, rules::DUE_LOCKED, &[TEXTS, Type::BOOL]),
    (Sql::Expired, rules::EXPIRED, &[BIG]),
    (Sql::Pause, "UPDATE $s.task_queues SET pause = $2 WHERE name = $1 RETURNING true", &[TEXT, TEXT]),
    (Sql::Queues, QUEUES, &[]),
    (Sql::QueueNames, "SELECT name FROM $s.task_queues ORDER BY name", &[]),
    (Sql::Workers, "SELECT info, started_at, seen_at FROM $s.workers ORDER BY id", &[]),
    (Sql::ForgetWorkers, "DELETE FROM $s.workers WHERE seen_at <= $NOW - $1", &[BIG]),
    (Sql::Keyed, KEYED, &[TEXT, TEXT]),
    (Sql::Archive, ARCHIVE, &[TEXT, Type::INT2, BIG, BIG]),
    (Sql::Purge, PURGE, &[TEXT, Type::INT2, BIG, BIG]),
    (Sql::Fold, FOLD, &[]),
    (Sql::Now, "SELECT $NOW", &[]),
    (Sql::Notify, "SELECT pg_notify($1, $2)", &[TEXT, TEXT]),
    (Sql::Level, LEVEL, &[TEXTS, INTS]),
    (Sql::DocGet, DOC_GET, &[TEXT]),
    (Sql::DocPut, DOC_PUT, &[TEXT, BIG, TEXT, BIG]),
    (Sql::DocList, DOC_LIST, &[TEXT, TEXT, TEXT, Type::BOOL, BIG]),
    (Sql::DocForget, DOC_FORGET, &[]),
];

// --- tasks: what is hot ----------------------------------------------------------------------------------------------
//
// Rows that were found and locked are changed by their place (`ctid`), which spares a walk down the index for each. One that
// somebody else changed between the look and the lock is then at another place, and left out: a lease finds it the next time,
// and of a settlement it goes to the rules. Signs of life go by the id: a lease must not be said to be lost.

/// Adds plain tasks: without key or lock, each id once, sorted, so that two of these never wait for each other in a
/// circle. What is there already is left alone; a body is there if its task is.
const ADD: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    new AS MATERIALIZED (
        SELECT n.*, coalesce(n.at, c.now + n.after, c.now) AS run_at, c.now FROM clock c,
            unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::bigint[],
                $8::integer[], $9::bigint[], $10::bigint[])
            AS n (id, queue, payload, at, after, priority, fingerprint, attempts, first_pause, longest_pause)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            marred, queue)
        SELECT id, run_at, now, 0, 1, now, priority, 0, CASE WHEN run_at > now THEN 0 ELSE 2 END, false, false, queue
        FROM new ON CONFLICT (id) DO NOTHING RETURNING queue, priority, state),
    bodies AS (
        INSERT INTO $s.task_bodies (id, created_at, fingerprint, first_pause, longest_pause, attempts, payload)
        SELECT id, now, fingerprint, first_pause, longest_pause, attempts, payload FROM new
        ON CONFLICT (id) DO NOTHING),
    levels AS (
        INSERT INTO $s.task_levels (queue, priority) SELECT DISTINCT queue, priority FROM added ORDER BY queue, priority
        ON CONFLICT DO NOTHING RETURNING queue),
    queues AS (
        INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM levels ORDER BY queue ON CONFLICT DO NOTHING),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, count(*) FROM added GROUP BY queue, state)
    SELECT now, cardinality($11::text[]) = cardinality($12::integer[]) FROM clock";

/// The same for what is mostly so: all of them are new, else it is an error; and their queues and priorities `$11`, `$12`
/// are known, else nothing is added, and it says so.
const ADD_NEW: &str = "
    WITH clock AS MATERIALIZED (
        SELECT $NOW AS now, cardinality($11::text[]) = (
            SELECT count(*) FROM unnest($11::text[], $12::integer[]) AS a (queue, priority)
            JOIN $s.task_levels l ON l.queue = a.queue AND l.priority = a.priority) AS known),
    new AS MATERIALIZED (
        SELECT n.*, coalesce(n.at, c.now + n.after, c.now) AS run_at, c.now FROM clock c,
            unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::bigint[],
                $8::integer[], $9::bigint[], $10::bigint[])
            AS n (id, queue, payload, at, after, priority, fingerprint, attempts, first_pause, longest_pause)
        WHERE c.known),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            marred, queue)
        SELECT id, run_at, now, 0, 1, now, priority, 0, CASE WHEN run_at > now THEN 0 ELSE 2 END, false, false, queue
        FROM new RETURNING queue, state),
    bodies AS (
        INSERT INTO $s.task_bodies (id, created_at, fingerprint, first_pause, longest_pause, attempts, payload)
        SELECT id, now, fingerprint, first_pause, longest_pause, attempts, payload FROM new),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, count(*) FROM added GROUP BY queue, state)
    SELECT now, known FROM clock";

/// Gives a worker what is next of each open queue in `$1`: along the index, from where its cursor stands, and those of
/// several queues and priorities merged by rank. With `$10`, nothing if tasks with a lock are due: the rules put those in line
/// first.
/// There is always a row, with the time and what is due next.
const LEASE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    open AS MATERIALIZED (
        SELECT a.name, a.since FROM unnest($1::text[], $2::bigint[]) AS a (name, since)
        JOIN $s.task_queues q ON q.name = a.name WHERE q.pause IS NULL),
    facts AS MATERIALIZED (
        SELECT c.now, $10 AND EXISTS (
            SELECT FROM open o CROSS JOIN LATERAL (
                SELECT FROM $s.tasks t
                WHERE t.state = 0 AND t.lock IS NOT NULL AND t.queue = o.name AND t.run_at >= o.since AND t.run_at <= c.now
                LIMIT 1) locked) AS rules_first
        FROM clock c),
    levels AS MATERIALIZED (
        SELECT l.queue, l.priority, l.moved, CASE WHEN k.moved = l.moved THEN k.since ELSE 0 END AS since,
            CASE WHEN k.moved = l.moved AND k.since < f.now THEN k.run_at ELSE 0 END AS run_at,
            CASE WHEN k.moved = l.moved AND k.since < f.now THEN k.id ELSE '00000000-0000-0000-0000-000000000000' END AS id
        FROM facts f CROSS JOIN open o JOIN $s.task_levels l ON l.queue = o.name
        LEFT JOIN unnest($6::text[], $7::integer[], $8::bigint[], $9::bigint[], $11::bigint[], $12::uuid[])
            AS k (queue, priority, since, moved, run_at, id)
            ON k.queue = l.queue AND k.priority = l.priority
        WHERE NOT f.rules_first),
    next AS MATERIALIZED (
        SELECT t.place, l.moved FROM levels l CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.id, t.ready_at, t.run_at, t.priority FROM $s.tasks t
            WHERE t.state = 2 AND t.queue = l.queue AND t.priority = l.priority
              AND (t.ready_at, t.run_at, t.id) >= (l.since, l.run_at, l.id)
            ORDER BY t.ready_at, t.run_at, t.id LIMIT $3 FOR UPDATE SKIP LOCKED) t
        ORDER BY $RANK, t.run_at, t.id LIMIT $3),
    leased AS (
        UPDATE $s.tasks t SET state = 3, attempt = t.attempt + 1, token = greatest(t.token + 1, f.now),
            version = t.version + 1, worker = $4, leased_at = f.now, lease_expires_at = f.now + $5, progress = NULL,
            updated_at = f.now
        FROM next n CROSS JOIN facts f WHERE t.ctid = n.place RETURNING $HOT, n.moved),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM leased, (VALUES (2::smallint, -1), (3::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT $HOT, $BODY, t.moved, f.now, f.rules_first, CASE WHEN (SELECT count(*) FROM leased) < $3 THEN (
            SELECT min(s.run_at) FROM open o CROSS JOIN LATERAL (
                SELECT s.run_at FROM $s.tasks s WHERE s.state = 0 AND s.queue = o.name AND s.run_at >= o.since
                ORDER BY s.run_at LIMIT 1) s) END
    FROM facts f LEFT JOIN (leased t JOIN $s.task_bodies b ON b.id = t.id) ON true
    ORDER BY $RANK, t.run_at, t.id";

/// Puts in line what is due and has no lock.
const PROMOTE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    open AS MATERIALIZED (
        SELECT a.name, a.since FROM unnest($1::text[], $2::bigint[]) AS a (name, since)
        JOIN $s.task_queues q ON q.name = a.name WHERE q.pause IS NULL OR $3),
    due AS MATERIALIZED (
        SELECT t.place FROM clock c CROSS JOIN open o CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.id, t.run_at FROM $s.tasks t
            WHERE t.state = 0 AND t.lock IS NULL AND t.queue = o.name AND t.run_at >= o.since AND t.run_at <= c.now
            ORDER BY t.run_at, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED) t
        ORDER BY t.run_at, t.id LIMIT 1000),
    moved AS (
        UPDATE $s.tasks t SET state = 2, ready_at = c.now FROM due d CROSS JOIN clock c WHERE t.ctid = d.place
        RETURNING t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM moved, (VALUES (0::smallint, -1), (2::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT now, (SELECT count(*) FROM moved), ARRAY(SELECT name FROM open) FROM clock";

/// Ends attempts that went well, of tasks without a lock, in the order of the ids. Those that are not answered are not
/// as expected: the rules look at them.
const DONE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    held AS MATERIALIZED (
        SELECT t.ctid AS place, t.id, t.marred, a.result FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS a (id, token, result)
        JOIN $s.tasks t ON t.id = a.id
        WHERE t.state = 3 AND t.token = a.token AND t.lock IS NULL ORDER BY t.id FOR UPDATE OF t),
    done AS (
        UPDATE $s.tasks t SET state = 4, finished_at = c.now, updated_at = c.now, version = t.version + 1,
            lease_expires_at = NULL, marred = false
        FROM held h CROSS JOIN clock c WHERE t.ctid = h.place RETURNING t.id, t.queue, h.result, h.marred),
    told AS (
        UPDATE $s.task_bodies b SET result = d.result, error = NULL FROM done d
        WHERE b.id = d.id AND (d.result IS NOT NULL OR d.marred)),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM done, (VALUES (3::smallint, -1), (4::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT id FROM done";

/// Takes a worker's signs of life, in the order of the ids. The time is read for each row when it is locked.
const BEAT: &str = "
    WITH heard AS (
        INSERT INTO $s.workers AS w (id, started_at, seen_at, info) VALUES ($1, $NOW, $NOW, $2)
        ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info),
    held AS MATERIALIZED (
        SELECT t.id, a.progress FROM unnest($3::uuid[], $4::bigint[], $5::text[]) AS a (id, token, progress)
        JOIN $s.tasks t ON t.id = a.id
        WHERE t.state = 3 AND t.token = a.token ORDER BY t.id FOR NO KEY UPDATE OF t)
    UPDATE $s.tasks t SET lease_expires_at = $NOW + $6, progress = coalesce(h.progress, t.progress)
    FROM held h WHERE t.id = h.id RETURNING t.id, t.cancel";

/// Makes queues and priorities known.
const LEVEL: &str = "
    WITH levels AS (
        INSERT INTO $s.task_levels (queue, priority) SELECT * FROM unnest($1::text[], $2::integer[])
        ON CONFLICT DO NOTHING RETURNING queue)
    INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM levels ON CONFLICT DO NOTHING";

// --- tasks: to look at, and to forget --------------------------------------------------------------------------------

const QUEUES: &str = "
    SELECT name, pause, NULL::smallint, NULL::bigint FROM $s.task_queues
    UNION ALL SELECT queue, NULL, state, sum(delta)::bigint FROM $s.task_counts GROUP BY queue, state";

const KEYED: &str = "
    SELECT $HOT, $BODY FROM $s.task_keys k JOIN $s.tasks t ON t.id = k.id JOIN $s.task_bodies b ON b.id = t.id
    WHERE k.queue = $1 AND k.key = $2";

/// The finished tasks of a queue, or of all, that ended before `$3`: the first `$4`, with `$2` only of that state.
const ARCHIVE: &str = "
    WITH old AS MATERIALIZED (
        SELECT t.id FROM $s.task_queues q CROSS JOIN LATERAL (
            SELECT t.id, t.finished_at FROM $s.tasks t
            WHERE t.queue = q.name AND NOT t.archived AND t.finished_at < $3 AND ($2::smallint IS NULL OR t.state = $2)
            ORDER BY t.finished_at LIMIT $4 FOR UPDATE SKIP LOCKED) t
        WHERE $1::text IS NULL OR q.name = $1 ORDER BY t.finished_at, t.id LIMIT $4),
    put AS (
        UPDATE $s.tasks t SET archived = true FROM old o WHERE t.id = o.id RETURNING t.queue, t.state),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, -count(*) FROM put GROUP BY queue, state)
    SELECT count(*) FROM put";

const PURGE: &str = "
    WITH old AS MATERIALIZED (
        SELECT t.id FROM $s.task_queues q CROSS JOIN (VALUES (false), (true)) AS a (archived) CROSS JOIN LATERAL (
            SELECT t.id, t.finished_at FROM $s.tasks t
            WHERE t.queue = q.name AND t.archived = a.archived AND t.finished_at < $3
              AND ($2::smallint IS NULL OR t.state = $2)
            ORDER BY t.finished_at LIMIT $4 FOR UPDATE SKIP LOCKED) t
        WHERE $1::text IS NULL OR q.name = $1 ORDER BY t.finished_at, t.id LIMIT $4),
    gone AS (
        DELETE FROM $s.tasks t USING old o WHERE t.id = o.id RETURNING t.id, t.queue, t.state, t.archived),
    bodies AS (
        DELETE FROM $s.task_bodies b USING old o WHERE b.id = o.id RETURNING b.id, b.key),
    keys AS (
        DELETE FROM $s.task_keys k USING bodies b JOIN gone g ON g.id = b.id
        WHERE b.key IS NOT NULL AND k.queue = g.queue AND k.key = b.key AND k.id = b.id),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, -count(*) FROM gone WHERE NOT archived GROUP BY queue, state)
    SELECT count(*) FROM gone";

/// Adds up counts; those that somebody else is adding up are left to it.
const FOLD: &str = "
    WITH part AS MATERIALIZED (SELECT ctid FROM $s.task_counts LIMIT 20000 FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM $s.task_counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM part)) RETURNING queue, state, delta)
    INSERT INTO $s.task_counts SELECT queue, state, sum(delta) FROM gone GROUP BY queue, state HAVING sum(delta) <> 0";

// --- documents -------------------------------------------------------------------------------------------------------

const DOC_GET: &str = "
    SELECT version, body FROM $s.docs WHERE key = $1 AND (until IS NULL OR until > $NOW)";

/// Written if it is as expected: version `$2`, or not there, or no longer worth keeping. A version is never used twice.
const DOC_PUT: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    changed AS (
        UPDATE $s.docs d SET version = greatest(d.version + 1, c.now), body = $3, until = c.now + $4 FROM clock c
        WHERE d.key = $1 AND d.version = $2 AND (d.until IS NULL OR d.until > c.now) RETURNING d.version),
    added AS (
        INSERT INTO $s.docs AS d (key, version, body, until) SELECT $1, now, $3, now + $4 FROM clock
        WHERE $2::bigint IS NULL
        ON CONFLICT (key) DO UPDATE SET version = greatest(d.version + 1, excluded.version), body = excluded.body,
            until = excluded.until
        WHERE d.until <= excluded.version RETURNING d.version)
    SELECT version FROM changed UNION ALL SELECT version FROM added";

/// By key: after `$1`, from the prefix `$2` on and before `$3`; with `$4` without the back room.
const DOC_LIST: &str = "
    SELECT key, version, body FROM $s.docs
    WHERE key > $1 AND key >= $2 AND ($3::text IS NULL OR key < $3) AND NOT ($4 AND key >= E'\\x01' AND key < E'\\x02')
      AND (until IS NULL OR until > $NOW)
    ORDER BY key LIMIT $5";

/// Not before its version has passed, so that the next one is higher.
const DOC_FORGET: &str = "
    DELETE FROM $s.docs WHERE key IN (
        SELECT key FROM $s.docs WHERE until <= (SELECT $NOW) AND version < (SELECT $NOW) ORDER BY until LIMIT 1000
        FOR UPDATE SKIP LOCKED)";
