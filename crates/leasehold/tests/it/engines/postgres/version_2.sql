CREATE SCHEMA SCHEMA_NAME;
-- Facts about the store itself.
CREATE TABLE SCHEMA_NAME.meta (key text PRIMARY KEY, value text NOT NULL);
INSERT INTO SCHEMA_NAME.meta VALUES ('schema_version', '0'), ('pruned_to', '0');
-- One row per lock, for ever, with its token. If `held` is not null, the columns say who holds the lock (or did last),
-- and nobody waits; else `record` has the whole state. Times are in microseconds since 1970. `wake_at` is never later
-- than the next end of a lease or a ticket; it may be earlier, so that the hot path need not touch its index. Room is
-- left in each page, so that a row is changed where it is.
CREATE TABLE SCHEMA_NAME.locks (
    name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL, version bigint NOT NULL, held boolean,
    lease_id uuid, holder text, shared boolean, slots integer, ttl bigint, extra text,
    acquired_at bigint, renewed_at bigint, expires_at bigint, renewals bigint,
    changed_at bigint, wake_at bigint, record text) WITH (fillfactor = 50);
CREATE INDEX locks_wake_at ON SCHEMA_NAME.locks (wake_at) WHERE wake_at IS NOT NULL;
-- Append only.
CREATE TABLE SCHEMA_NAME.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lock text COLLATE "C" NOT NULL, at bigint NOT NULL,
    kind text NOT NULL, token bigint NOT NULL, lease_id uuid NOT NULL, holder text NOT NULL, shared boolean NOT NULL,
    slots integer NOT NULL, after_micros bigint NOT NULL, renewals bigint NOT NULL, rest text);
CREATE INDEX events_of_lock ON SCHEMA_NAME.events (lock, seq);
-- What changes while a task goes its way. Kept small, and with room in each page, because every step writes it anew.
-- The end of a lease is in no index, so a sign of life changes the row where it is.
CREATE TABLE SCHEMA_NAME.tasks (
    id uuid PRIMARY KEY, run_at bigint NOT NULL, ready_at bigint NOT NULL, token bigint NOT NULL,
    version bigint NOT NULL, updated_at bigint NOT NULL, priority integer NOT NULL, attempt integer NOT NULL,
    state smallint NOT NULL, archived boolean NOT NULL, marred boolean NOT NULL, queue text COLLATE "C" NOT NULL,
    lock text COLLATE "C", leased_at bigint, lease_expires_at bigint, finished_at bigint, worker uuid,
    progress text, cancel text)
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
-- Each index has only what its question is about: nothing that cannot run is in the way of what can.
CREATE INDEX tasks_ready ON SCHEMA_NAME.tasks (queue, priority, ready_at, run_at, id) WHERE state = 2;
CREATE INDEX tasks_scheduled ON SCHEMA_NAME.tasks (queue, run_at, id) WHERE state = 0;
CREATE INDEX tasks_scheduled_locked ON SCHEMA_NAME.tasks (queue, run_at, id) WHERE state = 0 AND lock IS NOT NULL;
CREATE INDEX tasks_running ON SCHEMA_NAME.tasks (id) WHERE state = 3;
CREATE INDEX tasks_blocked ON SCHEMA_NAME.tasks (lock, (ready_at - priority * bigint '30000000'), run_at, id) WHERE state = 1;
CREATE INDEX tasks_failed ON SCHEMA_NAME.tasks (id) WHERE state >= 5;
CREATE INDEX tasks_finished ON SCHEMA_NAME.tasks (queue, archived, finished_at) WHERE finished_at IS NOT NULL;
-- What is mostly written once.
CREATE TABLE SCHEMA_NAME.task_bodies (
    id uuid PRIMARY KEY, created_at bigint NOT NULL, fingerprint bigint NOT NULL, first_pause bigint NOT NULL,
    longest_pause bigint NOT NULL, attempts integer NOT NULL, key text COLLATE "C", payload text, result text,
    error text, events text)
    WITH (autovacuum_vacuum_scale_factor = 0.05);
-- Which task a key means.
CREATE TABLE SCHEMA_NAME.task_keys (
    queue text COLLATE "C", key text COLLATE "C", id uuid NOT NULL, PRIMARY KEY (queue, key));
-- The one task of a lock that runs or is next to run. Whoever changes a task with a lock holds this row first.
CREATE TABLE SCHEMA_NAME.task_heads (lock text COLLATE "C" PRIMARY KEY, id uuid) WITH (fillfactor = 70);
CREATE TABLE SCHEMA_NAME.task_queues (name text COLLATE "C" PRIMARY KEY, pause text);
-- The priorities that tasks of a queue have had. `moved` counts the tasks that were put in line behind others.
CREATE TABLE SCHEMA_NAME.task_levels (
    queue text COLLATE "C", priority integer, moved bigint NOT NULL DEFAULT 0, PRIMARY KEY (queue, priority));
-- How many tasks there are, as a sum of changes: those who add to it do not meet. Added up now and then.
CREATE TABLE SCHEMA_NAME.task_counts (queue text COLLATE "C" NOT NULL, state smallint NOT NULL, delta bigint NOT NULL);
CREATE TABLE SCHEMA_NAME.workers (
    id uuid PRIMARY KEY, started_at bigint NOT NULL, seen_at bigint NOT NULL, info text NOT NULL)
    WITH (fillfactor = 50);
CREATE TABLE SCHEMA_NAME.docs (key text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, until bigint, body text NOT NULL)
    WITH (fillfactor = 70);
CREATE INDEX docs_until ON SCHEMA_NAME.docs (until) WHERE until IS NOT NULL;
UPDATE SCHEMA_NAME.meta SET value = '2' WHERE key = 'schema_version';
INSERT INTO SCHEMA_NAME.locks (name, token, version, held) VALUES ('old', 7, 1, false);
INSERT INTO SCHEMA_NAME.task_queues VALUES ('q', NULL);
INSERT INTO SCHEMA_NAME.task_levels VALUES ('q', 0, 0);
INSERT INTO SCHEMA_NAME.task_counts VALUES ('q', 2, 2), ('q', 5, 1);
INSERT INTO SCHEMA_NAME.task_keys VALUES ('q', 'old key', '00000000-0000-7000-8000-000000000101');
INSERT INTO SCHEMA_NAME.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, marred,
    queue, finished_at) VALUES
    ('00000000-0000-7000-8000-000000000101', 1000, 1000, 0, 1, 1000, 0, 0, 2, false, false, 'q', NULL),
    ('00000000-0000-7000-8000-000000000102', 2000, 2000, 5, 3, 2000, 0, 1, 2, false, true, 'q', NULL),
    ('00000000-0000-7000-8000-000000000103', 3000, 3000, 9, 4, 4000, 0, 5, 5, false, true, 'q', 4000);
INSERT INTO SCHEMA_NAME.task_bodies VALUES
    ('00000000-0000-7000-8000-000000000101', 1000, 77, 1000000, 2000000, 5, 'old key', '{"a":1}', NULL, NULL, NULL),
    ('00000000-0000-7000-8000-000000000102', 2000, 78, 1000000, 2000000, 5, NULL, '{"b":2}', NULL, 'it was raining', NULL),
    ('00000000-0000-7000-8000-000000000103', 3000, 79, 1000000, 2000000, 5, NULL, '{"c":3}', '{"d":4}', 'it rained again', NULL);
