//! Tables and their versions, created by the first process that connects.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::gate::Gate;
use super::session::{Session, within};
use super::trouble::Fail;
use crate::error::{Error, Result, StoreErrorKind};

/// Migrations: each entry upgrades the schema by one version. Never change one that has been
/// released; add the next.
const MIGRATIONS: [&str; 7] = ["
    -- Facts about the store itself.
    CREATE TABLE $s.meta (key text PRIMARY KEY, value text NOT NULL);
    INSERT INTO $s.meta VALUES ('schema_version', '0'), ('pruned_to', '0');
    -- One row per lock, for ever, with its token. If `held` is not null, the columns say who holds the lock (or did last),
    -- and nobody waits; else `record` has the whole state. Times are in microseconds since 1970. `wake_at` is never later
    -- than the next end of a lease or a ticket; it may be earlier, so that the hot path need not touch its index. Room is
    -- left in each page, so that a row is changed where it is.
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
", super::tasks::SCHEMA, super::tasks::ONE_ROW, "
    -- A plain queue: `held` is null, the columns say who holds the lock, and this who waits, each as in rows.rs. `record` is
    -- then of no use, and says so to a leasehold that does not know this column: it fails, and takes nothing for free.
    ALTER TABLE $s.locks ADD COLUMN queue jsonb;
    -- A queue of a few dozen stays in the row as it is: packing it at each change would cost more than the rest.
    ALTER TABLE $s.locks SET (toast_tuple_target = 8160);
", "
    -- A long queue: one row per ticket, in the order of `place`, so that refreshing one does not write the others. The
    -- lock's `record` says that its tickets are here. What changes while a ticket waits is in no index, and room is left in
    -- each page.
    CREATE TABLE $s.tickets (
        lock text COLLATE \"C\" NOT NULL, lease_id uuid NOT NULL, place bigint NOT NULL,
        ends bigint NOT NULL, patience bigint NOT NULL, refreshes bigint NOT NULL, ticket text NOT NULL,
        PRIMARY KEY (lock, lease_id)) WITH (fillfactor = 50);
    -- Above every token of a lock that is forgotten, and since when, in microseconds since 1970.
    INSERT INTO $s.meta VALUES ('token_floor', '0'), ('token_floor_at', '0');
", super::tasks::BEGUN, super::tasks::HEADS_PER_QUEUE];

/// Schema version that this release creates and supports.
pub(super) const NEWEST: usize = MIGRATIONS.len();
/// Oldest supported version of the server; older ones are untested.
const OLDEST_SERVER: i32 = 120_000;
/// Timeout for reading the schema version.
const PATIENCE: Duration = Duration::from_secs(5);
/// Timeout for creating the tables, concurrently with other processes, or for upgrading tables with
/// many tasks.
const MIGRATION: Duration = Duration::from_mins(10);

/// State of the server before the migration.
struct Found {
    /// Version of the schema, if it exists.
    version: Option<usize>,
    server: i32,
    is_replica: bool,
}

/// Upgrades the tables to the newest version. Safe for concurrent starts; a role without the
/// privilege to create tables needs existing ones.
pub(super) async fn prepare(gate: &Gate, session: &Session) -> Result<()> {
    let explain = |fail: Fail| fail.explain(&gate.place);
    let found = within(PATIENCE, look(gate, session)).await.map_err(explain)?;
    if found.server < OLDEST_SERVER {
        let message = format!("{} runs PostgreSQL {}", gate.place, found.server / 10_000);
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "leasehold wants PostgreSQL 12 or newer",
        ));
    }
    if found.is_replica {
        let message = format!("{} is a replica: it cannot be written", gate.place);
        let hint = "name the primary; with several hosts in the URL add target_session_attrs=read-write";
        return Err(Error::store(StoreErrorKind::Misconfigured, message, hint));
    }
    if check(gate, found.version)? < NEWEST {
        within(MIGRATION, migrate(gate, session)).await.map_err(explain)?;
    }
    Ok(())
}

/// Rejects the schema of a newer release.
fn check(gate: &Gate, version: Option<usize>) -> Result<usize> {
    let version = version.unwrap_or(0);
    if version > NEWEST {
        let message = format!(
            "{} has schema version {version} in '{}', made by a newer leasehold; this one knows {NEWEST}",
            gate.place, gate.options.schema
        );
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            message,
            "upgrade leasehold, or name another schema=…",
        ));
    }
    Ok(version)
}

async fn look(gate: &Gate, session: &Session) -> Result<Found, Fail> {
    let facts = "current_setting('server_version_num')::integer, pg_is_in_recovery()";
    let meta = format!("(SELECT value FROM {}.meta WHERE key = 'schema_version')", gate.options.schema);
    let client = session.client();
    let rows = match client.query_typed(&format!("SELECT {meta}, {facts}"), &[]).await {
        Err(error) if is_missing(&error) => {
            client.query_typed(&format!("SELECT NULL::text, {facts}"), &[]).await?
        }
        rows => rows?,
    };
    let row = rows.first().ok_or_else(|| Fail::Unreadable("a SELECT without FROM gave nothing".into()))?;
    let version = row.try_get::<_, Option<&str>>(0)?.map(|version| version.parse().unwrap_or(usize::MAX));
    Ok(Found { version, server: row.try_get(1)?, is_replica: row.try_get(2)? })
}

fn is_missing(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME))
}

/// Runs the migrations under an advisory lock that all starting processes share and that ends with
/// the transaction.
async fn migrate(gate: &Gate, session: &Session) -> Result<(), Fail> {
    let (schema, client) = (&gate.options.schema, session.client());
    session.say("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0").await?;
    let lock = format!("leasehold schema {schema}");
    client
        .query_typed("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[(&lock, Type::TEXT)])
        .await?;
    // Checked again under the lock: another process may have migrated meanwhile.
    let there = "SELECT to_regnamespace($1) IS NOT NULL, to_regclass($1 || '.meta') IS NOT NULL";
    let rows = client.query_typed(there, &[(&schema, Type::TEXT)]).await?;
    let (has_schema, has_tables) = match rows.first() {
        Some(row) => (row.try_get(0)?, row.try_get(1)?),
        None => (false, false),
    };
    let version = if has_tables { check(gate, look(gate, session).await?.version)? } else { 0 };
    if !has_schema {
        // Not IF NOT EXISTS, which requires the privilege to create even if the schema exists.
        session.say(&format!("CREATE SCHEMA {schema}")).await?;
    }
    for step in &MIGRATIONS[version..] {
        session.say(&step.replace("$s.", &format!("{schema}."))).await?;
    }
    let done = format!("UPDATE {schema}.meta SET value = '{NEWEST}' WHERE key = 'schema_version'");
    Ok(session.say(&format!("{done}; COMMIT")).await?)
}
