//! Statements of a session: their templates and the types of their parameters. The schema's name,
//! lists of columns and the time are filled in; names and texts are parameters. Each template is in the
//! file that executes it; the numbers in those on tasks are states of tasks, see `schema.rs`.
//!
//! Fast-path statements on tasks update rows that were found and locked by their `ctid` (`row_id`),
//! which saves an index lookup for each. A row that another session changed between the read and the
//! row lock has another `ctid` and is left out: a lease finds it the next time, and a settlement of it
//! takes the slow path. Heartbeats use the id, because a lease that is held must not be reported as
//! lost.

use std::borrow::Cow;
use std::sync::Arc;

use tokio_postgres::types::Type;

use super::connection::IN_TIME;
use super::documents;
use super::locks::{fast_path, fast_path_queue, history, maintenance as lock_maintenance, notify};
use super::locks::{queries as lock_queries, slow_path, tickets};
use super::tasks::{codec, complete, enqueue, lease, maintenance, queries, transaction};

/// Server's time in µs, read when this is evaluated; in tests, the time that is sent as `$now`.
const NOW: &str = "coalesce($now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Columns of a lock's row, in the order in which `locks/codec.rs` reads them.
const LOCK: &str =
    "l.name, l.token, l.version, l.layout, l.lease_id, $LEASE, l.wake_at, l.record, l.queue::text";

/// Columns of a lease without its id and token, in the order in which `locks/codec.rs` reads them.
const LEASE: &str =
    "l.holder, l.shared, l.slots, l.ttl, l.extra, l.acquired_at, l.renewed_at, l.expires_at, l.renewals";

/// Columns of an event's row, in the order in which `history.rs` reads them.
const EVENT: &str = "e.seq, e.lock, e.at, e.kind, e.token, e.lease_id, e.holder, e.shared, e.slots, e.after_micros, \
                     e.renewals, e.extra";

/// Columns of a task, in the order in which `tasks/codec.rs` reads them.
const TASK: &str = "t.id, t.queue, t.state, t.priority, t.run_at, t.ready_at, t.lock, t.attempt, t.token, t.version, \
                    t.worker, t.leased_at, t.lease_expires_at, t.progress, t.cancel, t.updated_at, t.finished_at, \
                    t.archived, t.payload, t.result, t.error, t.events, t.key, t.fingerprint, t.attempts, \
                    t.initial_delay, t.max_delay, t.created_at, t.prefetched, t.expiries, t.runner_deadline";

/// Rank of a task, as in leasehold-model; lower ranks are leased first.
const RANK: &str = "t.ready_at - t.priority * bigint '30000000'";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sql {
    Now,
    Acquire,
    Renew,
    Release,
    ExecuteMany,
    LockedRows,
    Join,
    HandOver,
    LockRow,
    SaveLock,
    GetLock,
    PeekLock,
    ListLocks,
    EventsAfter,
    EventsBefore,
    EventsOfAfter,
    EventsOfBefore,
    ExpiredLocks,
    FixWakeAt,
    Prune,
    NotifyWaiters,
    NotifyNext,
    SelectTickets,
    DeleteTickets,
    UpsertTickets,
    RefreshTicket,
    MinToken,
    RaiseMinToken,
    PurgeIdle,
    Insert,
    InsertUniform,
    Lease,
    LeaseLockedDue,
    Promote,
    PromoteAll,
    Complete,
    Heartbeat,
    RemoveWorker,
    ExistingIds,
    LockKeys,
    DeleteKeys,
    LockOwners,
    CountBlocked,
    Load,
    Read,
    LoadFinished,
    LoadPending,
    FirstBlocked,
    SaveTasks,
    DueLocked,
    AllDueLocked,
    ExpiredTasks,
    Pause,
    Queues,
    Workers,
    PurgeWorkers,
    Keyed,
    Archive,
    Purge,
    Fold,
    NotifyWorkers,
    CreateQueues,
    DocGet,
    DocPut,
    DocList,
    PurgeDocuments,
}

