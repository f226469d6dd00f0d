//! Statements of a session: their templates and the types of their parameters. The schema's name,
//! lists of columns and the time are filled in; names and texts are parameters. Each template is in the
//! file that executes it; the numbers in those on tasks are states of tasks, see `schema.rs`.
//!
//! Fast-path statements on tasks update rows that were found and locked by their `ctid` (`row_id`),
//! which saves an index lookup for each. A row that another session changed between the read and the
//! row lock has another `ctid` and is left out: a lease finds it the next time, and a settlement of it
//! takes the slow path. Heartbeats use the id, because a lease that is held must not be reported as
//! lost.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio_postgres::types::Type;

use super::connection::IN_TIME;
use crate::model::{Priority, TaskTable};
use crate::store::support::mutex::lock;

/// Server's time in µs, read when this is evaluated; in tests, the time that is sent as `$now`.
const NOW_MICROS: &str = "coalesce($now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Columns of a lock's row, in the order in which `locks/codec.rs` reads them.
const LOCK: &str =
    "l.name, l.token, l.version, l.layout, l.lease_id, $LEASE, l.wake_at, l.record, l.queue::text";

/// Columns of a lease without its id and token, in the order in which `locks/codec.rs` reads them.
const LEASE: &str =
    "l.holder, l.shared, l.slots, l.ttl, l.extra, l.acquired_at, l.renewed_at, l.expires_at, l.renewals";

/// Columns of an event's row, in the order in which `history.rs` reads them.
const EVENT: &str = "e.seq, e.lock, e.at, e.kind, e.token, e.lease_id, e.holder, e.shared, e.slots, e.after_micros, \
                     e.renewals, e.extra";

/// Columns of a task, in the order in which `tasks/codec.rs` reads them. `$BRIEF_TASK` has none of the payload,
/// which is large and which most rules do not read.
const TASK: &str = "t.id, t.queue, t.state, t.priority, t.run_at, t.ready_at, t.lock, t.attempt, t.token, t.version, \
                    t.worker, t.leased_at, t.lease_expires_at, t.progress, t.cancel, t.updated_at, t.finished_at, \
                    t.archived, t.payload, t.result, t.error, t.events, t.key, t.fingerprint, t.attempts, \
                    t.initial_delay, t.max_delay, t.created_at, t.prefetched, t.expiries, t.runner_deadline, \
                    t.timeout";

/// Rank of a task, as in leasehold-model; lower ranks are leased first.
const RANK: &str = "t.ready_at - t.priority * bigint '$PRIORITY_STEP'";

/// Maximum number of rows that one pass over due tasks, leases or documents reads: `$MAX_ROWS`.
pub(super) const MAX_ROWS: usize = TaskTable::MAX_PROMOTED as usize;
/// Maximum number of counts that are folded at once: `$MAX_COUNTS`.
pub(super) const MAX_COUNTS: i64 = 20_000;

pub(super) const UUID: Type = Type::UUID;
pub(super) const TEXT: Type = Type::TEXT;
pub(super) const BIG: Type = Type::INT8;
pub(super) const INT: Type = Type::INT4;
pub(super) const SMALL: Type = Type::INT2;
pub(super) const BOOL: Type = Type::BOOL;
pub(super) const UUIDS: Type = Type::UUID_ARRAY;
pub(super) const TEXTS: Type = Type::TEXT_ARRAY;
pub(super) const BIGS: Type = Type::INT8_ARRAY;
pub(super) const INTS: Type = Type::INT4_ARRAY;
pub(super) const SMALLS: Type = Type::INT2_ARRAY;
pub(super) const BOOLS: Type = Type::BOOL_ARRAY;

/// Statement: its template and the types of its parameters. A session knows a statement by its address,
/// so each is a `static`, in the file that executes it.
pub(super) struct Sql {
    types: &'static [Type],
    template: Template,
    pub(super) is_heartbeat: bool,
}

