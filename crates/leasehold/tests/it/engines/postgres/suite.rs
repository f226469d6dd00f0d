//! Conformance suite, with two stores in one schema: connected directly, and behind a pooler.

use std::sync::Arc;

use leasehold::store::Store;
use leasehold::store::postgres::PostgresStore;
use leasehold::testing::{Fixture, agrees_with_the_rules};

use super::schema::Schema;
use crate::engines::support::{clock, engine_at};

/// Generates the suite for one way to connect.
macro_rules! suite {
    ($module:ident, $engine:literal, $cases:literal) => {
        mod $module {
            async fn fresh() -> leasehold::testing::Fixture {
                super::fresh($engine).await
            }

            leasehold::lock_conformance!(crate::engines::postgres::suite::$module::fresh);

            #[test]
            fn it_agrees_with_the_rules() {
                super::agrees($engine, $cases);
            }
        }
    };
}

suite!(locks, "postgres", 64);

#[test]
fn a_queue_of_rows_agrees_with_the_rules() {
    agrees_from("postgres", 96, 1);
}

suite!(pooled, "postgres-pooler", 32);

pub(super) async fn fresh(engine: &str) -> Fixture {
    let clock = clock();
    let schema = Schema::at(engine_at(engine));
    let (one, two) = (schema.store_at(&clock, "").await, schema.store_at(&clock, "").await);
    Fixture::new(one, two, clock, schema)
}

/// Uses one schema for all cases, emptied before each: creating a schema takes longer than a case.
fn agrees(engine: &str, cases: u32) {
    agrees_from(engine, cases, usize::MAX);
}

/// Stores queues as rows if they have more than `long_queue` tickets.
fn agrees_from(engine: &str, cases: u32, long_queue: usize) {
    let (schema, clock) = (Schema::at(engine_at(engine)), clock());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (one, two, client) = runtime.block_on(async {
        let open = async || {
            let mut options = schema.options("");
            (options.clock, options.long_queue) = (Some(clock.clone()), long_queue);
            Arc::new(PostgresStore::connect(options).await.unwrap())
        };
        let (one, two) = (open().await, open().await);
        (one as Arc<dyn Store>, two as Arc<dyn Store>, schema.client().await)
    });
    let client = Arc::new(client);
    let empty = format!("TRUNCATE {0}.locks; TRUNCATE {0}.events; TRUNCATE {0}.tickets", schema.name);
    agrees_with_the_rules(cases, || {
        let (one, two, clock) = (one.clone(), two.clone(), clock.clone());
        let (client, empty) = (client.clone(), empty.clone());
        async move {
            client.batch_execute(&empty).await.unwrap();
            Fixture::new(one, two, clock, ())
        }
    });
}
