//! SQL statements. Every statement is a constant; every external value is a parameter.

/// Columns of a row, in the order in which [`codec`](super::codec) reads them; the payload follows.
macro_rules! columns {
    () => {
        "id, queue, state, priority, run_at, ready_at, key, fingerprint, lock, attempt, token, version, worker, \
         leased_at, lease_expires_at, created_at, updated_at, finished_at, archived, extra, result, prefetched, expiries, \
         runner_deadline, rowid"
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

macro_rules! insert {
    ($rows:ident, $conflict:literal) => {
        concat!(
            "INSERT INTO leasehold_tasks (id, queue, state, priority, list, sort, tie, run_at, ready_at, key, fingerprint, \
             lock, created_at, updated_at, extra, payload, runner_deadline, attempt, token, version, archived) VALUES ",
            $rows!(),
            $conflict
        )
    };
}
/// Number of parameters of one row.
pub(super) const ROW_VALUES: usize = 17;
macro_rules! one_row {
    () => {
        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 1, 0)"
    };
}
macro_rules! four_rows {
    () => {
        concat!(one_row!(), ", ", one_row!(), ", ", one_row!(), ", ", one_row!())
    };
}
macro_rules! twelve_rows {
    () => {
        concat!(four_rows!(), ", ", four_rows!(), ", ", four_rows!())
    };
}
/// Inserts a row, unless one with its id exists.
pub(super) const INSERT: &str = insert!(one_row, " ON CONFLICT (id) DO NOTHING");
/// Number of rows of [`INSERT_MANY`].
pub(super) const MANY: usize = 12;
/// Inserts [`MANY`] rows; fails, without any change, if one of them exists.
pub(super) const INSERT_MANY: &str = insert!(twelve_rows, "");
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
    worker = ?6, leased_at = ?7, lease_expires_at = ?8, ttl = ?9, updated_at = ?10, extra = ?11, prefetched = ?12, \
    list = ?13, sort = ?14, tie = ?15 WHERE rowid = ?1";
pub(super) const SAVE_HEARTBEAT: &str = "UPDATE leasehold_tasks SET lease_expires_at = ?2, ttl = ?3, extra = ?4, \
    prefetched = ?5, list = ?6, sort = ?7, tie = ?8 WHERE rowid = ?1";
pub(super) const SAVE_TRANSITION: &str = "UPDATE leasehold_tasks SET state = ?2, run_at = ?3, ready_at = ?4, \
    attempt = ?5, token = ?6, version = ?7, lease_expires_at = ?8, updated_at = ?9, finished_at = ?10, extra = ?11, \
    result = ?12, expiries = ?13, runner_deadline = ?14, list = ?15, sort = ?16, tie = ?17 WHERE rowid = ?1";
pub(super) const SAVE_ADMIN_FIELDS: &str =
    "UPDATE leasehold_tasks SET priority = ?2, archived = ?3, payload = ?4 WHERE rowid = ?1";

// --- order of execution --------------------------------------------------------------------------

/// Finds the first tasks of a list; `codec::Place` has the lists.
pub(super) const READY: &str = with_payload!("WHERE list = ? ORDER BY sort, tie, id LIMIT ?");
pub(super) const DUE: &str = without_payload!("WHERE list = ? AND sort <= ? ORDER BY sort, tie, id LIMIT ?");
pub(super) const ALL_DUE: &str = without_payload!(
    "INDEXED BY leasehold_tasks_due WHERE state = 0 AND run_at <= ? ORDER BY run_at, id LIMIT ?"
);
pub(super) const NEXT_DUE: &str =
    "SELECT sort FROM leasehold_tasks WHERE list = ? ORDER BY sort, tie, id LIMIT 1";
/// Expired leases and expired runner deadlines, up to the limit of each; unordered.
pub(super) const EXPIRED: &str = without_payload!(
    "WHERE id IN (SELECT id FROM (SELECT id FROM leasehold_tasks \
             WHERE list = 0 AND sort <= ?1 ORDER BY sort, tie, id LIMIT ?2) \
         UNION ALL SELECT id FROM (SELECT id FROM leasehold_tasks \
             WHERE runner_deadline IS NOT NULL AND state < 3 AND runner_deadline <= ?1 ORDER BY runner_deadline, id LIMIT ?2))"
);
/// Finds another task of this queue that runs with this lock or is next to run.
pub(super) const HAS_HEAD: &str = "SELECT 1 FROM leasehold_tasks WHERE lock = ? AND lock IS NOT NULL AND queue = ? \
    AND state IN (2, 3) AND id <> ?";
/// Finds the task of this queue that runs with this lock or is next to run.
pub(super) const HEAD: &str =
    without_payload!("WHERE lock = ? AND lock IS NOT NULL AND queue = ? AND state IN (2, 3)");
/// Counts the tasks of a list, up to a limit.
pub(super) const COUNT_BLOCKED: &str =
    "SELECT count(*) FROM (SELECT 1 FROM leasehold_tasks WHERE list = ?1 LIMIT ?2)";
pub(super) const FIRST_BLOCKED: &str = without_payload!("WHERE list = ? ORDER BY sort, tie, id LIMIT 1");
pub(super) const COUNT_READY: &str = "SELECT count(*) FROM (SELECT 1 FROM leasehold_tasks WHERE list = \
    (SELECT +id FROM leasehold_queues WHERE name = ?1 AND pause IS NULL) LIMIT ?2)";

pub(super) const NEXT_DUE_BY_NAME: &str = "SELECT (SELECT sort FROM leasehold_tasks WHERE list = \
    (SELECT -8 - id FROM leasehold_queues WHERE name = ?1 AND pause IS NULL) ORDER BY sort, tie, id LIMIT 1)";

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
/// Lists tasks of one queue that failed or were aborted.
pub(super) const LIST_UNSUCCESSFUL: &str = list!(
    "INDEXED BY leasehold_tasks_by_state WHERE state >= 5 AND archived = 0 AND queue = ?3 AND state = ?4 AND"
);
pub(super) const LIST_ARCHIVED: &str = list!(
    "INDEXED BY leasehold_tasks_by_state WHERE state >= 5 AND archived = 1 AND queue = ?3 AND state = ?4 AND"
);
/// Lists the tasks of all queues in one of the other states: efficient if there are few.
pub(super) const LIST_FEW: [&str; 4] = [
    list!("INDEXED BY leasehold_tasks_list WHERE list < -8 AND"),
    list!("INDEXED BY leasehold_tasks_list WHERE list >= '' AND list < x'' AND"),
    list!("INDEXED BY leasehold_tasks_list WHERE list > 0 AND list < '' AND"),
    list!("INDEXED BY leasehold_tasks_list WHERE list = 0 AND"),
];
/// Lists the tasks of one queue in one of these states: efficient if the queue has few of them.
pub(super) const LIST_FEW_OF_QUEUE: [&str; 4] = [
    list!("INDEXED BY leasehold_tasks_list WHERE list = -8 - ?3 AND"),
    list!("INDEXED BY leasehold_tasks_list WHERE list >= (?3 || ' ') AND list < (?3 || '!') AND"),
    list!("INDEXED BY leasehold_tasks_list WHERE list = ?3 AND"),
    list!("INDEXED BY leasehold_tasks_list WHERE list = 0 AND"),
];
/// Finds the last id of a range of tasks that goes back from an id.
pub(super) const RANGE_END: &str =
    "SELECT id FROM leasehold_tasks WHERE id < ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2";
/// Reads a list of finished tasks (?1) in the order of their ends, before a time (?2) and after an entry
/// (?3, ?4).
pub(super) const FINISHED: &str = "SELECT id, queue, state, sort FROM leasehold_tasks \
    INDEXED BY leasehold_tasks_list WHERE list = ?1 AND sort < ?2 AND (sort, id) > (?3, ?4) \
    ORDER BY sort, tie, id LIMIT ?5";
/// Archives a task that is still where [`FINISHED`] found it.
pub(super) const ARCHIVE: &str = "UPDATE leasehold_tasks SET archived = 1, list = -2 \
    WHERE id = ?1 AND list = ?2 AND sort = ?3 AND state = ?4";
/// Deletes a task that is still where [`FINISHED`] found it.
pub(super) const DELETE: &str =
    "DELETE FROM leasehold_tasks WHERE id = ?1 AND list = ?2 AND sort = ?3 AND state = ?4";
