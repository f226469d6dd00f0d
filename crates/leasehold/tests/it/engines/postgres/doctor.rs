//! What `leasehold doctor` is told.

use leasehold::store::{HealthCheck, Store};

use super::server::Schema;
use crate::engines::support::engine_at;

fn find<'a>(findings: &'a [HealthCheck], name: &str) -> &'a HealthCheck {
    findings.iter().find(|finding| finding.name == name).unwrap_or_else(|| panic!("{name} in {findings:?}"))
}

fn code<'a>(findings: &'a [HealthCheck], name: &str) -> Option<&'a str> {
    find(findings, name).concern.as_ref().map(|concern| concern.code)
}

#[tokio::test]
async fn the_server_is_explained() {
    let Some(schema) = Schema::new() else { return };
    let findings = schema.store().await.check_health().await.unwrap();
    assert!(find(&findings, "version").detail.starts_with("PostgreSQL 1"));
    assert_eq!(find(&findings, "schema").detail, format!("'{}', version 7 of 7", schema.name));
    assert_eq!(find(&findings, "role").detail, "primary");
    assert_eq!(find(&findings, "wake-ups").detail, "arrive");
    // The tests' server is not made to last.
    assert_eq!(code(&findings, "fsync"), Some("POSTGRES_FSYNC_OFF"));
    let off = "options=-c%20synchronous_commit%3Doff";
    let store = leasehold::store::postgres::PostgresStore::connect(schema.options(off)).await.unwrap();
    let findings = store.check_health().await.unwrap();
    assert_eq!(code(&findings, "synchronous_commit"), Some("POSTGRES_SYNC_COMMIT_OFF"));
    assert_eq!(code(&findings, "timeouts"), None);
}

#[tokio::test]
async fn a_pooler_is_noticed() {
    let Some(url) = engine_at("postgres-pooler") else { return };
    let schema = Schema::at(url);
    let store = schema.store().await;
    assert!(!store.capabilities().wakes);
    let findings = store.check_health().await.unwrap();
    assert_eq!(code(&findings, "wake-ups"), Some("POSTGRES_POOLER"));
    assert_eq!(code(&findings, "timeouts"), Some("POSTGRES_NO_TIMEOUTS"));
}
