//! Tables and indexes of tasks, and the effect of a restart of the machine on leases.

use rusqlite::{Connection, params};

use crate::model::Timestamp;
use crate::store::sqlite::codec::micros;

/// Version 3 of the schema. The names have a prefix because a program that enqueues tasks in its
/// own transactions has its own tables in this file.
///
/// States are numbered as in [`TaskState::ALL`](crate::model::TaskState::ALL). Each list that a
/// call needs is a partial index that contains only the relevant tasks.
pub(in crate::store::sqlite) const TABLES: &str = "
    -- Rows are never deleted. The counts exclude archived tasks.
    CREATE TABLE leasehold_queues (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, paused TEXT,
        scheduled INTEGER NOT NULL DEFAULT 0, blocked INTEGER NOT NULL DEFAULT 0,
        pending INTEGER NOT NULL DEFAULT 0, running INTEGER NOT NULL DEFAULT 0,
        succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0,
        aborted INTEGER NOT NULL DEFAULT 0);
    -- `ttl` is the last extension of the lease; `extra` is JSON with fields that most tasks do not have; a payload that
    -- is not short is in a table of its own, so that it is written once.
    CREATE TABLE leasehold_tasks (id BLOB NOT NULL PRIMARY KEY, queue INTEGER NOT NULL, state INTEGER NOT NULL,
        priority INTEGER NOT NULL, rank INTEGER NOT NULL, run_at INTEGER NOT NULL, ready_at INTEGER NOT NULL,
        key TEXT, fingerprint INTEGER NOT NULL, lock TEXT, attempt INTEGER NOT NULL, token INTEGER NOT NULL,
        version INTEGER NOT NULL, worker BLOB, leased_at INTEGER, lease_expires_at INTEGER, ttl INTEGER,
        created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, finished_at INTEGER,
        archived INTEGER NOT NULL, extra TEXT, payload TEXT, result TEXT);
    CREATE INDEX leasehold_tasks_scheduled ON leasehold_tasks (queue, run_at, id) WHERE state = 0;
    CREATE INDEX leasehold_tasks_blocked ON leasehold_tasks (lock, rank, run_at, id) WHERE state = 1;
    CREATE INDEX leasehold_tasks_ready ON leasehold_tasks (queue, rank, run_at, id) WHERE state = 2;
    CREATE INDEX leasehold_tasks_running ON leasehold_tasks (lease_expires_at, id) WHERE state = 3;
    CREATE INDEX leasehold_tasks_over ON leasehold_tasks (archived, queue, state, id) WHERE state >= 4;
    CREATE UNIQUE INDEX leasehold_tasks_head ON leasehold_tasks (lock)
        WHERE lock IS NOT NULL AND state IN (2, 3);
    CREATE UNIQUE INDEX leasehold_tasks_key ON leasehold_tasks (queue, key) WHERE key IS NOT NULL;
    CREATE INDEX leasehold_tasks_lock ON leasehold_tasks (lock, id) WHERE lock IS NOT NULL;
    CREATE TABLE leasehold_payloads (id BLOB NOT NULL PRIMARY KEY, payload TEXT NOT NULL);
    CREATE TABLE leasehold_workers (id BLOB NOT NULL PRIMARY KEY, info TEXT NOT NULL, started_at INTEGER NOT NULL,
        seen_at INTEGER NOT NULL) WITHOUT ROWID;
    -- `keep_until` is the expiry time of the document.
    CREATE TABLE leasehold_docs (key TEXT NOT NULL PRIMARY KEY, version INTEGER NOT NULL, body TEXT NOT NULL,
        keep_until INTEGER);
    CREATE INDEX leasehold_docs_until ON leasehold_docs (keep_until) WHERE keep_until IS NOT NULL;
";

