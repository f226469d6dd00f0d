//! Tables and their versions, created by the first process that connects.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::columns::first_row;
use super::connection::{Connector, Session, with_timeout};
use super::error::PgError;
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::BootInstant;

/// Migrations: each entry upgrades the schema by one version. Never change one that has been
/// released; add the next.
const MIGRATIONS: [&str; 3] = [VERSION_1, VERSION_2, VERSION_3];

/// Archiving and purging of one queue must not read the finished tasks of the others. Without a queue they jump
/// from one queue to the next that has finished tasks. A settlement still writes one entry. The old index is
/// dropped first: if other sessions use the table, this fails before the new one is built. In the other order the
/// statements of workers would wait as long, because building an index locks out all writes; and the transaction
/// would then wait for sessions that wait for it, until the server ends it as a deadlock and the index is lost.
const VERSION_3: &str = "DROP INDEX $s.tasks_finished;
    CREATE INDEX tasks_finished ON $s.tasks (queue, state, archived, finished_at, id) WHERE finished_at IS NOT NULL;";

/// timeout: maximum run time of one attempt, in microseconds.
const VERSION_2: &str = "ALTER TABLE $s.tasks ADD COLUMN timeout bigint;";

/// Times are in microseconds since 1970.
const VERSION_1: &str = "
    -- Properties of the store. `min_token` is above every token of a purged lock; `min_token_raised_at` is
    -- the time of its last increase. `pruned_to` is the number of the last event that was deleted.
    CREATE TABLE $s.meta (key text PRIMARY KEY, value text NOT NULL);
    INSERT INTO $s.meta VALUES
        ('schema_version', '0'), ('pruned_to', '0'), ('min_token', '0'), ('min_token_raised_at', '0');

    -- One row per lock, with its token. `layout` determines which columns contain the state, and what SQL can
    -- decide:
    --   0 free, 1 held: the columns contain the last or the current lease, and there are no waiters;
    --   2 queue: the columns contain the lease, and `queue` the waiters;
    --   3 ticket rows: `record` contains the state without the waiters, which are rows of `tickets`;
    --   4 record: `record` contains the state;
    --   null in a row of version 0: the lock was purged while a statement waited for the row, and is free.
    -- `wake_at` is never later than the next expiry of a lease or a ticket; it may be earlier, so that the
    -- fast path need not update its index. `extra` is JSON with the fields that most requests do not have.
    -- The fill factor leaves space in each page, so that rows are updated in place. A queue of a few dozen
    -- waiters stays in the row, uncompressed: compressing it at each change would dominate the cost.
    CREATE TABLE $s.locks (
        name text COLLATE \"C\" PRIMARY KEY, token bigint NOT NULL, version bigint NOT NULL, layout smallint,
        lease_id uuid, holder text, shared boolean, slots integer, ttl bigint, extra text,
        acquired_at bigint, renewed_at bigint, expires_at bigint, renewals bigint,
        changed_at bigint, wake_at bigint, record text, queue jsonb)
        WITH (fillfactor = 50, toast_tuple_target = 8160);
    CREATE INDEX locks_wake_at ON $s.locks (wake_at) WHERE wake_at IS NOT NULL;
    -- One row per ticket of a long queue, in the order of `position`, so that refreshing one does not write
    -- the others. No index contains a column that a refresh changes.
    CREATE TABLE $s.tickets (
        lock text COLLATE \"C\" NOT NULL, lease_id uuid NOT NULL, position bigint NOT NULL,
        expires_at bigint NOT NULL, ticket_ttl bigint NOT NULL, refreshes bigint NOT NULL,
        ticket text NOT NULL, PRIMARY KEY (lock, lease_id)) WITH (fillfactor = 50);
    -- History of locks, append only. `extra` is JSON with the fields that most events do not have.
    CREATE TABLE $s.events (
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, lock text COLLATE \"C\" NOT NULL,
        at bigint NOT NULL, kind text NOT NULL, token bigint NOT NULL, lease_id uuid NOT NULL,
        holder text NOT NULL, shared boolean NOT NULL, slots integer NOT NULL, after_micros bigint NOT NULL,
        renewals bigint NOT NULL, extra text);
    CREATE INDEX events_of_lock ON $s.events (lock, seq);

    -- One row per task: for an update that stays on its page the server logs only what has changed, and long
    -- values are stored out of line. Columns that change while a task is processed come first. No index
    -- contains the expiry time of a lease, so a heartbeat updates the row in place.
    --
    -- state: 0 scheduled, 1 blocked, 2 pending, 3 running, 4 succeeded, 5 failed, 6 aborted.
    -- prefetched: the worker has not started the task yet; meaningless unless the task is leased.
    -- expiries: number of consecutive leases that expired after the start.
    -- check_at: time of the next check whether the lease has expired; never later than the lease's end. A
    --   heartbeat does not change it; a check that finds the lease active moves it to the lease's end. So
    --   expired leases are found from a cursor on, without reading all running tasks.
    -- early: the task became pending before others that were pending already, so no cursor may skip it.
    -- runner_deadline: the process that added the task and waits to run it is dead if this time passes.
    -- fingerprint: null if the task was added without a key.
    CREATE TABLE $s.tasks (
        id uuid PRIMARY KEY, run_at bigint NOT NULL, ready_at bigint NOT NULL, token bigint NOT NULL,
        version bigint NOT NULL, updated_at bigint NOT NULL, priority integer NOT NULL,
        attempt integer NOT NULL, state smallint NOT NULL, archived boolean NOT NULL,
        queue text COLLATE \"C\" NOT NULL, lock text COLLATE \"C\", leased_at bigint, lease_expires_at bigint,
        finished_at bigint, worker uuid, progress text, cancel text, created_at bigint NOT NULL,
        fingerprint bigint, initial_delay bigint NOT NULL, max_delay bigint NOT NULL,
        attempts integer NOT NULL, key text COLLATE \"C\", payload text NOT NULL, result text, error text, events text,
        prefetched boolean NOT NULL DEFAULT false, expiries integer NOT NULL DEFAULT 0, check_at bigint,
        early boolean NOT NULL DEFAULT false, runner_deadline bigint)
        WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.05);
    -- Partial indexes, each for one query: tasks that cannot run do not slow down the search for those that
    -- can. Recovery uses indexes over all queues, so that its cost does not depend on the number of queues.
    CREATE INDEX tasks_scheduled ON $s.tasks (queue, run_at, id) WHERE state = 0;
    CREATE INDEX tasks_scheduled_locked ON $s.tasks (queue, run_at, id) WHERE state = 0 AND lock IS NOT NULL;
    CREATE INDEX tasks_failed ON $s.tasks (id) WHERE state >= 5;
    CREATE INDEX tasks_running ON $s.tasks (check_at, id) WHERE state = 3;
    -- The condition is written so that the planner does not use this index for a query about one queue.
    CREATE INDEX tasks_due ON $s.tasks (run_at, id) WHERE state + 0 = 0;
    CREATE INDEX tasks_finished ON $s.tasks (archived, finished_at, id) WHERE finished_at IS NOT NULL;
    CREATE INDEX tasks_ready ON $s.tasks (queue, priority, early, ready_at, run_at, id) WHERE state = 2;
    CREATE INDEX tasks_blocked
        ON $s.tasks (lock, queue, (ready_at - priority * bigint '30000000'), run_at, id) WHERE state = 1;
    CREATE INDEX tasks_runner_deadline ON $s.tasks (runner_deadline, id)
        WHERE runner_deadline IS NOT NULL AND state < 3;
    -- Task that a key refers to.
    CREATE TABLE $s.task_keys (
        queue text COLLATE \"C\", key text COLLATE \"C\", id uuid NOT NULL, PRIMARY KEY (queue, key));
    -- Head of each chain, the tasks with the same lock in the same queue: the task that runs or is next to
    -- run. A transaction locks this row before it changes a task of the chain.
    CREATE TABLE $s.lock_owners (
        lock text COLLATE \"C\", queue text COLLATE \"C\", id uuid, PRIMARY KEY (lock, queue))
        WITH (fillfactor = 70);
    CREATE TABLE $s.task_queues (name text COLLATE \"C\" PRIMARY KEY, pause text);
    -- Priorities that tasks of a queue have had. `generation` increases when a pending task is moved to
    -- another position of this priority: a cursor is valid for one generation. `has_early`: a task of this
    -- priority has been `early`.
    CREATE TABLE $s.queue_priorities (
        queue text COLLATE \"C\", priority integer, generation bigint NOT NULL DEFAULT 0,
        has_early boolean NOT NULL DEFAULT false, PRIMARY KEY (queue, priority));
    -- Number of tasks, as a sum of changes, so that concurrent transactions do not conflict. Folded
    -- periodically.
    CREATE TABLE $s.task_counts (
        queue text COLLATE \"C\" NOT NULL, state smallint NOT NULL, delta bigint NOT NULL);
    CREATE TABLE $s.workers (
        id uuid PRIMARY KEY, started_at bigint NOT NULL, seen_at bigint NOT NULL, info text NOT NULL)
        WITH (fillfactor = 50);

    CREATE TABLE $s.docs (
        key text COLLATE \"C\" PRIMARY KEY, version bigint NOT NULL, expires_at bigint, body text NOT NULL)
        WITH (fillfactor = 70);
    CREATE INDEX docs_expires_at ON $s.docs (expires_at) WHERE expires_at IS NOT NULL;
";

/// Schema version that this release creates and supports.
pub(super) const VERSION: usize = MIGRATIONS.len();
/// Oldest supported version of the server; earlier ones are untested.
const MIN_SERVER_VERSION: i32 = 120_000;
/// Timeout for reading the schema version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for creating the tables, concurrently with other processes, or for upgrading tables with
/// many rows.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(10);
/// Maximum time that an upgrade waits for other sessions to end their use of the tables.
const IN_USE_TIMEOUT: Duration = Duration::from_mins(5);
/// Start of a migration. `lock_timeout` does not apply to waiting for the migration of another process.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 0; \
    SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = '1min'";
/// Limits the time that an attempt waits for a table that other sessions use: every other statement on that
/// table waits behind it, for up to 2 s. Longer than `deadlock_timeout` (1 s by default), after which the server
/// ends an autovacuum that holds the table.
const SET_LOCK_TIMEOUT: &str = "SELECT set_config('lock_timeout', (least(setting::integer, 1300) + 200)::text, true) \
    FROM pg_settings WHERE name = 'deadlock_timeout'";
/// Pause after an attempt that has failed because other sessions use the tables. The statements that waited
/// behind it are executed meanwhile.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

/// Hint for a server that cannot be written.
const READ_ONLY_HINT: &str =
    "connect to the primary; with several hosts in the URL add target_session_attrs=read-write";

struct ServerState {
    version: Option<usize>,
    server: i32,
    is_replica: bool,
    events: i64,
}

/// State of the tables before an upgrade.
#[derive(Debug, Clone, Copy)]
pub(super) struct SchemaState {
    /// Whether the tables have the newest version.
    is_current: bool,
    /// Number of events in the history, at most; an estimate if the role may not read the sequence.
    pub(super) events: i64,
}

/// Checks that this release supports the server and the version of the tables.
pub(super) async fn check(connector: &Connector, session: &Session) -> Result<SchemaState> {
    let newest = MIGRATIONS.len() + connector.options.next_migrations.len();
    let state = with_timeout(VERSION_TIMEOUT, read_state(connector, session)).await;
    let state = connector.map_error(state)?;
    if state.server < MIN_SERVER_VERSION {
        let problem = format!("runs PostgreSQL {}", state.server / 10_000);
        return Err(misconfigured(connector, &problem, "leasehold requires PostgreSQL 12 or newer"));
    }
    if state.is_replica {
        return Err(misconfigured(connector, "is a read-only replica", READ_ONLY_HINT));
    }
    let is_current = check_version(connector, state.version, newest)? == newest;
    Ok(SchemaState { is_current, events: state.events })
}

/// Upgrades outdated tables to the newest version. Safe for concurrent starts; a role without the
/// privilege to create tables needs existing ones.
pub(super) async fn upgrade(connector: &Connector, session: &Session, state: SchemaState) -> Result<()> {
    if state.is_current {
        return Ok(());
    }
    let migrations = [MIGRATIONS.as_slice(), connector.options.next_migrations].concat();
    match with_timeout(MIGRATION_TIMEOUT, migrate(connector, session, &migrations)).await {
        Err(PgError::Driver(error)) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => {
            Err(misconfigured(connector, "cannot be written: it is read-only", READ_ONLY_HINT).because(error))
        }
        migrated => connector.map_error(migrated),
    }
}

/// Rejects a schema above version `newest`, which a newer release has created.
fn check_version(connector: &Connector, version: Option<usize>, newest: usize) -> Result<usize> {
    let version = version.unwrap_or(0);
    if version > newest {
        let problem = format!(
            "has schema version {version} in '{}', created by a newer release of leasehold; this release supports versions up to {newest}",
            connector.options.schema
        );
        let hint = "upgrade leasehold, or use another schema with schema=NAME";
        return Err(misconfigured(connector, &problem, hint));
    }
    Ok(version)
}

fn misconfigured(connector: &Connector, problem: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, format!("{} {problem}", connector.description), hint)
}

async fn read_state(connector: &Connector, session: &Session) -> Result<ServerState, PgError> {
    let settings = "current_setting('server_version_num')::integer, pg_is_in_recovery()";
    let meta = format!("(SELECT value FROM {}.meta WHERE key = 'schema_version')", connector.options.schema);
    // Not from the events themselves: that would wait for a session that has locked their table.
    let schema = &connector.options.schema;
    let pruned_to = format!("(SELECT value::bigint FROM {schema}.meta WHERE key = 'pruned_to')");
    // `last_value` is null for a role without privileges on the sequence, which adds events nevertheless.
    let events = format!(
        "coalesce((SELECT last_value - {pruned_to} FROM pg_sequences
                   WHERE schemaname = '{schema}' AND sequencename = 'events_seq_seq'),
                  (SELECT c.reltuples::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = '{schema}' AND c.relname = 'events'))"
    );
    let client = &session.client;
    let rows = match client.query_typed(&format!("SELECT {meta}, {settings}, {events}"), &[]).await {
        Err(error) if is_missing(&error) => {
            client.query_typed(&format!("SELECT NULL::text, {settings}, NULL::bigint"), &[]).await?
        }
        rows => rows?,
    };
    let row = first_row(&rows)?;
    let version = row.try_get::<_, Option<&str>>(0)?.map(|version| version.parse().unwrap_or(usize::MAX));
    let events = row.try_get::<_, Option<i64>>(3)?.unwrap_or(0);
    Ok(ServerState { version, server: row.try_get(1)?, is_replica: row.try_get(2)?, events })
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME))
}

