//! Templates of the statements on tasks and documents. The schema's name, the columns of a task and
//! the time are filled in; names and texts are parameters. Each template is in the file that executes
//! it; the numbers in them are states of tasks, see `schema.rs`.
//!
//! Fast-path statements update rows that were found and locked by their `ctid` (`row_id`), which
//! saves an index lookup for each. A row that another session changed between the read and the row
//! lock has another `ctid` and is left out: a lease finds it the next time, and a settlement of it
//! takes the slow path. Heartbeats use the id, because a lease that is held must not be reported as
//! lost.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::{codec, complete, enqueue, lease, maintenance, queries, transaction};
use crate::store::postgres::connection::IN_TIME;
use crate::store::postgres::documents;
use crate::store::postgres::locks::NOW;

/// Columns of a task, in the order in which `codec.rs` reads them.
const TASK: &str = "t.id, t.queue, t.state, t.priority, t.run_at, t.ready_at, t.lock, t.attempt, t.token, t.version, \
                    t.worker, t.leased_at, t.lease_expires_at, t.progress, t.cancel, t.updated_at, t.finished_at, \
                    t.archived, t.payload, t.result, t.error, t.events, t.key, t.fingerprint, t.attempts, \
                    t.initial_delay, t.max_delay, t.created_at, t.prefetched, t.expiries, t.runner_deadline";

/// Rank of a task, as in leasehold-model; lower ranks are leased first.
const RANK: &str = "t.ready_at - t.priority * bigint '30000000'";

/// Statements that a session can execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sql {
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
    Save,
    DueLocked,
    AllDueLocked,
    Expired,
    Pause,
    Queues,
    Workers,
    PurgeWorkers,
    Keyed,
    Archive,
    Purge,
    Fold,
    Now,
    Notify,
    CreateQueues,
    DocGet,
    DocPut,
    DocList,
    PurgeDocuments,
}

const UUID: Type = Type::UUID;
const UUIDS: Type = Type::UUID_ARRAY;
const TEXT: Type = Type::TEXT;
const TEXTS: Type = Type::TEXT_ARRAY;
const BIG: Type = Type::INT8;
const BIGS: Type = Type::INT8_ARRAY;
const INTS: Type = Type::INT4_ARRAY;

const NEW_TYPES: &[Type] = &[UUIDS, TEXTS, TEXTS, BIGS, BIGS, INTS, INTS, BIGS, BIGS];

const LEASE_TYPES: &[Type] = &[
    TEXTS,
    BIGS,
    BIG,
    UUID,
    BIG,
    TEXTS,
    INTS,
    BIGS,
    BIGS,
    Type::BOOL,
    BIGS,
    UUIDS,
    BIG,
    Type::BOOL,
    BIG,
    BIG,
];

const ALL: &[(Sql, &str, &[Type])] = &[
    (Sql::Insert, enqueue::INSERT, NEW_TYPES),
    (Sql::InsertUniform, enqueue::INSERT_UNIFORM, &[UUIDS, TEXTS, TEXT, Type::INT4, Type::INT4, BIG, BIG]),
    (Sql::Lease, lease::LEASE, LEASE_TYPES),
    (Sql::LeaseLockedDue, lease::LEASE, LEASE_TYPES),
    (Sql::Promote, lease::PROMOTE, &[TEXTS, BIGS, BIG]),
    (Sql::PromoteAll, maintenance::PROMOTE_ALL, &[BIG]),
    (Sql::Complete, complete::COMPLETE, &[UUIDS, BIGS, TEXTS]),
    (Sql::Heartbeat, complete::HEARTBEAT, &[UUID, TEXT, UUIDS, BIGS, TEXTS, BIG, Type::BOOL_ARRAY]),
    (Sql::RemoveWorker, "DELETE FROM $s.workers WHERE id = $1", &[UUID]),
    (Sql::ExistingIds, enqueue::EXISTING_IDS, &[UUIDS]),
    (Sql::LockKeys, enqueue::LOCK_KEYS, &[TEXTS, TEXTS, UUIDS]),
    (Sql::DeleteKeys, enqueue::DELETE_KEYS, &[TEXTS, TEXTS, UUIDS]),
    (Sql::LockOwners, transaction::LOCK_OWNERS, &[TEXTS, TEXTS]),
    (Sql::CountBlocked, transaction::COUNT_BLOCKED, &[TEXTS, TEXTS]),
    (Sql::Load, transaction::LOAD, &[UUIDS]),
    (Sql::Read, transaction::READ, &[UUIDS]),
    (Sql::LoadFinished, transaction::LOAD_FINISHED, &[UUIDS]),
    (Sql::LoadPending, transaction::LOAD_PENDING, &[UUIDS]),
    (Sql::FirstBlocked, transaction::FIRST_BLOCKED, &[TEXTS, TEXTS, UUIDS]),
    (Sql::Save, codec::SAVE, codec::SAVE_TYPES),
    (Sql::DueLocked, lease::DUE_LOCKED, &[TEXTS]),
    (Sql::AllDueLocked, maintenance::ALL_DUE_LOCKED, &[BIG]),
    (Sql::Expired, maintenance::EXPIRED, &[BIG]),
    (Sql::Pause, "UPDATE $s.task_queues SET pause = $2 WHERE name = $1 RETURNING true", &[TEXT, TEXT]),
    (Sql::Queues, queries::QUEUES, &[]),
    (Sql::Workers, "SELECT info, started_at, seen_at FROM $s.workers ORDER BY id", &[]),
    (Sql::PurgeWorkers, "DELETE FROM $s.workers WHERE seen_at <= $NOW - $1", &[BIG]),
    (Sql::Keyed, queries::KEYED, &[TEXT, TEXT]),
    (Sql::Archive, maintenance::ARCHIVE, &[TEXT, Type::INT2, BIG, BIG]),
    (Sql::Purge, maintenance::PURGE, &[TEXT, Type::INT2, BIG, BIG]),
    (Sql::Fold, maintenance::FOLD, &[]),
    (Sql::Now, "SELECT $NOW", &[]),
    (Sql::Notify, "SELECT pg_notify($1, $2)", &[TEXT, TEXT]),
    (Sql::CreateQueues, enqueue::CREATE_QUEUES, &[TEXTS, INTS]),
    (Sql::DocGet, documents::DOC_GET, &[TEXT]),
    (Sql::DocPut, documents::DOC_PUT, &[TEXT, BIG, TEXT, BIG]),
    (Sql::DocList, documents::DOC_LIST, &[TEXT, TEXT, TEXT, Type::BOOL, BIG]),
    (Sql::PurgeDocuments, documents::PURGE_DOCUMENTS, &[]),
];

