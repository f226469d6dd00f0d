//! A store that sometimes ignores a condition is caught.

use std::time::Duration;

use leasehold_torture::{Plan, Property, Report, run};

#[tokio::test]
async fn a_store_that_ignores_a_condition_is_caught() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan {
        store: format!("sqlite:{}", folder.path().join("torture.db").display()),
        worker_command: vec![env!("CARGO_BIN_EXE_leasehold-torture-broken-worker").into()],
        duration: Duration::from_secs(10),
        workers: 4,
        locks: 1,
        faults: Vec::new(),
        seed: 1,
        ttl: Duration::from_secs(1),
    };
    let report = Report::of(&run(&plan, |_| {}).await.unwrap());
    let exclusion = report.checked.iter().find(|checked| checked.property == Property::Exclusion).unwrap();
    assert!(!exclusion.violations.is_empty(), "{report}");
    assert!(!report.fit, "{report}");
}
