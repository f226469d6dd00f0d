//! Statements that load tasks for the slow path, and save the result.

use tokio_postgres::types::Type;

/// Selects those of these tasks that exist.
pub(super) const EXISTING_IDS: &str = "
    SELECT a.id FROM unnest($1::uuid[]) AS a (id)
    CROSS JOIN LATERAL (SELECT FROM $s.tasks t WHERE t.id = a.id OFFSET 0) t";

/// Inserts or locks the keys of these tasks, sorted, and returns their owners: no other session
/// decides about these keys until the end of the transaction.
pub(super) const LOCK_KEYS: &str = "
    INSERT INTO $s.task_keys AS k (queue, key, id) SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[])
    ON CONFLICT (queue, key) DO UPDATE SET id = k.id RETURNING queue, key, id";

/// Deletes keys that these tasks do not have after all.
pub(super) const DELETE_KEYS: &str = "
    DELETE FROM $s.task_keys k USING unnest($1::text[], $2::text[], $3::uuid[]) AS n (queue, key, id)
    WHERE k.queue = n.queue AND k.key = n.key AND k.id = n.id";

/// Locks the head rows of these locks in these queues, sorted, creating them if necessary, and
/// returns the tasks that are the heads.
pub(super) const LOCK_HEADS: &str = "
    INSERT INTO $s.task_heads AS h (lock, queue) SELECT * FROM unnest($1::text[], $2::text[])
    ON CONFLICT (lock, queue) DO UPDATE SET id = h.id RETURNING lock, queue, id";

/// Counts the tasks that are blocked by each of these locks in these queues. The head rows are
/// locked, so no other session can block a task behind them now.
pub(super) const COUNT_BLOCKED: &str = "
    SELECT l.lock, l.queue, (SELECT count(*) FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock AND t.queue = l.queue)
    FROM unnest($1::text[], $2::text[]) AS l (lock, queue)";

/// Loads tasks, in the order of `$1`, which is that of their ids, with row locks until the end of
/// the transaction; and the time.
pub(super) const LOAD: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id FOR UPDATE) t";

/// Reads tasks without row locks.
pub(super) const READ: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id) t";

/// Loads those of these tasks that have ended, with row locks until the end of the transaction. A
/// transaction of the caller must not lock the row of a running task: its worker could not send
/// heartbeats for it.
pub(super) const LOAD_FINISHED: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id AND t.state >= 4 FOR UPDATE) t";

/// Loads those of these tasks that are pending, with row locks until the end of the transaction. A
/// task that is being leased is skipped.
pub(super) const LOAD_PENDING: &str = "
    SELECT t.*, $NOW FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.id = a.id AND t.state = 2 FOR UPDATE SKIP LOCKED) t";

/// Loads the first blocked task of each of these locks in these queues, except for the tasks `$3`.
pub(super) const FIRST_BLOCKED: &str = "
    SELECT t.* FROM unnest($1::text[], $2::text[]) AS l (lock, queue) CROSS JOIN LATERAL (
        SELECT $TASK FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock AND t.queue = l.queue AND t.id <> ALL ($3)
        ORDER BY ($RANK), t.run_at, t.id LIMIT 1 FOR UPDATE) t";

/// Selects due tasks with a lock in these queues.
pub(super) const DUE_LOCKED: &str = "
    SELECT t.id, t.lock, q.name FROM $s.task_queues q CROSS JOIN LATERAL (
        SELECT t.id, t.lock, t.run_at FROM $s.tasks t
        WHERE t.state = 0 AND t.lock IS NOT NULL AND t.queue = q.name AND t.run_at <= (SELECT $NOW)
        ORDER BY t.run_at, t.id LIMIT 1000) t
    WHERE q.name = ANY ($1) AND q.pause IS NULL ORDER BY t.run_at, t.id LIMIT 1000";