/// Runs the migrations under an advisory lock that all starting processes share and that ends with
/// the transaction. If other sessions use the tables, all migrations are rolled back and tried again later,
/// so that no table stays locked meanwhile.
async fn migrate(connector: &Connector, session: &Session, migrations: &[&str]) -> Result<(), PgError> {
    let (schema, client) = (&connector.options.schema, &session.client);
    let give_up = BootInstant::now().plus(IN_USE_TIMEOUT);
    session.simple_query(BEGIN).await?;
    let lock = format!("leasehold schema {schema}");
    client
        .query_typed("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[(&lock, Type::TEXT)])
        .await?;
    // Checked again under the lock: another process may have migrated meanwhile.
    let exists = "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.meta') IS NOT NULL";
    let rows = client.query_typed(exists, &[(&schema, Type::TEXT)]).await?;
    let row = first_row(&rows)?;
    let (has_schema, has_tables): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
    let version = if has_tables { read_state(connector, session).await?.version } else { None };
    let version = check_version(connector, version, migrations.len())?;
    // Not IF NOT EXISTS, which requires the privilege to create even if the schema exists.
    let create = (!has_schema).then(|| format!("CREATE SCHEMA {schema}"));
    let outstanding = migrations[version..].iter().map(|sql| sql.replace("$s.", &format!("{schema}.")));
    let newest = migrations.len();
    let set_version = format!("UPDATE {schema}.meta SET value = '{newest}' WHERE key = 'schema_version'");
    let all: Vec<String> = create.into_iter().chain(outstanding).chain([set_version]).collect();
    let upgrade = format!("{SET_LOCK_TIMEOUT}; SAVEPOINT upgrade; {}; COMMIT", all.join("; "));
    let mut is_reported = false;
    loop {
        match session.simple_query(&upgrade).await.map_err(PgError::from) {
            Err(error) if error.is_lock_timeout() || error.is_deadlock() => {}
            upgraded => return upgraded,
        }
        session.simple_query("ROLLBACK TO SAVEPOINT upgrade; RELEASE SAVEPOINT upgrade").await?;
        let users = table_users(connector, session).await?;
        if BootInstant::now() >= give_up {
            return Err(in_use(connector, &users).into());
        }
        if !std::mem::replace(&mut is_reported, true) {
            tracing::warn!(%users, "the upgrade of leasehold's tables waits for other sessions that use them");
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Returns the sessions that use the tables, those with the longest transactions first.
async fn table_users(connector: &Connector, session: &Session) -> Result<String, PgError> {
    let schema = &connector.options.schema;
    let sql = "SELECT coalesce(string_agg(u.name, ', '), 'none at present') FROM (
            SELECT format('process %s (%s)', a.pid, coalesce(nullif(a.application_name, ''), a.usename, a.backend_type)) AS name
            FROM pg_stat_activity a
            WHERE a.pid <> pg_backend_pid() AND a.datname = current_database() AND a.pid IN (
                SELECT l.pid FROM pg_locks l, pg_class c, pg_namespace n
                WHERE l.granted AND c.oid = l.relation AND n.oid = c.relnamespace AND n.nspname = $1)
            ORDER BY a.xact_start LIMIT 5) u";
    let rows = session.client.query_typed(sql, &[(&schema, Type::TEXT)]).await?;
    Ok(first_row(&rows)?.try_get(0)?)
}

fn in_use(connector: &Connector, users: &str) -> Error {
    let Connector { description, options, .. } = connector;
    let message = format!(
        "{description}: other sessions use the tables in '{}', which must be upgraded: {users}",
        options.schema
    );
    let hint = "end their transactions, or wait until they have ended, and start leasehold again; SELECT * FROM \
                pg_stat_activity shows them";
    Error::store(StoreErrorKind::Unavailable, message, hint)
}

#[cfg(test)]
mod tests {
    use super::super::sql::fill;
    use super::*;

    /// The server reads the first blocked task of a lock from the index only if the expressions are the same.
    #[test]
    fn the_index_of_blocked_tasks_has_the_order_of_the_rank() {
        let rank = fill("$RANK", "s").replace("t.", "");
        assert!(MIGRATIONS.iter().any(|migration| migration.contains(&format!("({rank})"))), "{rank}");
    }
}
