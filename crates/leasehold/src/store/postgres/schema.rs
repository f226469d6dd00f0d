//! Tables and their versions, created by the first process that connects.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::columns::first_row;
use super::connection::{Connector, Session, with_timeout};
use super::error::PgError;
use crate::error::{Error, Result, StoreErrorKind};

/// Migrations: each entry upgrades the schema by one version. Never change one that has been
/// released; add the next.
const MIGRATIONS: [&str; 7] = ["
    -- Properties of the store.
    CREATE TABLE $s.meta (key text PRIMARY KEY, value text NOT NULL);
    INSERT INTO $s.meta VALUES ('schema_version', '0'), ('pruned_to', '0');
    -- One row per lock, with its token. If `held` is not null, the columns contain the current or the last holder, and there
    -- are no waiters; otherwise `record` contains the whole state. Times are in microseconds since 1970. `wake_at` is never
    -- later than the next expiry of a lease or a ticket; it may be earlier, so that the fast path need not update its index.
    -- The fill factor leaves space in each page, so that rows are updated in place.
    CREATE TABLE $s.locks (
        name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL, version bigint NOT NULL, held boolean,
        lease_id uuid, holder text, shared boolean, slots integer, ttl bigint, extra text,
        acquired_at bigint, renewed_at bigint, expires_at bigint, renewals bigint,
        changed_at bigint, wake_at bigint, record text) WITH (fillfactor = 50);
    CREATE INDEX locks_wake_at ON $s.locks (wake_at) WHERE wake_at IS NOT NULL;
    -- Append only.
    CREATE TABLE $s.events (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lock text COLLATE \"C\" NOT NULL, at bigint NOT NULL,
        kind text NOT NULL, token bigint NOT NULL, lease_id uuid NOT NULL, holder text NOT NULL, shared boolean NOT NULL,
        slots integer NOT NULL, after_micros bigint NOT NULL, renewals bigint NOT NULL, rest text);
    CREATE INDEX events_of_lock ON $s.events (lock, seq);
", TASKS, TASKS_ONE_ROW, "
    -- A simple queue: `held` is null, the columns contain the holder, and this column the waiters, as in codec.rs. `record` is
    -- then a value that a release without this column cannot read: it fails, and does not treat the lock as free.
    ALTER TABLE $s.locks ADD COLUMN queue jsonb;
    -- A queue of a few dozen waiters stays in the row, uncompressed: compressing it at each change would dominate the cost.
    ALTER TABLE $s.locks SET (toast_tuple_target = 8160);
", "
    -- A long queue: one row per ticket, in the order of `place`, so that refreshing one does not write the others. The
    -- lock's `record` states that its tickets are rows. No index contains a column that a refresh changes, and the fill
    -- factor leaves space in each page.
    CREATE TABLE $s.tickets (
        lock text COLLATE \"C\" NOT NULL, lease_id uuid NOT NULL, place bigint NOT NULL,
        ends bigint NOT NULL, patience bigint NOT NULL, refreshes bigint NOT NULL, ticket text NOT NULL,
        PRIMARY KEY (lock, lease_id)) WITH (fillfactor = 50);
    -- Minimum token, above every token of a purged lock, and the time of its last increase, in microseconds since 1970.
    INSERT INTO $s.meta VALUES ('token_floor', '0'), ('token_floor_at', '0');
", TASKS_BEGUN, TASK_HEADS_PER_QUEUE];

/// Version 2: tables of tasks and documents. Times are in microseconds since 1970. States are
/// numbers: 0 scheduled, 1 blocked, 2 pending, 3 running, 4 succeeded, 5 failed, 6 aborted.
const TASKS: &str = "
    -- Columns that change while a task is processed. Rows are small, with space in each page, because every step rewrites
    -- them. No index contains the expiry time of a lease, so a heartbeat updates the row in place.
    CREATE TABLE $s.tasks (
        id uuid PRIMARY KEY, run_at bigint NOT NULL, ready_at bigint NOT NULL, token bigint NOT NULL,
        version bigint NOT NULL, updated_at bigint NOT NULL, priority integer NOT NULL, attempt integer NOT NULL,
        state smallint NOT NULL, archived boolean NOT NULL, marred boolean NOT NULL, queue text COLLATE \"C\" NOT NULL,
        lock text COLLATE \"C\", leased_at bigint, lease_expires_at bigint, finished_at bigint, worker uuid,
        progress text, cancel text)
        WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
    -- Partial indexes, each for one query: tasks that cannot run do not slow down the search for those that can.
    CREATE INDEX tasks_ready ON $s.tasks (queue, priority, ready_at, run_at, id) WHERE state = 2;
    CREATE INDEX tasks_scheduled ON $s.tasks (queue, run_at, id) WHERE state = 0;
    CREATE INDEX tasks_scheduled_locked ON $s.tasks (queue, run_at, id) WHERE state = 0 AND lock IS NOT NULL;
    CREATE INDEX tasks_running ON $s.tasks (id) WHERE state = 3;
    CREATE INDEX tasks_blocked ON $s.tasks (lock, (ready_at - priority * bigint '30000000'), run_at, id) WHERE state = 1;
    CREATE INDEX tasks_failed ON $s.tasks (id) WHERE state >= 5;
    CREATE INDEX tasks_finished ON $s.tasks (queue, archived, finished_at) WHERE finished_at IS NOT NULL;
    -- Columns that are mostly written once.
    CREATE TABLE $s.task_bodies (
        id uuid PRIMARY KEY, created_at bigint NOT NULL, fingerprint bigint NOT NULL, first_pause bigint NOT NULL,
        longest_pause bigint NOT NULL, attempts integer NOT NULL, key text COLLATE \"C\", payload text, result text,
        error text, events text)
        WITH (autovacuum_vacuum_scale_factor = 0.05);
    -- Task that a key refers to.
    CREATE TABLE $s.task_keys (
        queue text COLLATE \"C\", key text COLLATE \"C\", id uuid NOT NULL, PRIMARY KEY (queue, key));
    -- Head of a lock: the task that runs or is next to run. A transaction locks this row before it changes a task with a lock.
    CREATE TABLE $s.task_heads (lock text COLLATE \"C\" PRIMARY KEY, id uuid) WITH (fillfactor = 70);
    CREATE TABLE $s.task_queues (name text COLLATE \"C\" PRIMARY KEY, pause text);
    -- Priorities that tasks of a queue have had. `moved` counts the pending tasks that were moved to another position.
    CREATE TABLE $s.task_levels (
        queue text COLLATE \"C\", priority integer, moved bigint NOT NULL DEFAULT 0, PRIMARY KEY (queue, priority));
    -- Number of tasks, as a sum of changes, so that concurrent transactions do not conflict. Folded periodically.
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
const TASKS_ONE_ROW: &str = "
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
const TASKS_BEGUN: &str = "
    ALTER TABLE $s.tasks ADD COLUMN ahead boolean NOT NULL DEFAULT false, ADD COLUMN expiries integer NOT NULL DEFAULT 0,
        ADD COLUMN check_at bigint;
    UPDATE $s.tasks SET check_at = lease_expires_at WHERE state = 3;
    DROP INDEX $s.tasks_running;
    CREATE INDEX tasks_running ON $s.tasks (check_at, id) WHERE state = 3;
    -- The condition is written so that the planner does not use this index for a query about one queue.
    CREATE INDEX tasks_due ON $s.tasks (run_at, id) WHERE state + 0 = 0;
    DROP INDEX $s.tasks_finished;
    CREATE INDEX tasks_finished ON $s.tasks (archived, finished_at) WHERE finished_at IS NOT NULL;
";

/// Version 7: a lock has a head in each queue, a task may have a deadline of its runner, the
/// process that added it, and a task that becomes pending keeps its position. `early`: the task
/// precedes others that were pending already, so no cursor may skip it. A pending task of one queue
/// no longer blocks tasks of another: the first blocked task of each queue becomes its head.
const TASK_HEADS_PER_QUEUE: &str = "
    ALTER TABLE $s.tasks ADD COLUMN early boolean NOT NULL DEFAULT false, ADD COLUMN wanted_until bigint;
    ALTER TABLE $s.task_levels ADD COLUMN early boolean NOT NULL DEFAULT false;
    DROP INDEX $s.tasks_ready, $s.tasks_blocked;
    -- The table is kept, and with it the privileges that were granted on it.
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

/// Schema version that this release creates and supports.
pub(super) const VERSION: usize = MIGRATIONS.len();
/// Oldest supported version of the server; earlier ones are untested.
const MIN_SERVER_VERSION: i32 = 120_000;
/// Timeout for reading the schema version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for creating the tables, concurrently with other processes, or for upgrading tables with
/// many tasks.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(10);

/// State of the server before the migration.
struct ServerState {
    /// Version of the schema, if it exists.
    version: Option<usize>,
    server: i32,
    is_replica: bool,
}

/// Upgrades the tables to the newest version. Safe for concurrent starts; a role without the
/// privilege to create tables needs existing ones.
pub(super) async fn prepare(connector: &Connector, session: &Session) -> Result<()> {
    let into_error = |error: PgError| error.into_error(&connector.description);
    let state = with_timeout(VERSION_TIMEOUT, read_state(connector, session)).await.map_err(into_error)?;
    if state.server < MIN_SERVER_VERSION {
        let message = format!("{} runs PostgreSQL {}", connector.description, state.server / 10_000);
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "leasehold requires PostgreSQL 12 or newer",
        ));
    }
    if state.is_replica {
        let message = format!("{} is a read-only replica", connector.description);
        let hint =
            "connect to the primary; with several hosts in the URL add target_session_attrs=read-write";
        return Err(Error::store(StoreErrorKind::Misconfigured, message, hint));
    }
    if check_version(connector, state.version)? < VERSION {
        with_timeout(MIGRATION_TIMEOUT, migrate(connector, session)).await.map_err(into_error)?;
    }
    Ok(())
}

/// Rejects the schema of a newer release.
fn check_version(connector: &Connector, version: Option<usize>) -> Result<usize> {
    let version = version.unwrap_or(0);
    if version > VERSION {
        let message = format!(
            "{} has schema version {version} in '{}', created by a newer release of leasehold; this release supports versions up to {VERSION}",
            connector.description, connector.options.schema
        );
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "upgrade leasehold, or use another schema with schema=NAME",
        ));
    }
    Ok(version)
}

async fn read_state(connector: &Connector, session: &Session) -> Result<ServerState, PgError> {
    let settings = "current_setting('server_version_num')::integer, pg_is_in_recovery()";
    let meta = format!("(SELECT value FROM {}.meta WHERE key = 'schema_version')", connector.options.schema);
    let client = session.client();
    let rows = match client.query_typed(&format!("SELECT {meta}, {settings}"), &[]).await {
        Err(error) if is_missing(&error) => {
            client.query_typed(&format!("SELECT NULL::text, {settings}"), &[]).await?
        }
        rows => rows?,
    };
    let row = first_row(&rows)?;
    let version = row.try_get::<_, Option<&str>>(0)?.map(|version| version.parse().unwrap_or(usize::MAX));
    Ok(ServerState { version, server: row.try_get(1)?, is_replica: row.try_get(2)? })
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME))
}