/// Text of one statement.
#[derive(Debug)]
pub(crate) struct SqlText {
    pub(crate) sql: String,
    pub(crate) types: Vec<Type>,
    /// Variant for connections behind a pooler, if the statement carries a deadline there: the last
    /// parameter.
    pub(crate) with_deadline: Option<String>,
}

/// All statements, for one schema.
#[derive(Debug, Clone)]
pub(crate) struct SqlTexts(Arc<Vec<SqlText>>);

impl SqlTexts {
    pub(crate) const COUNT: usize = Sql::PurgeDocuments as usize + 1;

    pub(crate) fn new(schema: &str) -> Self {
        let texts = ALL.iter().enumerate().map(|(at, (name, sql, types))| {
            debug_assert_eq!(*name as usize, at, "templates are in the order of their names");
            let mut types = types.to_vec();
            let now = types.len() + 1;
            let due_filter = if *name == Sql::LeaseLockedDue { "AND t.lock IS NOT NULL" } else { "" };
            let sql = fill(&sql.replace("$DUE_FILTER", due_filter), schema);
            if sql.contains("$now") {
                types.push(Type::INT8);
            }
            let sql = sql.replace("$now", &format!("${now}"));
            let with_deadline = leases_tasks(*name).then(|| {
                types.push(Type::INT8);
                let until = format!("${}", types.len());
                let limit =
                    format!("LIMIT (CASE WHEN {IN_TIME} THEN $3 ELSE 0 END)").replace("$until", &until);
                sql.replace("LIMIT $3", &limit)
            });
            SqlText { sql, types, with_deadline }
        });
        Self(Arc::new(texts.collect()))
    }

    pub(crate) fn get(&self, name: Sql) -> &SqlText {
        &self.0[name as usize]
    }
}

/// Whether a delayed statement would lease tasks that no worker knows of.
const fn leases_tasks(name: Sql) -> bool {
    matches!(name, Sql::Lease | Sql::LeaseLockedDue)
}

/// Fills in everything except the parameter number of the time.
pub(crate) fn fill(sql: &str, schema: &str) -> String {
    let sql = sql.replace("$NOW", NOW).replace("$TASK", TASK).replace("$RANK", RANK);
    sql.replace("$s.", &format!("{schema}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_and_no_placeholder_is_left() {
        let texts = SqlTexts::new("some_schema");
        for (name, ..) in ALL {
            let text = texts.get(*name);
            for left in ["$NOW", "$now", "$TASK", "$DUE_FILTER", "$RANK", "$s."] {
                assert!(!text.sql.contains(left), "{left} in {}", text.sql);
            }
            let params = text.types.len() - usize::from(text.with_deadline.is_some());
            for number in 1..=params {
                assert!(text.sql.contains(&format!("${number}")), "${number} in {}", text.sql);
            }
            assert!(!text.sql.contains(&format!("${}", params + 1)), "{}", text.sql);
            if let Some(sql) = &text.with_deadline {
                assert!(sql.contains(&format!("<= ${}::bigint", params + 1)), "{sql}");
            }
        }
    }
}
