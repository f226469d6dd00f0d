//! Statements of the fast path, queries, retention and documents. The numbers are states of tasks: see
//! `schema.rs`.

// --- tasks: fast path -----------------------------------------------------------------------------
//
// Rows that were found and locked are updated by their `ctid`, which saves an index lookup for
// each. A row that another session changed between the read and the row lock has another `ctid` and
// is left out: a lease finds it the next time, and a settlement of it takes the slow path.
// Heartbeats use the id, because a lease that is held must not be reported as lost.

/// Adds simple tasks: without key or lock, each id once, sorted, so that concurrent inserts never
/// deadlock. Existing tasks are not changed.
pub(super) const INSERT: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    new AS MATERIALIZED (
        SELECT n.*, coalesce(n.at, c.now + n.after, c.now) AS run_at, c.now FROM clock c,
            unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::integer[], $7::integer[],
                $8::bigint[], $9::bigint[])
            AS n (id, queue, payload, at, after, priority, attempts, first_pause, longest_pause)),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            marred, queue, created_at, first_pause, longest_pause, attempts, payload)
        SELECT id, run_at, now, 0, 1, now, priority, 0, CASE WHEN run_at > now THEN 0 ELSE 2 END, false, false, queue,
            now, first_pause, longest_pause, attempts, payload
        FROM new ON CONFLICT (id) DO NOTHING RETURNING queue, priority, state),
    levels AS (
        INSERT INTO $s.task_levels (queue, priority) SELECT DISTINCT queue, priority FROM added ORDER BY queue, priority
        ON CONFLICT DO NOTHING RETURNING queue),
    queues AS (
        INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM levels ORDER BY queue ON CONFLICT DO NOTHING),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, count(*) FROM added GROUP BY queue, state)
    SELECT now FROM clock";

/// Like `INSERT`, for the most common case: all tasks are new, otherwise the statement fails; they
/// differ only in id and payload; they are due; and their queue and priority are known, otherwise
/// nothing is added and no row is returned. Most programs do this most often, so the statement
/// contains only what is necessary: each array and each step costs microseconds.
pub(super) const INSERT_UNIFORM: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now FROM $s.task_levels WHERE queue = $3 AND priority = $4),
    added AS (
        INSERT INTO $s.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
            marred, queue, created_at, first_pause, longest_pause, attempts, payload)
        SELECT n.id, c.now, c.now, 0, 1, c.now, $4, 0, 2, false, false, $3, c.now, $6, $7, $5, n.payload
        FROM clock c, unnest($1::uuid[], $2::text[]) AS n (id, payload)),
    counted AS (INSERT INTO $s.task_counts SELECT $3, 2, cardinality($1) FROM clock)
    SELECT now FROM clock";