enum Template {
    Text(&'static str),
    Built(fn() -> String),
}

/// Reads the time.
pub(super) static NOW: Sql = Sql::new(&[], "SELECT $NOW");

impl Sql {
    pub(super) const fn new(types: &'static [Type], text: &'static str) -> Self {
        Self { types, template: Template::Text(text), is_heartbeat: false }
    }

    pub(super) const fn built(types: &'static [Type], build: fn() -> String) -> Self {
        Self { types, template: Template::Built(build), is_heartbeat: false }
    }

    pub(super) const fn for_heartbeat(self) -> Self {
        Self { is_heartbeat: true, ..self }
    }

    /// Returns the key of this statement in maps.
    pub(super) fn key(&'static self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Returns the statement as it is sent; `pooled` if that is through a pooler.
    fn text(&self, schema: &str, pooled: bool) -> SqlText {
        let mut types = self.types.to_vec();
        let mut number = |sql: &str, placeholder: &str| {
            types.push(Type::INT8);
            sql.replace(placeholder, &format!("${}", types.len()))
        };
        let max = if pooled { "(CASE WHEN $IN_TIME THEN $3 ELSE 0 END)" } else { "$3" };
        let template = match self.template {
            Template::Text(text) => text.to_owned(),
            Template::Built(build) => build(),
        };
        let mut sql = fill(&template, schema).replace("$MAX", max);
        let has_deadline = pooled && sql.contains("$IN_TIME");
        sql = sql.replace("$IN_TIME", if pooled { IN_TIME } else { "true" });
        if sql.contains("$now") {
            sql = number(&sql, "$now");
        }
        if has_deadline {
            sql = number(&sql, "$until");
        }
        SqlText { sql, types, has_deadline }
    }
}

#[derive(Debug)]
pub(super) struct SqlText {
    pub(super) sql: String,
    pub(super) types: Vec<Type>,
    /// Whether the last parameter is the deadline until which the statement may begin.
    pub(super) has_deadline: bool,
}

/// Statements as they are sent to one schema. Each is built when it is first used.
#[derive(Debug)]
pub(super) struct SqlTexts {
    schema: String,
    pooled: bool,
    texts: Mutex<HashMap<usize, Arc<SqlText>>>,
}

impl SqlTexts {
    /// Creates the statements; `pooled` if they are sent through a pooler.
    pub(super) fn new(schema: &str, pooled: bool) -> Arc<Self> {
        Arc::new(Self { schema: schema.to_owned(), pooled, texts: Mutex::default() })
    }

    pub(super) fn get(&self, sql: &'static Sql) -> Arc<SqlText> {
        let build = || Arc::new(sql.text(&self.schema, self.pooled));
        lock(&self.texts).entry(sql.key()).or_insert_with(build).clone()
    }
}

/// Fills in everything except the numbers of the last parameters.
pub(super) fn fill(sql: &str, schema: &str) -> String {
    let brief_task = TASK.replace("t.payload", "'null'::text AS payload");
    let sql = sql.replace("$BRIEF_TASK", &brief_task).replace("$TASK", TASK);
    let sql = sql.replace("$NOW", NOW_MICROS).replace("$RANK", RANK);
    let sql = sql.replace("$PRIORITY_STEP", &Priority::STEP.as_micros().to_string());
    let sql = sql.replace("$MAX_ROWS", &MAX_ROWS.to_string()).replace("$MAX_COUNTS", &MAX_COUNTS.to_string());
    let sql = sql.replace("$LOCK", LOCK).replace("$LEASE", LEASE).replace("$EVENT", EVENT);
    sql.replace("$s.", &format!("{schema}."))
}

#[cfg(test)]
mod tests {
    use super::super::documents;
    use super::super::locks::{fast_path, fast_path_queue, history, maintenance as lock_maintenance, notify};
    use super::super::locks::{queries as lock_queries, slow_path, tickets};
    use super::super::tasks::transaction;
    use super::super::tasks::{codec, complete, enqueue, lease, lease_plain, maintenance, notifier, queries};
    use super::*;