/// Selects due tasks with a lock in any queue, paused or not, from `$1` on.
pub(super) const ALL_DUE_LOCKED: &str = "
    SELECT t.id, t.lock, t.queue FROM $s.tasks t
    WHERE t.state + 0 = 0 AND t.lock IS NOT NULL AND t.run_at >= $1 AND t.run_at <= (SELECT $NOW)
    ORDER BY t.run_at, t.id LIMIT 1000";

/// Selects leases that may have expired: those to be checked from `$1` on, in the order of that
/// time, and those of an older release, which have no such time; and the deadlines of runners that
/// have passed. Active leases are checked again at their end. Returns for each whether it has
/// expired, and if not, whether the next check was recorded, which is not done for a row that
/// another session has locked. There is always a row, with the time.
pub(super) const EXPIRED: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    due AS MATERIALIZED (
        (SELECT t.id, t.lock, t.queue, t.check_at, t.lease_expires_at FROM clock c CROSS JOIN LATERAL (
            SELECT * FROM $s.tasks t WHERE t.state = 3 AND t.check_at >= $1 AND t.check_at <= c.now
            ORDER BY t.check_at, t.id LIMIT 1000) t)
        UNION ALL
        (SELECT t.id, t.lock, t.queue, t.lease_expires_at, t.lease_expires_at FROM $s.tasks t
            WHERE t.state = 3 AND t.check_at IS NULL LIMIT 1000)
        UNION ALL
        (SELECT t.id, t.lock, t.queue, t.wanted_until, t.wanted_until FROM $s.tasks t
            WHERE t.state < 3 AND t.wanted_until IS NOT NULL AND t.wanted_until <= (SELECT now FROM clock)
            ORDER BY t.wanted_until, t.id LIMIT 1000)),
    alive AS MATERIALIZED (
        SELECT t.place, t.state = 3 AND t.lease_expires_at > c.now AS fits
        FROM due d CROSS JOIN clock c CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.state, t.lease_expires_at FROM $s.tasks t
            WHERE t.id = d.id AND d.lease_expires_at > c.now FOR UPDATE SKIP LOCKED) t),
    moved AS (
        UPDATE $s.tasks t SET check_at = t.lease_expires_at FROM alive a WHERE t.ctid = a.place AND a.fits
        RETURNING t.id)
    SELECT d.id, d.lock, d.queue, d.check_at, d.lease_expires_at, d.lease_expires_at <= c.now,
        EXISTS (SELECT FROM moved m WHERE m.id = d.id), c.now
    FROM clock c LEFT JOIN due d ON true ORDER BY d.check_at, d.id";

