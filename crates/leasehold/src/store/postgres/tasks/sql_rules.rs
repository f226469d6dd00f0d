//! The statements with which tasks are loaded for the rules, and saved as the rules have left them.

use tokio_postgres::types::Type;

/// Which of these tasks are there.
pub(super) const KNOWN: &str = "SELECT t.id FROM unnest($1::uuid[]) AS a (id) JOIN $s.tasks t ON t.id = a.id";

/// Takes the keys for these tasks, sorted, and says whose they are: nobody else decides about them until the end of the
/// transaction.
pub(super) const HOLD_KEYS: &str = "
    INSERT INTO $s.task_keys AS k (queue, key, id) SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[])
    ON CONFLICT (queue, key) DO UPDATE SET id = k.id RETURNING queue, key, id";

/// Lets go of keys that these tasks do not have after all.
pub(super) const DROP_KEYS: &str = "
    DELETE FROM $s.task_keys k USING unnest($1::text[], $2::text[], $3::uuid[]) AS n (queue, key, id)
    WHERE k.queue = n.queue AND k.key = n.key AND k.id = n.id";

/// Holds the heads of these locks, sorted, made if need be, and says which tasks they are.
pub(super) const HOLD_HEADS: &str = "
    INSERT INTO $s.task_heads AS h (lock) SELECT * FROM unnest($1::text[])
    ON CONFLICT (lock) DO UPDATE SET id = h.id RETURNING lock, id";

/// How many wait for each of these locks. Their heads are held: nobody else can be put behind them now.
pub(super) const COUNT_BLOCKED: &str = "
    SELECT l.lock, (SELECT count(*) FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock)
    FROM unnest($1::text[]) AS l (lock)";

/// Tasks, in the order of their ids, held until the end of the transaction; and the time.
pub(super) const LOAD: &str = "
    SELECT $HOT, $BODY, $NOW FROM unnest($1::uuid[]) AS a (id) JOIN $s.tasks t ON t.id = a.id
    JOIN $s.task_bodies b ON b.id = t.id ORDER BY t.id FOR UPDATE OF t";

/// The first that waits for each of these locks.
pub(super) const FIRST_BLOCKED: &str = "
    SELECT $HOT, $BODY FROM unnest($1::text[]) AS l (lock) CROSS JOIN LATERAL (
        SELECT t.* FROM $s.tasks t WHERE t.state = 1 AND t.lock = l.lock
        ORDER BY ($RANK), t.run_at, t.id LIMIT 1 FOR UPDATE) t
    JOIN $s.task_bodies b ON b.id = t.id";

/// Tasks with a lock that are due; with `$2` of paused queues, too.
pub(super) const DUE_LOCKED: &str = "
    SELECT t.id, t.lock FROM $s.task_queues q CROSS JOIN LATERAL (
        SELECT t.id, t.lock, t.run_at FROM $s.tasks t
        WHERE t.state = 0 AND t.lock IS NOT NULL AND t.queue = q.name AND t.run_at <= (SELECT $NOW)
        ORDER BY t.run_at, t.id LIMIT 1000) t
    WHERE q.name = ANY ($1) AND (q.pause IS NULL OR $2) ORDER BY t.run_at, t.id LIMIT 1000";

/// Leases that have run out, the oldest first.
pub(super) const EXPIRED: &str = "
    SELECT t.id, t.lock FROM $s.tasks t WHERE t.state = 3 AND t.lease_expires_at <= (SELECT $NOW)
    ORDER BY t.lease_expires_at, t.id LIMIT $1";

/// Saves tasks, those that are new and those that are held, with everything that goes with them. Says how many new ones
/// were added: one less than there were means that somebody else has just added it, and nothing here must come to pass.
pub(super) const SAVE: &str = "
    WITH tasks AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::boolean[], $3::boolean[], $4::text[], $5::smallint[], $6::integer[],
            $7::bigint[], $8::bigint[], $9::text[], $10::integer[], $11::bigint[], $12::bigint[], $13::uuid[],
            $14::bigint[], $15::bigint[], $16::text[], $17::text[], $18::bigint[], $19::bigint[], $20::boolean[],
            $21::boolean[], $22::text[], $23::text[], $24::text[], $25::text[], $26::text[], $27::bigint[],
            $28::integer[], $29::bigint[], $30::bigint[], $31::bigint[])
        AS n (id, is_new, has_body, queue, state, priority, run_at, ready_at, lock, attempt, token, version, worker,
            leased_at, lease_expires_at, progress, cancel, updated_at, finished_at, archived, marred, payload, result,
            error, events, key, fingerprint, attempts, first_pause, longest_pause, created_at)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            marred, queue, lock)
        SELECT id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, marred, queue, lock
        FROM tasks WHERE is_new ON CONFLICT (id) DO NOTHING RETURNING id),
    bodies AS (
        INSERT INTO $s.task_bodies (id, created_at, fingerprint, first_pause, longest_pause, attempts, payload, key)
        SELECT id, created_at, fingerprint, first_pause, longest_pause, attempts, payload, key
        FROM tasks WHERE is_new ON CONFLICT (id) DO NOTHING),
    changed AS (
        UPDATE $s.tasks t SET run_at = n.run_at, ready_at = n.ready_at, token = n.token, version = n.version,
            updated_at = n.updated_at, priority = n.priority, attempt = n.attempt, state = n.state,
            archived = n.archived, marred = n.marred, leased_at = n.leased_at,
            lease_expires_at = n.lease_expires_at, finished_at = n.finished_at, worker = n.worker,
            progress = n.progress, cancel = n.cancel
        FROM tasks n WHERE t.id = n.id AND NOT n.is_new),
    rewritten AS (
        UPDATE $s.task_bodies b SET payload = coalesce(n.payload, b.payload), result = n.result, error = n.error,
            events = n.events, key = n.key, attempts = n.attempts, first_pause = n.first_pause,
            longest_pause = n.longest_pause
        FROM tasks n WHERE b.id = n.id AND n.has_body AND NOT n.is_new),
    counted AS (
        INSERT INTO $s.task_counts SELECT * FROM unnest($32::text[], $33::smallint[], $34::bigint[])),
    heads AS MATERIALIZED (SELECT * FROM unnest($35::text[], $36::uuid[]) AS n (lock, id)),
    free AS (
        DELETE FROM $s.task_heads h USING heads n WHERE h.lock = n.lock AND n.id IS NULL),
    taken AS (
        UPDATE $s.task_heads h SET id = n.id FROM heads n
        WHERE h.lock = n.lock AND n.id IS NOT NULL AND h.id IS DISTINCT FROM n.id),
    levels AS (
        INSERT INTO $s.task_levels AS l (queue, priority, moved)
        SELECT * FROM unnest($37::text[], $38::integer[], $39::bigint[])
        ON CONFLICT (queue, priority) DO UPDATE SET moved = l.moved + 1 WHERE excluded.moved > 0 RETURNING queue),
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
    SMALLS, BIGS, TEXTS, UUIDS, TEXTS, INTS, BIGS, TEXTS, TEXTS, UUIDS,
];