    const ALL: [&Sql; 72] = [
        &NOW,
        &fast_path::ACQUIRE,
        &fast_path::RENEW,
        &fast_path::RELEASE,
        &fast_path::EXECUTE_MANY,
        &fast_path::LOCKED_ROWS,
        &fast_path_queue::JOIN,
        &fast_path_queue::HAND_OVER,
        &slow_path::LOCK_ROW,
        &slow_path::SAVE,
        &lock_queries::GET,
        &lock_queries::PEEK,
        &lock_queries::LIST,
        &lock_queries::LIST_IN_USE,
        &history::EVENTS_AFTER,
        &history::EVENTS_BEFORE,
        &history::EVENTS_OF_AFTER,
        &history::EVENTS_OF_BEFORE,
        &lock_maintenance::EXPIRED,
        &lock_maintenance::FIX_WAKE_AT,
        &history::PRUNE,
        &notify::NOTIFY,
        &notify::NOTIFY_NEXT,
        &tickets::SELECT,
        &tickets::LOCK,
        &tickets::DELETE,
        &tickets::UPSERT,
        &tickets::REFRESH,
        &lock_maintenance::SELECT_MIN_TOKEN,
        &lock_maintenance::RAISE_MIN_TOKEN,
        &lock_maintenance::PURGE_IDLE,
        &enqueue::INSERT,
        &enqueue::INSERT_UNIFORM,
        &enqueue::INSERT_ONE,
        &lease::LEASE,
        &lease::LEASE_LOCKED_DUE,
        &lease_plain::LEASE_PLAIN,
        &lease::PROMOTE,
        &maintenance::PROMOTE_ALL,
        &complete::COMPLETE,
        &complete::COMPLETE_PLAIN,
        &complete::HEARTBEAT,
        &queries::REMOVE_WORKER,
        &enqueue::EXISTING_IDS,
        &enqueue::LOCK_KEYS,
        &enqueue::DELETE_KEYS,
        &transaction::LOCK_OWNERS,
        &transaction::COUNT_BLOCKED,
        &transaction::LOAD,
        &transaction::LOAD_BRIEF,
        &transaction::READ,
        &transaction::LOAD_FINISHED,
        &transaction::LOAD_PENDING,
        &transaction::FIRST_BLOCKED,
        &codec::SAVE,
        &lease::DUE_LOCKED,
        &maintenance::ALL_DUE_LOCKED,
        &maintenance::EXPIRED,
        &queries::PAUSE,
        &queries::QUEUES,
        &queries::WORKERS,
        &maintenance::PURGE_WORKERS,
        &queries::KEYED,
        &maintenance::ARCHIVE,
        &maintenance::PURGE,
        &maintenance::FOLD,
        &notifier::NOTIFY_WORKERS,
        &enqueue::CREATE_QUEUES,
        &documents::DOC_GET,
        &documents::DOC_PUT,
        &documents::DOC_LIST,
        &documents::PURGE_DOCUMENTS,
    ];

    #[test]
    fn parameters_are_numbered_and_no_placeholder_is_left() {
        let placeholders = [
            "$NOW",
            "$now",
            "$LOCK",
            "$LEASE",
            "$EVENT",
            "$TASK",
            "$BRIEF_TASK",
            "$RANK",
            "$DUE_FILTER",
            "$PRIORITY_STEP",
            "$MAX",
            "$IN_TIME",
            "$until",
            "$s.",
        ];
        for pooled in [false, true] {
            for statement in ALL {
                let SqlText { sql, types, has_deadline } = &statement.text("some_schema", pooled);
                for left in placeholders {
                    assert!(!sql.contains(left), "{left} in {sql}");
                }
                for number in 1..=types.len() {
                    assert!(sql.contains(&format!("${number}")), "${number} in {sql}");
                }
                assert!(!sql.contains(&format!("${}", types.len() + 1)), "{sql}");
                assert!(!has_deadline || sql.contains(&format!("<= ${}::bigint", types.len())), "{sql}");
            }
        }
    }
}