/// Leases the next tasks of each open queue in `$1`: along the index, from the cursor on, merged by
/// rank over several queues and priorities. Tasks that became pending before others (`early`) are
/// read from the beginning, and move no cursor. With `$10`, leases nothing if due tasks must be
/// made pending first; for `Sql::LeaseLockedDue` these are only tasks with a lock, which the slow path
/// makes pending. With `$15`, leases nothing if leases, or the deadlines of runners, may have
/// expired since then, which the slow path ends first.
///
/// The worker starts the first `$13` tasks at once; `$14` means that it has no other. The answer
/// ends as `LeaseTasks::gives` of the model defines: before a task that must not be fetched ahead,
/// and around one that runs alone. There is always a row, with the time, whether all queues are
/// open, when the next task is due, and whether the answer was cut short.
pub(super) const LEASE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    open AS MATERIALIZED (
        SELECT a.name, a.since FROM unnest($1::text[], $2::bigint[]) AS a (name, since)
        JOIN $s.task_queues q ON q.name = a.name WHERE q.pause IS NULL),
    facts AS MATERIALIZED (
        SELECT c.now, (SELECT count(*) FROM open) = cardinality($1) AS all_open, $10 AND EXISTS (
            SELECT FROM open o CROSS JOIN LATERAL (
                SELECT FROM $s.tasks t
                WHERE t.state = 0 $DUE_FILTER AND t.queue = o.name AND t.run_at >= o.since AND t.run_at <= c.now
                LIMIT 1) due) AS due_first,
            EXISTS (SELECT FROM $s.tasks t
                WHERE t.state = 3 AND t.check_at >= $15::bigint AND t.check_at <= c.now)
            OR ($15::bigint IS NOT NULL AND EXISTS (SELECT FROM $s.tasks t
                WHERE t.state < 3 AND t.wanted_until IS NOT NULL AND t.wanted_until <= c.now)) AS expired_first
        FROM clock c),
    levels AS MATERIALIZED (
        SELECT l.queue, l.priority, e.early, CASE WHEN NOT e.early THEN l.moved END AS moved,
            CASE WHEN k.moved = l.moved THEN k.since ELSE 0 END AS since,
            CASE WHEN k.moved = l.moved THEN k.run_at ELSE 0 END AS run_at,
            CASE WHEN k.moved = l.moved THEN k.id ELSE '00000000-0000-0000-0000-000000000000' END AS id
        FROM facts f CROSS JOIN open o JOIN $s.task_levels l ON l.queue = o.name
        JOIN (VALUES (false), (true)) AS e (early) ON NOT e.early OR l.early
        LEFT JOIN unnest($6::text[], $7::integer[], $8::bigint[], $9::bigint[], $11::bigint[], $12::uuid[])
            AS k (queue, priority, since, moved, run_at, id)
            ON k.queue = l.queue AND k.priority = l.priority AND NOT e.early
        WHERE NOT f.due_first AND NOT f.expired_first),
    next AS MATERIALIZED (
        SELECT t.place, l.moved, row_number() OVER (ORDER BY $RANK, t.run_at, t.id) AS nth,
            sum(t.bytes) OVER (ORDER BY $RANK, t.run_at, t.id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before,
            t.expiries >= 2 OR (t.expiries > 0 AND t.attempt + 1 >= t.attempts) AS alone,
            t.token = 0 AND t.attempts > 1 AS may_be_ahead
        FROM levels l CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.id, t.ready_at, t.run_at, t.priority, t.expiries, t.attempt, t.attempts, t.token,
                octet_length(t.payload) AS bytes
            FROM $s.tasks t
            WHERE t.state = 2 AND t.queue = l.queue AND t.priority = l.priority AND t.early = l.early
              AND (t.ready_at, t.run_at, t.id) >= (l.since, l.run_at, l.id)
            ORDER BY t.ready_at, t.run_at, t.id LIMIT $3 FOR UPDATE SKIP LOCKED) t
        ORDER BY $RANK, t.run_at, t.id LIMIT $3),
    -- The place of the first task that is not given.
    cut AS MATERIALIZED (
        SELECT coalesce(min(CASE WHEN n.alone THEN greatest(n.nth, 2) WHEN n.nth > $13 AND NOT n.may_be_ahead THEN n.nth END),
            $3 + 1) AS nth FROM next n),
    leased AS (
        UPDATE $s.tasks t SET state = 3, attempt = t.attempt + 1, token = greatest(t.token + 1, f.now),
            version = t.version + 1, worker = $4, leased_at = f.now, lease_expires_at = f.now + $5,
            check_at = f.now + $5, ahead = CASE WHEN n.alone THEN NOT $14 ELSE n.nth > $13 END, progress = NULL,
            updated_at = f.now
        FROM next n CROSS JOIN facts f CROSS JOIN cut
        WHERE t.ctid = n.place AND n.nth < cut.nth AND (n.before IS NULL OR n.before < $16) RETURNING $TASK, n.moved),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT o.name, s.state, s.sign * c.tasks FROM open o
        CROSS JOIN LATERAL (SELECT count(*) AS tasks FROM leased l WHERE l.queue = o.name) c
        CROSS JOIN (VALUES (2::smallint, -1), (3::smallint, 1)) AS s (state, sign) WHERE c.tasks > 0)
    SELECT t.*, f.now, f.due_first, f.all_open, CASE WHEN (SELECT count(*) FROM leased) < $3
            AND (SELECT coalesce(sum(octet_length(payload)), 0) FROM leased) < $16 THEN (
            SELECT min(s.run_at) FROM open o CROSS JOIN LATERAL (
                SELECT s.run_at FROM $s.tasks s WHERE s.state = 0 AND s.queue = o.name AND s.run_at >= o.since
                ORDER BY s.run_at LIMIT 1) s) END,
        (SELECT count(*) FROM next n, cut WHERE n.nth >= cut.nth) > 0, f.expired_first
    FROM facts f LEFT JOIN leased t ON true
    ORDER BY $RANK, t.run_at, t.id";

