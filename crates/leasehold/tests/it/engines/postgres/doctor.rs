//! Health checks for `leasehold doctor`.

use leasehold::store::{HealthCheck, Store};

use super::schema::Schema;
use crate::engines::support::engine_at;

fn find<'a>(checks: &'a [HealthCheck], name: &str) -> &'a HealthCheck {
    checks.iter().find(|check| check.name == name).unwrap_or_else(|| panic!("{name} in {checks:?}"))
}

fn code<'a>(checks: &'a [HealthCheck], name: &str) -> Option<&'a str> {
    find(checks, name).concern.as_ref().map(|concern| concern.code)
}

#[tokio::test]
async fn the_server_is_described() {
    let schema = Schema::new();
    let checks = schema.store().await.check_health().await.unwrap();
    assert!(find(&checks, "version").detail.starts_with("PostgreSQL 1"));
    assert_eq!(find(&checks, "schema").detail, format!("'{}', version 2 of 2", schema.name));
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

#[tokio::test]
async fn a_pooler_is_detected() {
    let url = engine_at("postgres-pooler");
    let schema = Schema::at(url);
    let store = schema.store().await;
    assert!(!store.capabilities().push_notifications);
    let checks = store.check_health().await.unwrap();
    assert_eq!(code(&checks, "wake-ups"), Some("POSTGRES_POOLER"));
    assert_eq!(code(&checks, "timeouts"), Some("POSTGRES_NO_TIMEOUTS"));
}
