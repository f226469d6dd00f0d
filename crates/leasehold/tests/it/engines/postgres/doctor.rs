//! Health checks for `leasehold doctor`.

use leasehold::store::{HealthCheck, Store};
use leasehold::testing::task_fixture::task;
use tokio_postgres::SimpleQueryMessage;

use super::schema::Schema;
use crate::engines::support::engine_at;

fn find<'a>(checks: &'a [HealthCheck], name: &str) -> &'a HealthCheck {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name} in {checks:?}"))
}

fn code<'a>(checks: &'a [HealthCheck], name: &str) -> Option<&'a str> {
    find(checks, name).issue.as_ref().map(|issue| issue.code)
}

#[tokio::test]
async fn the_server_is_described() {
    let schema = Schema::new();
    let checks = schema.store().await.check_health().await.unwrap();
    assert!(find(&checks, "version").detail.starts_with("PostgreSQL 1"));
    assert_eq!(find(&checks, "schema").detail, format!("'{}', version 3 of 3", schema.name));
    assert_eq!(find(&checks, "role").detail, "primary");
    assert_eq!(find(&checks, "wake-ups").detail, "arrive");
    // The tests' server runs without fsync.
    assert_eq!(code(&checks, "fsync"), Some("POSTGRES_FSYNC_OFF"));
    let off = "options=-c%20synchronous_commit%3Doff";
    let store = leasehold::store::postgres::PostgresStore::connect(schema.options(off)).await.unwrap();
    let checks = store.check_health().await.unwrap();
    assert_eq!(code(&checks, "synchronous_commit"), Some("POSTGRES_SYNC_COMMIT_OFF"));
    assert_eq!(code(&checks, "timeouts"), None);
}

/// The first pooler rejects the settings of a connection, the second one ignores them.
#[tokio::test]
async fn a_pooler_is_detected() {
    for engine in ["postgres-pooler", "postgres-silent-pooler"] {
        let schema = Schema::at(engine_at(engine));
        let store = schema.store().await;
        assert!(!store.capabilities().push_notifications, "{engine}");
        let checks = store.check_health().await.unwrap();
        assert_eq!(code(&checks, "wake-ups"), Some("POSTGRES_POOLER"), "{engine}");
        assert_eq!(code(&checks, "timeouts"), Some("POSTGRES_NO_TIMEOUTS"), "{engine}");
        // No setting of a connection for tasks reaches other clients of the pooler.
        let client = schema.client().await;
        for number in 1..=20 {
            store.tasks().unwrap().enqueue(&[task(number)]).await.unwrap();
            let settings = "SELECT current_setting('plan_cache_mode'), current_setting('synchronous_commit')";
            let found = client.simple_query(settings).await.unwrap();
            let row = found.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some((row.get(0), row.get(1))),
                _ => None,
            });
            assert_eq!(row, Some((Some("auto"), Some("on"))), "{engine}");
        }
    }
}