/// Makes due tasks without a lock pending. With `$3`, does nothing if leases, or the deadlines of
/// runners, may have expired since then, which the slow path ends first.
pub(super) const PROMOTE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    open AS MATERIALIZED (
        SELECT a.name, a.since FROM unnest($1::text[], $2::bigint[]) AS a (name, since)
        JOIN $s.task_queues q ON q.name = a.name WHERE q.pause IS NULL AND NOT EXISTS (
            SELECT FROM $s.tasks t
            WHERE t.state = 3 AND t.check_at >= $3::bigint AND t.check_at <= (SELECT now FROM clock))
        AND ($3::bigint IS NULL OR NOT EXISTS (
            SELECT FROM $s.tasks t
            WHERE t.state < 3 AND t.wanted_until IS NOT NULL AND t.wanted_until <= (SELECT now FROM clock)))),
    due AS MATERIALIZED (
        SELECT t.place FROM clock c CROSS JOIN open o CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.id, t.run_at FROM $s.tasks t
            WHERE t.state = 0 AND t.lock IS NULL AND t.queue = o.name AND t.run_at >= o.since AND t.run_at <= c.now
            ORDER BY t.run_at, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED) t
        ORDER BY t.run_at, t.id LIMIT 1000),
    moved AS (
        UPDATE $s.tasks t SET state = 2, ready_at = c.now, early = false FROM due d CROSS JOIN clock c WHERE t.ctid = d.place
        RETURNING t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM moved, (VALUES (0::smallint, -1), (2::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT now, (SELECT count(*) FROM moved), ARRAY(SELECT name FROM open) FROM clock";

/// Makes due tasks without a lock pending in all queues, paused or not, from `$1` on. Returns the
/// time and the number of tasks.
pub(super) const PROMOTE_ALL: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    due AS MATERIALIZED (
        SELECT t.place FROM clock c CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM $s.tasks t
            WHERE t.state + 0 = 0 AND t.lock IS NULL AND t.run_at >= $1 AND t.run_at <= c.now
            ORDER BY t.run_at, t.id LIMIT 1000 FOR UPDATE SKIP LOCKED) t),
    moved AS (
        UPDATE $s.tasks t SET state = 2, ready_at = c.now FROM due d CROSS JOIN clock c WHERE t.ctid = d.place
        RETURNING t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT queue, s.state, s.sign * count(*) FROM moved, (VALUES (0::smallint, -1), (2::smallint, 1)) AS s (state, sign)
        GROUP BY queue, s.state, s.sign)
    SELECT now, (SELECT count(*) FROM moved) FROM clock";

/// Ends successful attempts of tasks without a lock, in the order of `$1`, which is that of their
/// ids. Tasks that are not returned differ from what was expected, or are locked by another
/// transaction: they take the slow path. Each task must be looked up by its id, whatever the
/// statistics: a plan for a table that seemed empty compared all running tasks with all settled
/// ones. So the state is checked only afterwards: as a condition beside the id it would let the
/// planner read the index of all running tasks.
pub(super) const COMPLETE: &str = "
    WITH clock AS MATERIALIZED (SELECT $NOW AS now),
    held AS MATERIALIZED (
        SELECT t.place, a.result, t.state = 3 AND t.token = a.token AND t.lock IS NULL AS fits
        FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS a (id, token, result)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS place, t.state, t.token, t.lock FROM $s.tasks t WHERE t.id = a.id
            FOR UPDATE SKIP LOCKED) t),
    done AS (
        UPDATE $s.tasks t SET state = 4, finished_at = c.now, updated_at = c.now, version = t.version + 1,
            lease_expires_at = NULL, wanted_until = NULL, marred = false, result = h.result, error = NULL
        FROM held h CROSS JOIN clock c WHERE t.ctid = h.place AND h.fits RETURNING t.id, t.queue),
    counted AS (
        INSERT INTO $s.task_counts
        SELECT d.queue, s.state, s.sign * d.tasks FROM (SELECT queue, count(*) AS tasks FROM done GROUP BY queue) d
        CROSS JOIN (VALUES (3::smallint, -1), (4::smallint, 1)) AS s (state, sign))
    SELECT id FROM done";

/// Records a worker's heartbeats, in the order of `$3`, which is that of the ids. The time is read
/// for each row when the row is locked.
pub(super) const HEARTBEAT: &str = "
    WITH reported AS (
        INSERT INTO $s.workers AS w (id, started_at, seen_at, info) SELECT $1, $NOW, $NOW, $2 WHERE $2 IS NOT NULL
        ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, info = excluded.info),
    seen AS (UPDATE $s.workers SET seen_at = $NOW WHERE id = $1 AND $2 IS NULL),
    held AS MATERIALIZED (
        SELECT a.id, a.progress, a.begun, t.state = 3 AND t.token = a.token AS fits
        FROM unnest($3::uuid[], $4::bigint[], $5::text[], $7::boolean[]) AS a (id, token, progress, begun)
        CROSS JOIN LATERAL (SELECT t.state, t.token FROM $s.tasks t WHERE t.id = a.id FOR NO KEY UPDATE) t)
    UPDATE $s.tasks t SET lease_expires_at = $NOW + $6, check_at = least(t.check_at, $NOW + $6),
        ahead = t.ahead AND NOT (h.begun OR h.progress IS NOT NULL), progress = coalesce(h.progress, t.progress)
    FROM held h WHERE t.id = h.id AND h.fits RETURNING t.id, t.cancel";

/// Creates the rows of queues and priorities.
pub(super) const CREATE_QUEUES: &str = "
    WITH levels AS (
        INSERT INTO $s.task_levels (queue, priority) SELECT * FROM unnest($1::text[], $2::integer[])
        ON CONFLICT DO NOTHING RETURNING queue)
    INSERT INTO $s.task_queues (name) SELECT DISTINCT queue FROM levels ON CONFLICT DO NOTHING";

// --- tasks: queries and retention -----------------------------------------------------------------

pub(super) const QUEUES: &str = "
    SELECT name, pause, NULL::smallint, NULL::bigint FROM $s.task_queues
    UNION ALL SELECT queue, NULL, state, sum(delta)::bigint FROM $s.task_counts GROUP BY queue, state";

pub(super) const KEYED: &str = "
    SELECT $TASK FROM $s.task_keys k JOIN $s.tasks t ON t.id = k.id
    WHERE k.queue = $1 AND k.key = $2";

/// Archives finished tasks of a queue, or of all, that ended before `$3`: the first `$4`, with `$2`
/// only those of that state.
pub(super) const ARCHIVE: &str = "
    WITH old AS MATERIALIZED (
        SELECT t.id FROM $s.tasks t
        WHERE NOT t.archived AND t.finished_at < $3 AND ($1::text IS NULL OR t.queue = $1)
          AND ($2::smallint IS NULL OR t.state = $2)
        ORDER BY t.archived, t.finished_at LIMIT $4 FOR UPDATE SKIP LOCKED),
    put AS (
        UPDATE $s.tasks t SET archived = true FROM old o WHERE t.id = o.id RETURNING t.queue, t.state),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, -count(*) FROM put GROUP BY queue, state)
    SELECT count(*) FROM put";

