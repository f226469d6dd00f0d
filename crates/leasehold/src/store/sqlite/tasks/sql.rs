//! SQL statements. Every statement is a constant; every external value is a parameter.

/// Columns of a row, in the order in which [`codec`](super::codec) reads them; the payload follows.
macro_rules! columns {
    () => {
        "id, queue, state, priority, run_at, ready_at, key, fingerprint, lock, attempt, token, version, worker, \
         leased_at, lease_expires_at, created_at, updated_at, finished_at, archived, extra, result, prefetched, expiries, \
         runner_deadline"
    };
}
macro_rules! without_payload {
    ($rest:literal) => {
        concat!("SELECT ", columns!(), ", 'null' FROM leasehold_tasks ", $rest)
    };
}
macro_rules! with_payload {
    ($rest:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            ", coalesce(payload, (SELECT p.payload FROM leasehold_payloads p WHERE p.id = leasehold_tasks.id)) \
             FROM leasehold_tasks ",
            $rest
        )
    };
}

// --- tasks ---------------------------------------------------------------------------------------

pub(super) const INSERT: &str = "INSERT INTO leasehold_tasks (id, queue, state, priority, rank, run_at, ready_at, key, \
    fingerprint, lock, attempt, token, version, created_at, updated_at, archived, extra, payload, \
    runner_deadline) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0, 1, ?11, ?11, 0, ?12, ?13, ?14) ON CONFLICT (id) DO NOTHING";
pub(super) const INSERT_PAYLOAD: &str = "INSERT INTO leasehold_payloads (id, payload) VALUES (?, ?) \
    ON CONFLICT (id) DO UPDATE SET payload = excluded.payload";
pub(super) const DELETE_PAYLOAD: &str = "DELETE FROM leasehold_payloads WHERE id = ?";

pub(super) const LOAD: &str = without_payload!("WHERE id = ?");
pub(super) const LOAD_WITH_PAYLOAD: &str = with_payload!("WHERE id = ?");
pub(super) const EXISTS: &str = "SELECT 1 FROM leasehold_tasks WHERE id = ?";
pub(super) const KEYED: &str = with_payload!("WHERE queue = ? AND key = ?");
pub(super) const KEY_OWNER: &str =
    "SELECT id, fingerprint, state FROM leasehold_tasks WHERE queue = ? AND key = ?";
pub(super) const CLEAR_KEY: &str = "UPDATE leasehold_tasks SET key = NULL WHERE id = ?";

pub(super) const SAVE_LEASE: &str = "UPDATE leasehold_tasks SET state = ?2, attempt = ?3, token = ?4, version = ?5, \
    worker = ?6, leased_at = ?7, lease_expires_at = ?8, ttl = ?9, updated_at = ?10, extra = ?11, prefetched = ?12 \
    WHERE id = ?1";
pub(super) const SAVE_HEARTBEAT: &str =
    "UPDATE leasehold_tasks SET lease_expires_at = ?2, ttl = ?3, extra = ?4, prefetched = ?5 WHERE id = ?1";
pub(super) const SAVE_TRANSITION: &str = "UPDATE leasehold_tasks SET state = ?2, rank = ?3, run_at = ?4, ready_at = ?5, \
    attempt = ?6, token = ?7, version = ?8, lease_expires_at = ?9, updated_at = ?10, finished_at = ?11, extra = ?12, \
    result = ?13, expiries = ?14, runner_deadline = ?15 WHERE id = ?1";
pub(super) const SAVE_ADMIN_FIELDS: &str =
    "UPDATE leasehold_tasks SET priority = ?2, archived = ?3, payload = ?4 WHERE id = ?1";

// --- order of execution --------------------------------------------------------------------------

pub(super) const READY: &str =
    with_payload!("WHERE state = 2 AND queue = ? ORDER BY rank, run_at, id LIMIT ?");
pub(super) const DUE: &str =
    without_payload!("WHERE state = 0 AND queue = ? AND run_at <= ? ORDER BY run_at, id LIMIT ?");
pub(super) const ALL_DUE: &str =
    without_payload!("WHERE state = 0 AND run_at <= ? ORDER BY run_at, id LIMIT ?");
pub(super) const NEXT_DUE: &str =
    "SELECT run_at FROM leasehold_tasks WHERE state = 0 AND queue = ? ORDER BY run_at, id LIMIT 1";
/// Expired leases and expired runner deadlines, up to the limit of each; unordered.
pub(super) const EXPIRED: &str = without_payload!(
    "WHERE id IN (SELECT id FROM (SELECT id FROM leasehold_tasks \
             WHERE state = 3 AND lease_expires_at <= ?1 ORDER BY lease_expires_at, id LIMIT ?2) \
         UNION ALL SELECT id FROM (SELECT id FROM leasehold_tasks \
             WHERE runner_deadline IS NOT NULL AND state < 3 AND runner_deadline <= ?1 ORDER BY runner_deadline, id LIMIT ?2))"
);
/// Finds another task of this queue that runs with this lock or is next to run.
pub(super) const HAS_HEAD: &str = "SELECT 1 FROM leasehold_tasks WHERE lock = ? AND lock IS NOT NULL AND queue = ? \
    AND state IN (2, 3) AND id <> ?";
/// Finds the task of this queue that runs with this lock or is next to run.
pub(super) const HEAD: &str =
    without_payload!("WHERE lock = ? AND lock IS NOT NULL AND queue = ? AND state IN (2, 3)");
