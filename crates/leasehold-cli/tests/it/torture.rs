//! `torture`: a short run on each store of this machine, and the check of recorded histories.

use serde_json::{Value, json};

use super::http::Served;
use super::support::{Ran, Sandbox, run};

/// Runs `torture` on a store, and asserts that nothing is violated and that all was checked.
pub(crate) fn is_fit(sandbox: &Sandbox, store: &str, token: Option<&str>) -> Value {
    let words = "--json torture --seconds 12 --record history.jsonl";
    let mut command = sandbox.command(words.split(' '));
    command.env("LEASEHOLD_STORE", store);
    if let Some(token) = token {
        command.env("LEASEHOLD_API_TOKEN", token);
    }
    let ran = run(&mut command);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["violations"], &report["fit"]), (&0.into(), &true.into()), "{report:#}");
    let faults: u64 = report["faults"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert!(faults >= 10, "{report:#}");
    report
}

#[test]
fn sqlite_is_fit_under_faults() {
    let sandbox = Sandbox::new();
    let store = format!("sqlite:{}", sandbox.path().join("torture.db").display());
    let report = is_fit(&sandbox, &store, None);
    assert_eq!(report["engine"], "sqlite");
    // The recorded history says the same.
    let again = sandbox.json("torture check history.jsonl");
    assert_eq!(again, report);
    assert!(sandbox.ok("torture check history.jsonl").contains("fit for: exclusion ✓  fencing ✓"));
}

#[test]
fn a_server_is_fit_under_faults() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    is_fit(&sandbox, &format!("http://{}", served.address()), Some(served.token()));
}

#[test]
fn a_violation_is_shown_and_exits_with_1() {
    let sandbox = Sandbox::new();
    let header = r#"{"format":1,"store":"sqlite:x","engine":"sqlite","seed":1,"ttlMillis":1000,"workers":2,"proxied":true,"queues":true,"tasks":true}"#;
    let held_by = |process: u32, at: u64| {
        let acquire = json!({ "at": at, "process": process, "event": "acquire", "op": 1, "lock": "l", "mode": "exclusive" });
        let granted = json!({
            "at": at, "process": process, "event": "granted", "op": 1,
            "lease": process.to_string(), "token": process, "until": 1000,
        });
        format!("{acquire}\n{granted}\n")
    };
    let history = format!("{header}\n{}{}", held_by(1, 0), held_by(2, 10));
    std::fs::write(sandbox.path().join("h.jsonl"), history).unwrap();
    let Ran { code, stdout, .. } = sandbox.run("torture check h.jsonl");
    assert_eq!(code, 1, "{stdout}");
    for part in ["violations  1", "exclusion is violated: 'l' is held twice", r#""process":2,"#, "NOT fit"] {
        assert!(stdout.contains(part), "{stdout}");
    }
}

#[test]
fn bad_input_is_refused() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("no.jsonl"), "nonsense").unwrap();
    for (words, code, part) in [
        ("torture check missing.jsonl", 78, "cannot read missing.jsonl"),
        ("torture check no.jsonl", 78, "line 1 is no header of a history"),
        ("torture --faults kill,flood", 64, "'flood' is not a fault; faults are: kill, stop"),
        ("torture --seconds 0", 64, "--seconds"),
        ("--store memory: torture", 78, "exists in one process only"),
        ("torture --record missing/h.jsonl", 78, "cannot write missing/h.jsonl"),
    ] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, code, "{words}: {ran:?}");
        assert!(ran.stderr.contains(part), "{words}: {ran:?}");
    }
}