pub(super) const PURGE: &str = "
    WITH old AS MATERIALIZED (
        SELECT t.id FROM (VALUES (false), (true)) AS a (archived) CROSS JOIN LATERAL (
            SELECT t.id, t.finished_at FROM $s.tasks t
            WHERE t.archived = a.archived AND t.finished_at < $3 AND ($1::text IS NULL OR t.queue = $1)
              AND ($2::smallint IS NULL OR t.state = $2)
            ORDER BY t.finished_at LIMIT $4 FOR UPDATE SKIP LOCKED) t
        ORDER BY t.finished_at, t.id LIMIT $4),
    deleted AS (
        DELETE FROM $s.tasks t USING old o WHERE t.id = o.id RETURNING t.id, t.queue, t.state, t.archived, t.key),
    keys AS (
        DELETE FROM $s.task_keys k USING deleted g
        WHERE g.key IS NOT NULL AND k.queue = g.queue AND k.key = g.key AND k.id = g.id),
    counted AS (
        INSERT INTO $s.task_counts SELECT queue, state, -count(*) FROM deleted WHERE NOT archived GROUP BY queue, state)
    SELECT count(*) FROM deleted";

/// Folds counts into their sums; rows that another session is folding are skipped.
pub(super) const FOLD: &str = "
    WITH part AS MATERIALIZED (SELECT ctid FROM $s.task_counts LIMIT 20000 FOR UPDATE SKIP LOCKED),
    deleted AS (
        DELETE FROM $s.task_counts WHERE ctid = ANY (ARRAY(SELECT ctid FROM part)) RETURNING queue, state, delta)
    INSERT INTO $s.task_counts SELECT queue, state, sum(delta) FROM deleted GROUP BY queue, state HAVING sum(delta) <> 0";

// --- documents ------------------------------------------------------------------------------------

pub(super) const DOC_GET: &str = "
    SELECT version, body FROM $s.docs WHERE key = $1 AND (until IS NULL OR until > $NOW)";

/// Writes the document if its state is as expected: version `$2`, or absent, or expired. A version
/// is never used twice.
pub(super) const DOC_PUT: &str = "
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

/// Lists documents by key: after `$1`, from the prefix `$2` on and before `$3`; with `$4` without
/// the reserved prefix.
pub(super) const DOC_LIST: &str = "
    SELECT key, version, body FROM $s.docs
    WHERE key > $1 AND key >= $2 AND ($3::text IS NULL OR key < $3) AND NOT ($4 AND key >= E'\\x01' AND key < E'\\x02')
      AND (until IS NULL OR until > $NOW)
    ORDER BY key LIMIT $5";

/// Deletes expired documents, but not before the clock has passed their version, so that the next
/// version is higher.
pub(super) const PURGE_DOCUMENTS: &str = "
    DELETE FROM $s.docs WHERE key IN (
        SELECT key FROM $s.docs WHERE until <= (SELECT $NOW) AND version < (SELECT $NOW) ORDER BY until LIMIT 1000
        FOR UPDATE SKIP LOCKED)";