/// Saves new tasks and changed tasks, with all related rows. Returns the number of new tasks that
/// were added: a lower number than expected means that another session has just added one of them,
/// and the transaction must be rolled back. A level that is already as required is not written: all
/// transactions that change its tasks would wait for each other.
pub(super) const SAVE: &str = "
    WITH tasks AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::boolean[], $3::boolean[], $4::text[], $5::smallint[], $6::integer[],
            $7::bigint[], $8::bigint[], $9::text[], $10::integer[], $11::bigint[], $12::bigint[], $13::uuid[],
            $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::bigint[], $19::bigint[], $20::boolean[],
            $21::boolean[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::bigint[],
            $28::integer[], $29::bigint[], $30::bigint[], $31::bigint[], $43::boolean[], $44::integer[],
            $45::boolean[], $46::bigint[])
        AS n (id, is_new, has_body, queue, state, priority, run_at, ready_at, lock, attempt, token, version, worker,
            leased_at, lease_expires_at, progress, cancel, updated_at, finished_at, archived, marred, payload, result,
            error, events, key, fingerprint, attempts, first_pause, longest_pause, created_at, ahead, expiries,
            early, wanted_until)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            marred, queue, lock, created_at, fingerprint, first_pause, longest_pause, attempts, payload, key, wanted_until)
        SELECT id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, marred, queue, lock,
            created_at, fingerprint, first_pause, longest_pause, attempts, payload, key, wanted_until
        FROM tasks WHERE is_new ON CONFLICT (id) DO NOTHING RETURNING id),
    changed AS (
        UPDATE $s.tasks t SET run_at = n.run_at, ready_at = n.ready_at, token = n.token, version = n.version,
            updated_at = n.updated_at, priority = n.priority, attempt = n.attempt, state = n.state,
            archived = n.archived, marred = n.marred, leased_at = n.leased_at,
            lease_expires_at = n.lease_expires_at, finished_at = n.finished_at, worker = n.worker,
            ahead = n.ahead, expiries = n.expiries, progress = n.progress, cancel = n.cancel, fingerprint = n.fingerprint,
            key = n.key, attempts = n.attempts, early = coalesce(n.early, t.early), wanted_until = n.wanted_until,
            first_pause = n.first_pause, longest_pause = n.longest_pause, payload = coalesce(n.payload, t.payload),
            result = CASE WHEN n.has_body THEN n.result ELSE t.result END,
            error = CASE WHEN n.has_body THEN n.error ELSE t.error END,
            events = CASE WHEN n.has_body THEN n.events ELSE t.events END
        FROM tasks n WHERE t.id = n.id AND NOT n.is_new),
    counted AS (
        INSERT INTO $s.task_counts SELECT * FROM unnest($32::text[], $33::smallint[], $34::bigint[])),
    heads AS MATERIALIZED (SELECT * FROM unnest($35::text[], $47::text[], $36::uuid[]) AS n (lock, queue, id)),
    free AS (
        DELETE FROM $s.task_heads h USING heads n WHERE h.lock = n.lock AND h.queue = n.queue AND n.id IS NULL),
    taken AS (
        UPDATE $s.task_heads h SET id = n.id FROM heads n
        WHERE h.lock = n.lock AND h.queue = n.queue AND n.id IS NOT NULL AND h.id IS DISTINCT FROM n.id),
    levels AS (
        INSERT INTO $s.task_levels AS l (queue, priority, moved, early)
        SELECT n.* FROM unnest($37::text[], $38::integer[], $39::bigint[], $48::boolean[])
            AS n (queue, priority, moved, early)
        WHERE n.moved > 0 OR NOT EXISTS (
            SELECT FROM $s.task_levels l WHERE l.queue = n.queue AND l.priority = n.priority AND (l.early OR NOT n.early))
        ON CONFLICT (queue, priority) DO UPDATE
            SET moved = l.moved + (excluded.moved > 0)::integer, early = l.early OR excluded.early
        RETURNING queue),
    queues AS (
        INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM levels ON CONFLICT DO NOTHING),
    keys AS (
        UPDATE $s.task_keys k SET id = n.id FROM unnest($40::text[], $41::text[], $42::uuid[]) AS n (queue, key, id)
        WHERE k.queue = n.queue AND k.key = n.key AND k.id <> n.id)
    SELECT count(*) FROM added";

const TEXTS: Type = Type::TEXT_ARRAY;
const BIGS: Type = Type::INT8_ARRAY;
const INTS: Type = Type::INT4_ARRAY;
const SMALLS: Type = Type::INT2_ARRAY;
const BOOLS: Type = Type::BOOL_ARRAY;
const UUIDS: Type = Type::UUID_ARRAY;

pub(super) const SAVE_TYPES: &[Type] = &[
    UUIDS, BOOLS, BOOLS, TEXTS, SMALLS, INTS, BIGS, BIGS, TEXTS, INTS, BIGS, BIGS, UUIDS, BIGS, BIGS, TEXTS,
    TEXTS, BIGS, BIGS, BOOLS, BOOLS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, BIGS, INTS, BIGS, BIGS, BIGS, TEXTS,
    SMALLS, BIGS, TEXTS, UUIDS, TEXTS, INTS, BIGS, TEXTS, TEXTS, UUIDS, BOOLS, INTS, BOOLS, BIGS, TEXTS,
    BOOLS,
];
