//! Templates of the statements on locks. The schema's name, lists of columns and the time are filled
//! in; names and texts are parameters. Each template is in the file that executes it.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::{fast_path, fast_path_queue, history, maintenance, notify, queries, slow_path, tickets};
use crate::store::postgres::connection::IN_TIME;

/// Server's time in µs, read when this is evaluated; in tests, the time that is sent as `$now`.
pub(crate) const NOW: &str =
    "coalesce($now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Columns of a lock's row, in the order in which `codec.rs` reads them.
const LOCK: &str =
    "l.name, l.token, l.version, l.layout, l.lease_id, $LEASE, l.wake_at, l.record, l.queue::text";

/// Columns of a lease without its id and token, in the order in which `codec.rs` reads them.
const LEASE: &str =
    "l.holder, l.shared, l.slots, l.ttl, l.extra, l.acquired_at, l.renewed_at, l.expires_at, l.renewals";

/// Columns of an event's row, in the order in which `history.rs` reads them.
const EVENT: &str = "e.seq, e.lock, e.at, e.kind, e.token, e.lease_id, e.holder, e.shared, e.slots, e.after_micros, \
                     e.renewals, e.extra";

/// Statements that a session can execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sql {
    Acquire,
    Renew,
    Release,
    ExecuteMany,
    LockedRows,
    Join,
    HandOver,
    Lock,
    Save,
    Get,
    Peek,
    List,
    EventsAfter,
    EventsBefore,
    EventsOfAfter,
    EventsOfBefore,
    Now,
    Expired,
    FixWakeAt,
    Prune,
    Notify,
    NotifyNext,
    SelectTickets,
    DeleteTickets,
    UpsertTickets,
    RefreshTicket,
    MinToken,
    RaiseMinToken,
    PurgeIdle,
}

/// Text of one statement.
#[derive(Debug)]
pub(crate) struct SqlText {
    pub(crate) sql: String,
    pub(crate) types: Vec<Type>,
    /// Whether the last parameter is the deadline until which the statement may begin.
    pub(crate) has_deadline: bool,
}

/// All statements, for one schema.
#[derive(Debug, Clone)]
pub(crate) struct SqlTexts(Arc<Vec<SqlText>>);

impl SqlTexts {
    pub(crate) const COUNT: usize = Sql::PurgeIdle as usize + 1;

    /// Builds the statements; `pooled` if they are sent through a pooler.
    pub(crate) fn new(schema: &str, pooled: bool) -> Self {
        let texts = ALL.iter().enumerate().map(|(at, (name, template))| {
            debug_assert_eq!(*name as usize, at, "templates are in the order of their names");
            let (sql, types) = template();
            let now = types.len() + 1;
            let (sql, mut types) = (sql.replace("$NOW", NOW), types);
            let sql = sql.replace("$LOCK", LOCK).replace("$LEASE", LEASE).replace("$EVENT", EVENT);
            let sql = sql.replace("$s.", &format!("{schema}."));
            let has_deadline = pooled && sql.contains("$IN_TIME");
            let sql = sql.replace("$IN_TIME", if pooled { IN_TIME } else { "true" });
            if sql.contains("$now") {
                types.push(Type::INT8);
            }
            let until = types.len() + 1;
            if has_deadline {
                types.push(Type::INT8);
            }
            let sql = sql.replace("$now", &format!("${now}")).replace("$until", &format!("${until}"));
            SqlText { sql, types, has_deadline }
        });
        Self(Arc::new(texts.collect()))
    }

    pub(crate) fn get(&self, name: Sql) -> &SqlText {
        &self.0[name as usize]
    }
}

/// Text of a statement with placeholders, and the types of its parameters.
pub(super) type Template = (String, Vec<Type>);

const ALL: [(Sql, fn() -> Template); SqlTexts::COUNT] = [
    (Sql::Acquire, fast_path::acquire_sql),
    (Sql::Renew, fast_path::renew_sql),
    (Sql::Release, fast_path::release_sql),
    (Sql::ExecuteMany, fast_path::execute_many_sql),
    (Sql::LockedRows, fast_path::locked_rows_sql),
    (Sql::Join, fast_path_queue::join_sql),
    (Sql::HandOver, fast_path_queue::hand_over_sql),
    (Sql::Lock, slow_path::lock_sql),
    (Sql::Save, slow_path::save_sql),
    (Sql::Get, queries::get_sql),
    (Sql::Peek, queries::peek_sql),
    (Sql::List, queries::list_sql),
    (Sql::EventsAfter, history::events_after_sql),
    (Sql::EventsBefore, history::events_before_sql),
    (Sql::EventsOfAfter, history::events_of_after_sql),
    (Sql::EventsOfBefore, history::events_of_before_sql),
    (Sql::Now, queries::now_sql),
    (Sql::Expired, maintenance::expired_sql),
    (Sql::FixWakeAt, maintenance::fix_wake_at_sql),
    (Sql::Prune, history::prune_sql),
    (Sql::Notify, notify::notify_sql),
    (Sql::NotifyNext, notify::notify_next_sql),
    (Sql::SelectTickets, tickets::select_sql),
    (Sql::DeleteTickets, tickets::delete_sql),
    (Sql::UpsertTickets, tickets::upsert_sql),
    (Sql::RefreshTicket, tickets::refresh_sql),
    (Sql::MinToken, maintenance::min_token_sql),
    (Sql::RaiseMinToken, maintenance::raise_min_token_sql),
    (Sql::PurgeIdle, maintenance::purge_idle_sql),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_and_no_placeholder_is_left() {
        for (name, pooled) in ALL.into_iter().flat_map(|(name, _)| [(name, false), (name, true)]) {
            let texts = SqlTexts::new("some_schema", pooled);
            let text = texts.get(name);
            for left in ["$NOW", "$now", "$LOCK", "$LEASE", "$EVENT", "$IN_TIME", "$until", "$s."] {
                assert!(!text.sql.contains(left), "{left} in {}", text.sql);
            }
            for number in 1..=text.types.len() {
                assert!(text.sql.contains(&format!("${number}")), "${number} in {}", text.sql);
            }
            assert!(!text.sql.contains(&format!("${}", text.types.len() + 1)), "{}", text.sql);
        }
    }
}
