//! Conformance suite of tasks and documents: connected directly, and behind a pooler.

use std::sync::Arc;

use leasehold::store::Store;
use leasehold::testing::{Fixture, tasks_agree_with_the_rules};

use crate::engines::postgres::schema::Schema;
use crate::engines::support::{clock, engine_at};

/// Generates the suite for one way to connect.
macro_rules! suite {
    ($module:ident, $engine:literal, $cases:literal) => {
        mod $module {
            async fn fresh() -> leasehold::testing::Fixture {
                crate::engines::postgres::suite::fresh($engine).await
            }

            mod tasks {
                leasehold::task_conformance!(crate::engines::postgres::tasks::suite::$module::fresh);
            }

            mod docs {
                leasehold::doc_conformance!(crate::engines::postgres::tasks::suite::$module::fresh);
            }

            #[test]
            fn its_tasks_agree_with_the_rules() {
                super::agrees($engine, $cases);
            }
        }
    };
}

suite!(direct, "postgres", 64);
suite!(pooled, "postgres-pooler", 16);

/// Uses one schema for all cases, emptied before each: creating a schema takes longer than a case.
fn agrees(engine: &str, cases: u32) {
    let (schema, clock) = (Schema::at(engine_at(engine)), clock());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (one, two, client) = runtime.block_on(async {
        let (one, two) = (schema.store_at(&clock, "").await, schema.store_at(&clock, "").await);
        (one as Arc<dyn Store>, two as Arc<dyn Store>, schema.client().await)
    });
    let client = Arc::new(client);
    let tables = ["tasks", "task_keys", "lock_owners", "task_queues", "queue_priorities", "task_counts"];
    let empty = tables.map(|table| format!("DELETE FROM {}.{table}", schema.name)).join("; ");
    tasks_agree_with_the_rules(cases, || {
        let (one, two, clock) = (one.clone(), two.clone(), clock.clone());
        let (client, empty) = (client.clone(), empty.clone());
        async move {
            client.batch_execute(&empty).await.unwrap();
            Fixture::new(one, two, clock, ())
        }
    });
}