const UUID: Type = Type::UUID;
const TEXT: Type = Type::TEXT;
const BIG: Type = Type::INT8;
const INT: Type = Type::INT4;
const SMALL: Type = Type::INT2;
const BOOL: Type = Type::BOOL;
const UUIDS: Type = Type::UUID_ARRAY;
const TEXTS: Type = Type::TEXT_ARRAY;
const BIGS: Type = Type::INT8_ARRAY;
const INTS: Type = Type::INT4_ARRAY;
const SMALLS: Type = Type::INT2_ARRAY;
const BOOLS: Type = Type::BOOL_ARRAY;

const SAVE_LOCK: &[Type] = &[
    TEXT, BIG, BIG, SMALL, UUID, TEXT, BOOL, INT, BIG, TEXT, BIG, BIG, BIG, BIG, BIG, TEXT, BIG, BIGS, TEXTS,
    BIGS, UUIDS, TEXTS, BOOLS, INTS, BIGS, BIGS, TEXTS, TEXT,
];
const LEASE_TASKS: &[Type] =
    &[TEXTS, BIGS, BIG, UUID, BIG, TEXTS, INTS, BIGS, BIGS, BOOL, BIGS, UUIDS, BIG, BOOL, BIG, BIG];
const SAVE_TASKS: &[Type] = &[
    UUIDS, BOOLS, BOOLS, TEXTS, SMALLS, INTS, BIGS, BIGS, TEXTS, INTS, BIGS, BIGS, UUIDS, BIGS, BIGS, TEXTS,
    TEXTS, BIGS, BIGS, BOOLS, TEXTS, TEXTS, TEXTS, TEXTS, TEXTS, BIGS, INTS, BIGS, BIGS, BIGS, BOOLS, INTS,
    BOOLS, BIGS, TEXTS, SMALLS, BIGS, TEXTS, TEXTS, UUIDS, TEXTS, INTS, BOOLS, BOOLS, TEXTS, TEXTS, UUIDS,
];

/// Name of a statement, its text with placeholders, and the types of its parameters.
type Template = (Sql, fn() -> Cow<'static, str>, &'static [Type]);

