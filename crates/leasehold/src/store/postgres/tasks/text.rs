//! Statement templates: the schema's name, the columns of a task and the time are filled in.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::sql::{ALL, Sql};
use crate::store::postgres::deadline::IN_TIME;

/// Server's time in µs, read when this is evaluated; in tests, the time that is sent as `$now`.
const NOW: &str = "coalesce($now::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)";

/// Columns of a task, in the order in which `rows.rs` reads them.
const TASK: &str = "t.id, t.queue, t.state, t.priority, t.run_at, t.ready_at, t.lock, t.attempt, t.token, t.version, \
                    t.worker, t.leased_at, t.lease_expires_at, t.progress, t.cancel, t.updated_at, t.finished_at, \
                    t.archived, t.payload, t.result, t.error, t.events, t.key, t.fingerprint, t.attempts, t.first_pause, \
                    t.longest_pause, t.created_at, t.ahead, t.expiries, t.wanted_until";

/// Rank of a task, as in leasehold-model; lower ranks are leased first.
const RANK: &str = "t.ready_at - t.priority * bigint '30000000'";

/// Text of one statement.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) sql: String,
    pub(super) types: Vec<Type>,
    /// Variant for connections behind a pooler, if the statement carries a deadline there: the last
    /// parameter.
    pub(super) with_deadline: Option<String>,
}

/// All statements, for one schema.
#[derive(Debug, Clone)]
pub(super) struct Texts(Arc<Vec<Text>>);

impl Texts {
    pub(super) fn new(schema: &str) -> Self {
        let texts = ALL.iter().enumerate().map(|(at, (what, sql, types))| {
            debug_assert_eq!(*what as usize, at, "in the order of the names");
            let mut types = types.to_vec();
            let now = types.len() + 1;
            let of_those = if *what == Sql::LeaseRest { "AND t.lock IS NOT NULL" } else { "" };
            let sql = fill(&sql.replace("$OF_THOSE", of_those), schema);
            if sql.contains("$now") {
                types.push(Type::INT8);
            }
            let sql = sql.replace("$now", &format!("${now}"));
            let with_deadline = takes_tasks(*what).then(|| {
                types.push(Type::INT8);
                let until = format!("${}", types.len());
                let most =
                    format!("LIMIT (CASE WHEN {IN_TIME} THEN $3 ELSE 0 END)").replace("$until", &until);
                sql.replace("LIMIT $3", &most)
            });
            Text { sql, types, with_deadline }
        });
        Self(Arc::new(texts.collect()))
    }

    pub(super) fn get(&self, what: Sql) -> &Text {
        &self.0[what as usize]
    }
}

/// Whether a delayed statement would lease tasks that no worker knows of.
const fn takes_tasks(what: Sql) -> bool {
    matches!(what, Sql::Lease | Sql::LeaseRest)
}

/// Fills in everything except the parameter number of the time.
pub(super) fn fill(sql: &str, schema: &str) -> String {
    let sql = sql.replace("$NOW", NOW).replace("$TASK", TASK).replace("$RANK", RANK);
    sql.replace("$s.", &format!("{schema}."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered_and_nothing_is_left_to_fill_in() {
        let texts = Texts::new("some_schema");
        for (what, ..) in ALL {
            let text = texts.get(*what);
            for left in ["$NOW", "$now", "$TASK", "$OF_THOSE", "$RANK", "$s."] {
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
