//! Commands of workflows, run by the server.

use std::fs;

use serde_json::json;

use crate::support::{Sandbox, eventually};

use super::support::{Served, is_alive};

fn settings(script: &str, more: &str) -> String {
    let script = script.replace('\\', "\\\\").replace('"', "\\\"");
    format!("[workflows.a]\ncommand = [\"sh\", \"-c\", \"{script}\"]\n{more}\n")
}

#[test]
fn a_command_gets_its_payload_and_no_environment_of_the_server() {
    let sandbox = Sandbox::new();
    let script = r#"cat > in; cat "$LEASEHOLD_PAYLOAD_FILE" > file; stat -c %a "$LEASEHOLD_PAYLOAD_FILE" > mode; env > env; echo "$LEASEHOLD_PAYLOAD_FILE" > path; echo "{\"ok\": true}"; echo almost >&2"#;
    let settings = settings(script, "environment = [\"XDG_STATE_HOME\", \"NOT_SET\"]");
    let served = Served::ready(&sandbox, &settings);
    let id = served.start_key("a", "k").id();
    let done = served.until(&id, "succeeded");
    assert_eq!(done["result"], json!({ "ok": true }));
    let read = |name: &str| fs::read_to_string(sandbox.path().join(name)).unwrap();
    assert_eq!((read("in").as_str(), read("file").as_str()), ("{\"a\":1}", "{\"a\":1}"));
    assert_eq!(read("mode"), "600\n");
    assert!(!fs::exists(read("path").trim()).unwrap(), "it is removed after");
    let env = read("env");
    let mut names: Vec<_> =
        env.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.retain(|name| !["_", "OLDPWD", "PWD", "SHLVL", "LANG", "TZ"].contains(name));
    assert_eq!(
        names,
        [
            "HOME",
            "LEASEHOLD_ATTEMPT",
            "LEASEHOLD_EXECUTION_ID",
            "LEASEHOLD_KEY",
            "LEASEHOLD_LOCK_TOKEN",
            "LEASEHOLD_PAYLOAD_FILE",
            "LEASEHOLD_PROGRESS",
            "LEASEHOLD_TOKEN",
            "LEASEHOLD_WORKFLOW",
            "PATH",
            "XDG_STATE_HOME"
        ]
    );
    assert!(env.contains(&format!("LEASEHOLD_EXECUTION_ID={id}\n")), "{env}");
}

#[test]
fn the_exit_code_decides_and_a_failed_key_is_tried_again() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, &settings("echo it is broken >&2; test -e mended", ""));
    let first = served.start_key("a", "k").id();
    let failed = served.until(&first, "failed");
    assert_eq!(failed["reason"], "the command failed with exit code 1\nit is broken");
    fs::write(sandbox.path().join("mended"), "").unwrap();
    let again = served.start_key("a", "k");
    assert_eq!((again.status, &again.body["attempt"]), (201, &json!(2)), "{again:?}");
    assert_eq!(again.body["retryOf"], first.as_str());
    served.until(&again.id(), "succeeded");
    assert_eq!(served.start_key("a", "k").body["duplicate"], true);
}

#[test]
fn executions_that_wait_run_one_after_the_other() {
    let sandbox = Sandbox::new();
    let script = "test ! -e busy && touch busy && sleep 0.1 && cat >> order && echo >> order && rm busy";
    let served = Served::ready(&sandbox, &settings(script, "on_locked = \"queue\""));
    let mut ids = Vec::new();
    for number in 0..4 {
        let reply = served.post("/api/v1/workflows/a/executions", &json!({ "input": number }));
        assert!([201, 202].contains(&reply.status), "{reply:?}");
        ids.push(reply.id());
    }
    for id in &ids {
        served.until(id, "succeeded");
    }
    assert_eq!(fs::read_to_string(sandbox.path().join("order")).unwrap(), "0\n1\n2\n3\n");
}

#[test]
fn an_abort_holds_the_lock_until_the_process_is_dead() {
    let sandbox = Sandbox::new();
    let script = "trap 'sleep 0.5; echo done > last; exit 1' TERM; echo $$ > pid; sleep 100 & wait";
    let served = Served::ready(&sandbox, &settings(script, ""));
    let id = served.start_key("a", "k").id();
    eventually("begun", || {
        fs::read_to_string(sandbox.path().join("pid")).is_ok_and(|pid| pid.ends_with('\n'))
    });
    let asked = served.post(&format!("/api/v1/executions/{id}/abort"), &json!({ "reason": "enough" }));
    assert_eq!((asked.status, &asked.body["state"]), (202, &json!("running")));
    assert_eq!(served.start_key("a", "other").status, 409);
    let ended = served.until(&id, "aborted");
    assert!(ended["reason"].as_str().unwrap().contains("enough"), "{ended}");
    assert!(sandbox.path().join("last").exists(), "it had time to end");
    let pid = fs::read_to_string(sandbox.path().join("pid")).unwrap();
    assert!(!is_alive(pid.trim()));
    eventually("free", || served.get("/api/v1/workflows/a/lock").body["isLocked"] == false);
    let over = served.post(&format!("/api/v1/executions/{id}/abort"), &json!({}));
    assert_eq!((over.status, &over.body["code"]), (409, &json!("EXECUTION_FINISHED")));
}

#[test]
fn an_execution_over_its_max_runtime_is_stopped() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, &settings("sleep 100", "max_runtime = \"300ms\""));
    let id = served.start_key("a", "k").id();
    let ended = served.until(&id, "aborted");
    assert!(ended["reason"].as_str().unwrap().starts_with("timeout"), "{ended}");
}