const ALL: &[Template] = &[
    (Sql::Now, || "SELECT $NOW".into(), &[]),
    (Sql::Acquire, || fast_path::acquire_sql().into(), &[TEXT, UUID, TEXT, BOOL, INT, BIG, TEXT]),
    (Sql::Renew, || fast_path::renew_sql().into(), &[TEXT, UUID, BIG, BIG]),
    (Sql::Release, || fast_path::release_sql().into(), &[TEXT, UUID, BIG]),
    (
        Sql::ExecuteMany,
        || fast_path::execute_many_sql().into(),
        &[TEXTS, SMALLS, UUIDS, BIGS, BIGS, TEXTS, BOOLS, INTS, TEXTS],
    ),
    (Sql::LockedRows, || fast_path::LOCKED_ROWS.into(), &[TEXTS]),
    (Sql::Join, || fast_path_queue::join_sql().into(), &[TEXT, UUID, TEXT, BIG, TEXT, BIG]),
    (
        Sql::HandOver,
        || fast_path_queue::hand_over_sql().into(),
        &[TEXT, UUID, BIG, UUID, TEXT, BIG, TEXT, BIG],
    ),
    (Sql::LockRow, || slow_path::LOCK_ROW.into(), &[TEXT]),
    (Sql::SaveLock, || slow_path::SAVE.into(), SAVE_LOCK),
    (Sql::GetLock, || lock_queries::get_sql().into(), &[TEXT]),
    (Sql::PeekLock, || lock_queries::PEEK.into(), &[TEXT]),
    (Sql::ListLocks, || lock_queries::list_sql().into(), &[TEXT, TEXT, TEXT, BOOL, BIG]),
    (Sql::EventsAfter, || history::EVENTS_AFTER.into(), &[BIG, BIG]),
    (Sql::EventsBefore, || history::EVENTS_BEFORE.into(), &[BIG, BIG]),
    (Sql::EventsOfAfter, || history::EVENTS_OF_AFTER.into(), &[BIG, BIG, TEXT]),
    (Sql::EventsOfBefore, || history::EVENTS_OF_BEFORE.into(), &[BIG, BIG, TEXT]),
    (Sql::ExpiredLocks, || lock_maintenance::expired_sql().into(), &[BIG]),
    (Sql::FixWakeAt, || lock_maintenance::fix_wake_at_sql().into(), &[BIG]),
    (Sql::Prune, || history::PRUNE.into(), &[BIG, BIG]),
    (Sql::NotifyWaiters, || notify::NOTIFY.into(), &[TEXT, TEXTS]),
    (Sql::NotifyNext, || notify::NOTIFY_NEXT.into(), &[TEXT, TEXT, UUID, UUIDS]),
    (Sql::SelectTickets, || tickets::SELECT.into(), &[TEXT]),
    (Sql::DeleteTickets, || tickets::DELETE.into(), &[TEXT, UUIDS]),
    (Sql::UpsertTickets, || tickets::UPSERT.into(), &[TEXT, UUIDS, BIGS, BIGS, BIGS, BIGS, TEXTS]),
    (Sql::RefreshTicket, || tickets::refresh_sql().into(), &[TEXT, UUID, BIG]),
    (Sql::MinToken, || format!("SELECT {}", lock_maintenance::MIN_TOKEN).into(), &[]),
    (Sql::RaiseMinToken, || lock_maintenance::raise_min_token_sql().into(), &[BIG]),
    (Sql::PurgeIdle, || lock_maintenance::purge_idle_sql().into(), &[TEXT, BIG, BIG, BIG]),
    (Sql::Insert, || enqueue::INSERT.into(), &[UUIDS, TEXTS, TEXTS, BIGS, BIGS, INTS, INTS, BIGS, BIGS]),
    (Sql::InsertUniform, || enqueue::INSERT_UNIFORM.into(), &[UUIDS, TEXTS, TEXT, INT, INT, BIG, BIG]),
    (Sql::Lease, || lease::LEASE.replace("$DUE_FILTER", "").into(), LEASE_TASKS),
    (
        Sql::LeaseLockedDue,
        || lease::LEASE.replace("$DUE_FILTER", "AND t.lock IS NOT NULL").into(),
        LEASE_TASKS,
    ),
    (Sql::Promote, || lease::PROMOTE.into(), &[TEXTS, BIGS, BIG]),
    (Sql::PromoteAll, || maintenance::PROMOTE_ALL.into(), &[BIG]),
    (Sql::Complete, || complete::COMPLETE.into(), &[UUIDS, BIGS, TEXTS]),
    (Sql::Heartbeat, || complete::HEARTBEAT.into(), &[UUID, TEXT, UUIDS, BIGS, TEXTS, BIG, BOOLS]),
    (Sql::RemoveWorker, || "DELETE FROM $s.workers WHERE id = $1".into(), &[UUID]),
    (Sql::ExistingIds, || enqueue::EXISTING_IDS.into(), &[UUIDS]),
    (Sql::LockKeys, || enqueue::LOCK_KEYS.into(), &[TEXTS, TEXTS, UUIDS]),
    (Sql::DeleteKeys, || enqueue::DELETE_KEYS.into(), &[TEXTS, TEXTS, UUIDS]),
    (Sql::LockOwners, || transaction::LOCK_OWNERS.into(), &[TEXTS, TEXTS]),
    (Sql::CountBlocked, || transaction::COUNT_BLOCKED.into(), &[TEXTS, TEXTS]),
    (Sql::Load, || transaction::LOAD.into(), &[UUIDS]),
    (Sql::Read, || transaction::READ.into(), &[UUIDS]),
    (Sql::LoadFinished, || transaction::LOAD_FINISHED.into(), &[UUIDS]),
    (Sql::LoadPending, || transaction::LOAD_PENDING.into(), &[UUIDS]),
    (Sql::FirstBlocked, || transaction::FIRST_BLOCKED.into(), &[TEXTS, TEXTS, UUIDS]),
    (Sql::SaveTasks, || codec::SAVE.into(), SAVE_TASKS),
    (Sql::DueLocked, || lease::DUE_LOCKED.into(), &[TEXTS]),
    (Sql::AllDueLocked, || maintenance::ALL_DUE_LOCKED.into(), &[BIG]),
    (Sql::ExpiredTasks, || maintenance::EXPIRED.into(), &[BIG]),
    (Sql::Pause, || queries::PAUSE.into(), &[TEXT, TEXT]),
    (Sql::Queues, || queries::QUEUES.into(), &[]),
    (Sql::Workers, || "SELECT info, started_at, seen_at FROM $s.workers ORDER BY id".into(), &[]),
    (Sql::PurgeWorkers, || "DELETE FROM $s.workers WHERE seen_at <= $NOW - $1".into(), &[BIG]),
    (Sql::Keyed, || queries::KEYED.into(), &[TEXT, TEXT]),
    (Sql::Archive, || maintenance::ARCHIVE.into(), &[TEXT, SMALL, BIG, BIG]),
    (Sql::Purge, || maintenance::PURGE.into(), &[TEXT, SMALL, BIG, BIG]),
    (Sql::Fold, || maintenance::FOLD.into(), &[]),
    (Sql::NotifyWorkers, || "SELECT pg_notify($1, $2)".into(), &[TEXT, TEXT]),
    (Sql::CreateQueues, || enqueue::CREATE_QUEUES.into(), &[TEXTS, INTS]),
    (Sql::DocGet, || documents::DOC_GET.into(), &[TEXT]),
    (Sql::DocPut, || documents::DOC_PUT.into(), &[TEXT, BIG, TEXT, BIG]),
    (Sql::DocList, || documents::DOC_LIST.into(), &[TEXT, TEXT, TEXT, BOOL, BIG]),
    (Sql::PurgeDocuments, || documents::PURGE_DOCUMENTS.into(), &[]),
];

