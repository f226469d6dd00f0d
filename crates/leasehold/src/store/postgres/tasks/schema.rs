//! Tables of tasks and documents: versions 2, 3, 6 and 7 of the schema.

/// Version 2: tables of tasks and documents. Times are in microseconds since 1970. States are
/// numbers: 0 scheduled, 1 blocked, 2 pending, 3 running, 4 succeeded, 5 failed, 6 aborted.
pub(in crate::store::postgres) const SCHEMA: &str = "
    -- What changes while a task goes its way. Kept small, and with room in each page, because every step writes it anew.
    -- The end of a lease is in no index, so a sign of life changes the row where it is.
    CREATE TABLE $s.tasks (
        id uuid PRIMARY KEY, run_at bigint NOT NULL, ready_at bigint NOT NULL, token bigint NOT NULL,
        version bigint NOT NULL, updated_at bigint NOT NULL, priority integer NOT NULL, attempt integer NOT NULL,
        state smallint NOT NULL, archived boolean NOT NULL, marred boolean NOT NULL, queue text COLLATE \"C\" NOT NULL,
        lock text COLLATE \"C\", leased_at bigint, lease_expires_at bigint, finished_at bigint, worker uuid,
        progress text, cancel text)
        WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
    -- Each index has only what its question is about: nothing that cannot run is in the way of what can.
    CREATE INDEX tasks_ready ON $s.tasks (queue, priority, ready_at, run_at, id) WHERE state = 2;
    CREATE INDEX tasks_scheduled ON $s.tasks (queue, run_at, id) WHERE state = 0;
    CREATE INDEX tasks_scheduled_locked ON $s.tasks (queue, run_at, id) WHERE state = 0 AND lock IS NOT NULL;
    CREATE INDEX tasks_running ON $s.tasks (id) WHERE state = 3;
    CREATE INDEX tasks_blocked ON $s.tasks (lock, (ready_at - priority * bigint '30000000'), run_at, id) WHERE state = 1;
    CREATE INDEX tasks_failed ON $s.tasks (id) WHERE state >= 5;
    CREATE INDEX tasks_finished ON $s.tasks (queue, archived, finished_at) WHERE finished_at IS NOT NULL;
    -- What is mostly written once.
    CREATE TABLE $s.task_bodies (
        id uuid PRIMARY KEY, created_at bigint NOT NULL, fingerprint bigint NOT NULL, first_pause bigint NOT NULL,
        longest_pause bigint NOT NULL, attempts integer NOT NULL, key text COLLATE \"C\", payload text, result text,
        error text, events text)
        WITH (autovacuum_vacuum_scale_factor = 0.05);
    -- Which task a key means.
    CREATE TABLE $s.task_keys (
        queue text COLLATE \"C\", key text COLLATE \"C\", id uuid NOT NULL, PRIMARY KEY (queue, key));
    -- The one task of a lock that runs or is next to run. Whoever changes a task with a lock holds this row first.
    CREATE TABLE $s.task_heads (lock text COLLATE \"C\" PRIMARY KEY, id uuid) WITH (fillfactor = 70);
    CREATE TABLE $s.task_queues (name text COLLATE \"C\" PRIMARY KEY, pause text);
    -- The priorities that tasks of a queue have had. `moved` counts the tasks that were put in line behind others.
    CREATE TABLE $s.task_levels (
        queue text COLLATE \"C\", priority integer, moved bigint NOT NULL DEFAULT 0, PRIMARY KEY (queue, priority));
    -- How many tasks there are, as a sum of changes: those who add to it do not meet. Added up now and then.
    CREATE TABLE $s.task_counts (queue text COLLATE \"C\" NOT NULL, state smallint NOT NULL, delta bigint NOT NULL);
    CREATE TABLE $s.workers (
        id uuid PRIMARY KEY, started_at bigint NOT NULL, seen_at bigint NOT NULL, info text NOT NULL)
        WITH (fillfactor = 50);
    CREATE TABLE $s.docs (key text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, until bigint, body text NOT NULL)
        WITH (fillfactor = 70);
    CREATE INDEX docs_until ON $s.docs (until) WHERE until IS NOT NULL;
";

/// Version 3: a task is one row. Writing two rows per task costs more than rewriting the columns
/// that never change: for an update that stays on its page the server logs only what has changed,
/// and long values are stored out of line in any case. A null fingerprint means that the task was
/// added without a key.
pub(in crate::store::postgres) const ONE_ROW: &str = "
    ALTER TABLE $s.tasks ADD COLUMN created_at bigint, ADD COLUMN fingerprint bigint, ADD COLUMN first_pause bigint,
        ADD COLUMN longest_pause bigint, ADD COLUMN attempts integer, ADD COLUMN key text COLLATE \"C\",
        ADD COLUMN payload text, ADD COLUMN result text, ADD COLUMN error text, ADD COLUMN events text;
    UPDATE $s.tasks t SET created_at = b.created_at, fingerprint = b.fingerprint, first_pause = b.first_pause,
        longest_pause = b.longest_pause, attempts = b.attempts, key = b.key, payload = b.payload, result = b.result,
        error = b.error, events = b.events
    FROM $s.task_bodies b WHERE b.id = t.id;
    ALTER TABLE $s.tasks ALTER COLUMN created_at SET NOT NULL, ALTER COLUMN first_pause SET NOT NULL,
        ALTER COLUMN longest_pause SET NOT NULL, ALTER COLUMN attempts SET NOT NULL, ALTER COLUMN payload SET NOT NULL;
    DROP TABLE $s.task_bodies;
";

/// Version 6. `ahead`: the task was leased ahead, and its worker has not started it yet;
/// meaningless unless the task is leased. Tasks that an older release has leased count as started.
/// `expiries`: number of consecutive leases that expired after the start.
///
/// `check_at`: time of the next check whether the lease has expired; never later than the lease's
/// end. A heartbeat does not change `check_at`, so the row is updated in place; a check that finds
/// the lease active moves `check_at` to the lease's end. So expired leases are found from a cursor
/// on, without reading all running tasks.
///
/// Two indexes span all queues: the cost of recovery and retention does not depend on the number of
/// queues.
pub(in crate::store::postgres) const BEGUN: &str = "
    ALTER TABLE $s.tasks ADD COLUMN ahead boolean NOT NULL DEFAULT false, ADD COLUMN expiries integer NOT NULL DEFAULT 0,
        ADD COLUMN check_at bigint;
    UPDATE $s.tasks SET check_at = lease_expires_at WHERE state = 3;
    DROP INDEX $s.tasks_running;
    CREATE INDEX tasks_running ON $s.tasks (check_at, id) WHERE state = 3;
    -- The condition is written so that the planner does not take this index for a question about one queue.
    CREATE INDEX tasks_due ON $s.tasks (run_at, id) WHERE state + 0 = 0;
    DROP INDEX $s.tasks_finished;
    CREATE INDEX tasks_finished ON $s.tasks (archived, finished_at) WHERE finished_at IS NOT NULL;
";

/// Version 7: a lock has a head in each queue, a task may have a deadline of its runner, the
/// process that added it, and a task that becomes pending keeps its position. `early`: the task
/// precedes others that were pending already, so no cursor may skip it. A pending task of one queue
/// no longer blocks tasks of another: the first blocked task of each queue becomes its head.
pub(in crate::store::postgres) const HEADS_PER_QUEUE: &str = "
    ALTER TABLE $s.tasks ADD COLUMN early boolean NOT NULL DEFAULT false, ADD COLUMN wanted_until bigint;
    ALTER TABLE $s.task_levels ADD COLUMN early boolean NOT NULL DEFAULT false;
    DROP INDEX $s.tasks_ready, $s.tasks_blocked;
    -- The table stays, and with it what others were granted.
    DELETE FROM $s.task_heads;
    ALTER TABLE $s.task_heads DROP CONSTRAINT task_heads_pkey;
    ALTER TABLE $s.task_heads ADD COLUMN queue text COLLATE \"C\", ADD PRIMARY KEY (lock, queue);
    WITH first AS MATERIALIZED (
        SELECT DISTINCT ON (t.lock, t.queue) t.id FROM $s.tasks t
        WHERE t.state = 1 AND NOT EXISTS (
            SELECT FROM $s.tasks h WHERE h.lock = t.lock AND h.queue = t.queue AND h.state IN (2, 3))
        ORDER BY t.lock, t.queue, t.ready_at - t.priority * bigint '30000000', t.run_at, t.id),
    moved AS (
        UPDATE $s.tasks t SET state = 2, early = true FROM first f WHERE t.id = f.id RETURNING t.queue, t.priority),
    levels AS (
        UPDATE $s.task_levels l SET early = true
        WHERE EXISTS (SELECT FROM moved m WHERE m.queue = l.queue AND m.priority = l.priority))
    INSERT INTO $s.task_counts
    SELECT m.queue, s.state, s.sign * count(*) FROM moved m
    CROSS JOIN (VALUES (1::smallint, -1), (2::smallint, 1)) AS s (state, sign) GROUP BY m.queue, s.state, s.sign;
    INSERT INTO $s.task_heads (lock, queue, id) SELECT lock, queue, id FROM $s.tasks WHERE lock IS NOT NULL AND state IN (2, 3);
    CREATE INDEX tasks_ready ON $s.tasks (queue, priority, early, ready_at, run_at, id) WHERE state = 2;
    CREATE INDEX tasks_blocked ON $s.tasks (lock, queue, (ready_at - priority * bigint '30000000'), run_at, id)
        WHERE state = 1;
    CREATE INDEX tasks_wanted ON $s.tasks (wanted_until, id) WHERE wanted_until IS NOT NULL AND state < 3;
";
