//! Stores that sometimes break a promise are caught, each by the right check.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Leasehold;
use leasehold_torture::{Plan, Property, Report, Session, race, run};
use tokio::sync::watch;

#[path = "../helper/broken_store.rs"]
mod broken_store;

use broken_store::{BrokenStore, Ignores};

/// Runs workers of a broken store for ten seconds.
async fn report(ignores: &str, one_in: u32) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let worker = env!("CARGO_BIN_EXE_leasehold-torture-broken-worker");
    let plan = Plan {
        store: format!("sqlite:{}", folder.path().join("torture.db").display()),
        worker_command: vec![worker.into(), ignores.into(), one_in.to_string().into()],
        duration: Duration::from_secs(10),
        workers: 4,
        locks: 1,
        faults: Vec::new(),
        seed: 1,
        ttl: Duration::from_secs(1),
    };
    let (_stop, stops) = watch::channel(0);
    run(&plan, Session { record: None, progress: &mut |_| {}, stops }).await.unwrap()
}

/// Runs a broken store until the check of this property finds it, and returns the report. One run finds it,
/// unless the machine is so busy that few calls are made in ten seconds.
async fn found(ignores: &str, one_in: u32, property: Property) -> Report {
    let mut reports = Vec::new();
    for _ in 0..8 {
        let report = report(ignores, one_in).await;
        let checked = report.checked.iter().find(|checked| checked.property == property).unwrap();
        if !checked.violations.is_empty() {
            assert!(!report.fit, "{report}");
            return report;
        }
        reports.push(report.to_string());
    }
    panic!("{}", reports.join("\n"));
}

#[tokio::test]
async fn a_store_that_ignores_a_condition_once_in_a_thousand_calls_is_caught() {
    found("holder", 1000, Property::Exclusion).await;
}

#[tokio::test]
async fn a_release_that_ignores_the_token_is_caught() {
    found("token", 1, Property::Exclusion).await;
}

#[tokio::test]
async fn a_renewal_that_revives_an_ended_lease_is_caught() {
    found("end", 1, Property::Exclusion).await;
}

#[tokio::test]
async fn a_lease_of_a_task_that_ignores_its_owner_is_caught() {
    found("owner", 20, Property::Tasks).await;
}

#[tokio::test]
async fn a_lost_task_is_caught() {
    let shown = found("task", 100, Property::Tasks).await.to_string();
    assert!(shown.contains("was acknowledged and is lost"), "{shown}");
}

#[tokio::test]
async fn a_key_that_is_ignored_is_caught() {
    let report = found("key", 20, Property::Tasks).await;
    let tasks = report.checked.iter().find(|checked| checked.property == Property::Tasks).unwrap();
    assert!(tasks.violations.iter().any(|violation| violation.message.starts_with("key ")), "{report}");
}

#[tokio::test]
async fn a_race_finds_a_store_that_ignores_the_holder() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("race.db").display());
    let broken = async || {
        let store = Leasehold::connect(&url).await?.store();
        Leasehold::with_store(Arc::new(BrokenStore::new(store, Ignores::Holder, 1)))
    };
    let mut found = race(&broken).await.unwrap();
    // On a busy machine a race may have a single round.
    for _ in 0..5 {
        if !found.violations.is_empty() {
            break;
        }
        found = race(&broken).await.unwrap();
    }
    assert!(
        found.violations.iter().any(|violation| violation.contains("granted the lock at once")),
        "{found:?}"
    );

    let sound = race(async || Leasehold::connect(&url).await).await.unwrap();
    assert_eq!(
        (sound.clients, sound.failed, sound.violations.as_slice()),
        (16, 0, [].as_slice()),
        "{sound:?}"
    );
    assert!(sound.rounds > 0, "{sound:?}");
    // Nothing is held or waited for.
    let leasehold = Leasehold::connect(&url).await.unwrap();
    let locks = leasehold.locks().list(&leasehold::store::ListLocks::default()).await.unwrap().items;
    assert!(locks.iter().all(|lock| lock.name.as_str().starts_with("leasehold-doctor/")), "{locks:?}");
    assert!(locks.iter().all(|lock| lock.holders.is_empty() && lock.waiters.is_empty()), "{locks:?}");
}