#[derive(Debug)]
pub(super) struct SqlText {
    pub(super) sql: String,
    pub(super) types: Vec<Type>,
    /// Whether the last parameter is the deadline until which the statement may begin.
    pub(super) has_deadline: bool,
}

#[derive(Debug, Clone)]
pub(super) struct SqlTexts(Arc<Vec<SqlText>>);

impl SqlTexts {
    /// Builds the statements; `pooled` if they are sent through a pooler.
    pub(super) fn new(schema: &str, pooled: bool) -> Self {
        let texts = ALL.iter().enumerate().map(|(at, (name, template, types))| {
            debug_assert_eq!(*name as usize, at, "templates are in the order of their names");
            let mut types = types.to_vec();
            let mut number = |sql: &str, placeholder: &str| {
                types.push(Type::INT8);
                sql.replace(placeholder, &format!("${}", types.len()))
            };
            let max = if pooled { "(CASE WHEN $IN_TIME THEN $3 ELSE 0 END)" } else { "$3" };
            let mut sql = fill(&template(), schema).replace("$MAX", max);
            let has_deadline = pooled && sql.contains("$IN_TIME");
            sql = sql.replace("$IN_TIME", if pooled { IN_TIME } else { "true" });
            if sql.contains("$now") {
                sql = number(&sql, "$now");
            }
            if has_deadline {
                sql = number(&sql, "$until");
            }
            SqlText { sql, types, has_deadline }
        });
        Self(Arc::new(texts.collect()))
    }

    pub(super) fn get(&self, name: Sql) -> &SqlText {
        &self.0[name as usize]
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Fills in everything except the numbers of the last parameters.
pub(super) fn fill(sql: &str, schema: &str) -> String {
    let sql = sql.replace("$NOW", NOW).replace("$TASK", TASK).replace("$RANK", RANK);
    let sql = sql.replace("$LOCK", LOCK).replace("$LEASE", LEASE).replace("$EVENT", EVENT);
    sql.replace("$s.", &format!("{schema}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_and_no_placeholder_is_left() {
        let placeholders = [
            "$NOW",
            "$now",
            "$LOCK",
            "$LEASE",
            "$EVENT",
            "$TASK",
            "$RANK",
            "$DUE_FILTER",
            "$MAX",
            "$IN_TIME",
            "$until",
            "$s.",
        ];
        for pooled in [false, true] {
            let texts = SqlTexts::new("some_schema", pooled);
            for SqlText { sql, types, has_deadline } in &*texts.0 {
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