/// Counts the tasks of this queue that wait for this lock, up to a limit.
pub(super) const COUNT_BLOCKED: &str = "SELECT count(*) FROM (SELECT 1 FROM leasehold_tasks WHERE state = 1 AND lock = ?1 AND queue = ?2 LIMIT ?3)";
pub(super) const FIRST_BLOCKED: &str =
    without_payload!("WHERE state = 1 AND lock = ? AND queue = ? ORDER BY rank, run_at, id LIMIT 1");
pub(super) const COUNT_READY: &str = "SELECT count(*) FROM (SELECT 1 FROM leasehold_tasks WHERE state = 2 AND queue = \
    (SELECT id FROM leasehold_queues WHERE name = ?1 AND pause IS NULL) LIMIT ?2)";

pub(super) const NEXT_DUE_BY_NAME: &str = "SELECT (SELECT run_at FROM leasehold_tasks WHERE state = 0 AND queue = \
    (SELECT id FROM leasehold_queues WHERE name = ?1 AND pause IS NULL) ORDER BY run_at, id LIMIT 1)";

// --- queues and workers --------------------------------------------------------------------------

pub(super) const QUEUE_ID: &str = "SELECT id, pause IS NOT NULL FROM leasehold_queues WHERE name = ?";
pub(super) const QUEUE_NAME: &str = "SELECT name FROM leasehold_queues WHERE id = ?";
pub(super) const QUEUE_IDS: &str = "SELECT id FROM leasehold_queues";
pub(super) const NEW_QUEUE: &str = "INSERT INTO leasehold_queues (name) VALUES (?)";
pub(super) const PAUSE: &str = "UPDATE leasehold_queues SET pause = ?2 WHERE name = ?1";
pub(super) const ADD_COUNTS: &str = "UPDATE leasehold_queues SET scheduled = scheduled + ?2, blocked = blocked + ?3, \
    pending = pending + ?4, running = running + ?5, succeeded = succeeded + ?6, failed = failed + ?7, \
    aborted = aborted + ?8 WHERE id = ?1";
pub(super) const QUEUES: &str = "SELECT name, pause, scheduled, blocked, pending, running, succeeded, failed, aborted \
    FROM leasehold_queues ORDER BY name";

pub(super) const UPSERT_WORKER: &str = "INSERT INTO leasehold_workers (id, info, started_at, seen_at) VALUES (?1, ?2, ?3, ?3) \
    ON CONFLICT (id) DO UPDATE SET info = excluded.info, seen_at = excluded.seen_at";
pub(super) const TOUCH_WORKER: &str = "UPDATE leasehold_workers SET seen_at = ?2 WHERE id = ?1";
pub(super) const DELETE_WORKER: &str = "DELETE FROM leasehold_workers WHERE id = ?";
pub(super) const DELETE_DEAD_WORKERS: &str = "DELETE FROM leasehold_workers WHERE seen_at <= ?";
pub(super) const WORKERS: &str = "SELECT info, started_at, seen_at FROM leasehold_workers ORDER BY id";

// --- lists and retention -------------------------------------------------------------------------

/// Query of a list, with the same parameters for every index: upper and lower bound of the id (?1,
/// ?2), then queue, state, lock, worker, whether archived tasks are included, and the limit.
macro_rules! list {
    ($source:literal) => {
        concat!(
            "SELECT id FROM leasehold_tasks ",
            $source,
            " id < ?1 AND id >= ?2 AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR state = ?4) \
              AND (?5 IS NULL OR lock = ?5) AND (?6 IS NULL OR worker = ?6) AND (?7 OR NOT archived) \
              ORDER BY id DESC LIMIT ?8"
        )
    };
}
pub(super) const LIST: &str = list!("WHERE");
pub(super) const LIST_LOCK: &str =
    list!("INDEXED BY leasehold_tasks_lock WHERE lock IS NOT NULL AND lock = ?5 AND");
/// Lists finished tasks of one queue in one state.
pub(super) const LIST_FINISHED: &str = list!(
    "INDEXED BY leasehold_tasks_by_state WHERE state >= 4 AND archived = 0 AND queue = ?3 AND state = ?4 AND"
);
pub(super) const LIST_ARCHIVED: &str = list!(
    "INDEXED BY leasehold_tasks_by_state WHERE state >= 4 AND archived = 1 AND queue = ?3 AND state = ?4 AND"
);
/// Lists all tasks in one of the other states: efficient if there are few.
pub(super) const LIST_FEW: [&str; 4] = [
    list!("INDEXED BY leasehold_tasks_scheduled WHERE state = 0 AND"),
    list!("INDEXED BY leasehold_tasks_blocked WHERE state = 1 AND"),
    list!("INDEXED BY leasehold_tasks_ready WHERE state = 2 AND"),
    list!("INDEXED BY leasehold_tasks_running WHERE state = 3 AND"),
];
/// Finds the last id of a range of tasks that goes back from an id.
pub(super) const RANGE_END: &str =
    "SELECT id FROM leasehold_tasks WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2";
/// Finds the tasks that finished first, of a queue (?3) and in a state (?4), or of all.
pub(super) const OLDEST_FINISHED: &str = "SELECT id, queue, state, finished_at FROM leasehold_tasks \
    INDEXED BY leasehold_tasks_finished WHERE state >= 4 AND archived = ?1 AND finished_at < ?2 \
    AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR state = ?4) ORDER BY finished_at, id LIMIT ?5";
pub(super) const ARCHIVE: &str = "UPDATE leasehold_tasks SET archived = 1 WHERE id = ?";
pub(super) const DELETE: &str = "DELETE FROM leasehold_tasks WHERE id = ?";