/// Runs the migrations under an advisory lock that all starting processes share and that ends with
/// the transaction.
async fn migrate(connector: &Connector, session: &Session) -> Result<(), PgError> {
    let (schema, client) = (&connector.options.schema, session.client());
    session.simple_query("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0").await?;
    let lock = format!("leasehold schema {schema}");
    client
        .query_typed("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[(&lock, Type::TEXT)])
        .await?;
    // Checked again under the lock: another process may have migrated meanwhile.
    let exists = "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.meta') IS NOT NULL";
    let rows = client.query_typed(exists, &[(&schema, Type::TEXT)]).await?;
    let (has_schema, has_tables) = match rows.first() {
        Some(row) => (row.try_get(0)?, row.try_get(1)?),
        None => (false, false),
    };
    let version =
        if has_tables { check_version(connector, read_state(connector, session).await?.version)? } else { 0 };
    if !has_schema {
        // Not IF NOT EXISTS, which requires the privilege to create even if the schema exists.
        session.simple_query(&format!("CREATE SCHEMA {schema}")).await?;
    }
    for step in &MIGRATIONS[version..] {
        session.simple_query(&step.replace("$s.", &format!("{schema}."))).await?;
    }
    let set_version = format!("UPDATE {schema}.meta SET value = '{VERSION}' WHERE key = 'schema_version'");
    Ok(session.simple_query(&format!("{set_version}; COMMIT")).await?)
}
