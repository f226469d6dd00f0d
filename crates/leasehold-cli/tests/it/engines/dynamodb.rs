//! The binary on DynamoDB.

use super::support::engine_at;
use crate::support::Sandbox;
use crate::torture::{is_fit, race_is_fair};

#[test]
fn it_is_fit_under_faults() {
    let (sandbox, store) = (Sandbox::new(), engine_at("dynamodb"));
    sandbox.ok(&format!("--store {store} store init"));
    let report = is_fit(&sandbox, &store, None);
    assert_eq!(report["engine"], "dynamodb");
}

#[test]
fn a_missing_table_is_created_with_the_command_of_the_hint() {
    let (sandbox, store) = (Sandbox::new(), engine_at("dynamodb"));
    let table = format!("missing-{}", std::process::id());
    let store = store.replacen("dynamodb://leasehold", &format!("dynamodb://{table}"), 1);
    let ran = sandbox.run(&format!("--store {store} locks list"));
    assert_eq!(ran.code, 78, "{ran:?}");
    let hint = format!("create it with: leasehold --store '{store}' store init;");
    assert!(ran.stderr.contains(&hint), "{ran:?}");
    for words in ["torture", "doctor --race"] {
        let ran = sandbox.run(&format!("--store {store} {words}"));
        assert_eq!(ran.code, 78, "{words}: {ran:?}");
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains("store init"), "{words}: {ran:?}");
    }
    sandbox.ok(&format!("--store {store} store init"));
    sandbox.ok(&format!("--store {store} locks list"));
}

#[test]
fn one_client_wins_a_race() {
    let (sandbox, store) = (Sandbox::new(), engine_at("dynamodb"));
    sandbox.ok(&format!("--store {store} store init"));
    race_is_fair(&sandbox, &store);
}