/// Version 6: whether a leased task was prefetched and not started yet, and the number of
/// consecutive leases that expired after the start. Tasks leased by an older leasehold count as
/// started. Adds two indexes over all queues: due tasks and finished tasks.
pub(in crate::store::sqlite) const STARTED_TASKS: &str = "
    ALTER TABLE leasehold_tasks ADD COLUMN ahead INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leasehold_tasks ADD COLUMN expiries INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX leasehold_tasks_due ON leasehold_tasks (run_at, id) WHERE state = 0;
    CREATE INDEX leasehold_tasks_finished ON leasehold_tasks (archived, finished_at, id) WHERE state >= 4;
";

/// Version 7: a lock has a head in each queue, and a task may wait for the process that added it. A
/// pending task of one queue no longer blocks tasks of another: the first blocked task of each
/// queue becomes its head.
pub(in crate::store::sqlite) const HEAD_PER_QUEUE: &str = "
    DROP INDEX leasehold_tasks_head;
    DROP INDEX leasehold_tasks_blocked;
    ALTER TABLE leasehold_tasks ADD COLUMN wanted_until INTEGER;
    CREATE UNIQUE INDEX leasehold_tasks_head ON leasehold_tasks (lock, queue)
        WHERE lock IS NOT NULL AND state IN (2, 3);
    CREATE INDEX leasehold_tasks_blocked ON leasehold_tasks (lock, queue, rank, run_at, id) WHERE state = 1;
    CREATE INDEX leasehold_tasks_wanted ON leasehold_tasks (wanted_until, id)
        WHERE wanted_until IS NOT NULL AND state < 3;
    UPDATE leasehold_tasks SET state = 2 WHERE id IN (
        SELECT b.id FROM (
            SELECT id, lock, queue, row_number() OVER (PARTITION BY lock, queue ORDER BY rank, run_at, id) AS place
            FROM leasehold_tasks WHERE state = 1) b
        WHERE b.place = 1 AND NOT EXISTS (
            SELECT 1 FROM leasehold_tasks h
            WHERE h.lock = b.lock AND h.lock IS NOT NULL AND h.queue = b.queue AND h.state IN (2, 3)));
    UPDATE leasehold_queues SET
        blocked = (SELECT count(*) FROM leasehold_tasks t WHERE t.state = 1 AND t.queue = leasehold_queues.id),
        pending = (SELECT count(*) FROM leasehold_tasks t WHERE t.state = 2 AND t.queue = leasehold_queues.id);
";

/// Time in microseconds in which a runner whose deadline was written before a restart of the
/// machine must renew it.
const RUNNER_AFTER_RESTART: i64 = 60_000_000;

/// Adjusts times after a restart of the machine, which has set the clock again. If the clock was
/// set back:
/// - a lease would end later than it was ever extended to, and a dead worker would keep its tasks
///   until then;
/// - a dead runner would keep its task waiting until then;
/// - the `run_at` of tasks that could run already would be in the future, should they be returned.
pub(in crate::store::sqlite) fn rebase_times(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    let statements = [
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_running SET lease_expires_at = ?1 + coalesce(ttl, 0) \
         WHERE state = 3 AND lease_expires_at > ?1 + coalesce(ttl, 0)",
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_running SET run_at = ?1 WHERE state = 3 AND run_at > ?1",
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_ready SET run_at = ?1 WHERE state = 2 AND run_at > ?1",
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_blocked SET run_at = ?1 WHERE state = 1 AND run_at > ?1",
    ];
    statements.iter().try_for_each(|sql| conn.execute(sql, params![micros(now)]).map(drop))?;
    conn.execute(
        "UPDATE leasehold_tasks INDEXED BY leasehold_tasks_wanted SET wanted_until = ?1 \
         WHERE wanted_until IS NOT NULL AND state < 3 AND wanted_until > ?1",
        params![micros(now).saturating_add(RUNNER_AFTER_RESTART)],
    )
    .map(drop)
}

/// Whether any task has a lease, expired or not.
pub(in crate::store::sqlite) fn has_leased_task(conn: &Connection) -> rusqlite::Result<bool> {
    let sql =
        "SELECT EXISTS (SELECT 1 FROM leasehold_tasks INDEXED BY leasehold_tasks_running WHERE state = 3)";
    conn.query_row(sql, [], |row| row.get(0))
}
