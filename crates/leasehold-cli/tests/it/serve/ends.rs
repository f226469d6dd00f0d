//! Shutdown and death of a server with running executions.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::run::full_pipe;
use crate::support::{Sandbox, catches_sigterm, eventually};

use super::support::{Served, is_alive};

const SLEEPS: &str =
    "[workflows.a]\ncommand = [\"sh\", \"-c\", \"echo $$ > pid; sleep ${T:-100} & wait\"]\nttl = \"3s\"\n";

fn pid(sandbox: &Sandbox) -> String {
    let file = sandbox.path().join("pid");
    eventually("begun", || fs::read_to_string(&file).is_ok_and(|pid| pid.ends_with('\n')));
    fs::read_to_string(file).unwrap().trim().to_owned()
}

#[test]
fn a_graceful_shutdown_lets_executions_finish_and_starts_no_more() {
    let sandbox = Sandbox::new();
    let script = "echo $$ > pid; until test -e go; do sleep 0.05; done";
    let settings = format!("grace = \"60s\"\n[workflows.a]\ncommand = [\"sh\", \"-c\", \"{script}\"]");
    let served = Served::ready(&sandbox, &settings);
    let id = served.start_key("a", "k").id();
    pid(&sandbox);
    served.signal("-TERM");
    eventually("draining", || served.get("/readyz").status == 503);
    let refused = served.start_key("a", "other");
    assert_eq!((refused.status, &refused.body["code"]), (503, &json!("DRAINING")), "{refused:?}");
    assert!(refused.head.contains("retry-after: "), "{refused:?}");
    assert_eq!(served.execution(&id)["state"], "running");
    fs::write(sandbox.path().join("go"), "").unwrap();
    assert_eq!(served.wait().code, 0);
    let other = Served::ready(&sandbox, &settings);
    assert_eq!(other.execution(&id)["state"], "succeeded");
    assert_eq!(other.get("/api/v1/workflows/a/lock").body["isLocked"], false);
}

#[test]
fn an_unfinished_execution_is_aborted_and_its_lock_is_free() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, &format!("grace = \"200ms\"\n{SLEEPS}"));
    let id = served.start_key("a", "k").id();
    let pid = pid(&sandbox);
    served.signal("-INT");
    assert_eq!(served.wait().code, 0);
    assert!(!is_alive(&pid));
    let other = Served::ready(&sandbox, SLEEPS);
    let ended = other.execution(&id);
    assert_eq!(ended["state"], "aborted");
    assert!(ended["reason"].as_str().unwrap().starts_with("shutdown"), "{ended}");
    assert_eq!(other.get("/api/v1/workflows/a/lock").body["isLocked"], false);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let sandbox = Sandbox::new();
    let settings = "grace = \"1h\"\n[workflows.a]\ncommand = [\"sh\", \"-c\", \"trap '' TERM; echo $$ > pid; while true; do sleep 1; done\"]\n";
    let served = Served::ready(&sandbox, settings);
    let id = served.start_key("a", "k").id();
    let pid = pid(&sandbox);
    served.signal("-TERM");
    eventually("draining", || served.get("/readyz").status == 503);
    served.signal("-TERM");
    assert_eq!(served.wait().code, 128 + 15);
    assert!(!is_alive(&pid));
    let other = Served::ready(&sandbox, SLEEPS);
    assert_eq!(other.execution(&id)["state"], "aborted");
}

/// The server does not wait for the reader of its output before it sees the second signal, and before it exits.
#[test]
fn a_second_signal_ends_a_server_whose_output_is_not_read() {
    for log in ["", "debug"] {
        let sandbox = Sandbox::new();
        let settings =
            "grace = \"1h\"\n[workflows.a]\ncommand = [\"sh\", \"-c\", \"echo $$ > pid; exec yes >&2\"]\n";
        let (served, _stderr) = Served::unread(&sandbox, settings, log);
        eventually("ready", || served.get("/readyz").status == 200);
        served.start_key("a", "k");
        let command = pid(&sandbox);
        // By then the pipe and the queue of the writer are full.
        std::thread::sleep(Duration::from_secs(1));
        let process = served.pid().to_string();
        // Two signals of a kind that are pending at the same time count as one.
        eventually("the end of the server", || {
            served.signal("-TERM");
            std::thread::sleep(Duration::from_millis(300));
            !is_alive(&process)
        });
        assert_eq!(served.wait().code, 128 + 15);
        eventually("the end of the command", || !is_alive(&command));
    }
}

/// No thread of the server waits for the reader of its log: leases are renewed, and one signal is enough.
#[test]
fn a_signal_ends_a_server_whose_log_is_not_read() {
    let sandbox = Sandbox::new();
    let (_unread, full) = full_pipe();
    let served = Served::logging(&sandbox, &format!("grace = \"200ms\"\n{SLEEPS}"), full);
    eventually("ready", || served.get("/readyz").status == 200);
    let id = served.start_key("a", "k").id();
    let command = pid(&sandbox);
    let expires = || sandbox.json("locks status workflow/a")["holders"][0]["expiresAt"].clone();
    let first = expires();
    eventually("a renewal", || expires() != first);
    assert_eq!(served.execution(&id)["state"], "running");
    served.signal("-TERM");
    let process = served.pid().to_string();
    eventually("the end of the server", || !is_alive(&process));
    assert_eq!(served.wait().code, 0);
    assert!(!is_alive(&command));
}

#[test]
fn a_log_that_is_read_late_is_complete() {
    let sandbox = Sandbox::new();
    let (late, full) = full_pipe();
    let settings = "[workflows.a]\ncommand = [\"true\"]\n";
    let served = Served::logging(&sandbox, settings, full);
    eventually("ready", || served.get("/readyz").status == 200);
    let mut ids = Vec::new();
    for key in ["1", "2", "3"] {
        let id = served.start_key("a", key).id();
        // Each request to the server adds a line to its log.
        eventually("its end", || sandbox.json(&format!("executions show {id}"))["state"] == "succeeded");
        ids.push(id);
    }
    let reader = std::thread::spawn(move || {
        let mut log = String::new();
        for line in BufReader::new(late).lines().map(Result::unwrap) {
            log += &line;
            if line.contains("stopping") {
                break;
            }
        }
        log
    });
    served.signal("-TERM");
    assert_eq!(served.wait().code, 0);
    let log = reader.join().unwrap();
    assert!(log.contains("stopping"), "{log}");
    assert!(ids.iter().all(|id| log.contains(id)) && !log.contains("dropped:"), "{log}");
}

/// The message or the event about its address cannot be written.
#[test]
fn a_signal_ends_a_server_whose_address_is_not_read() {
    for json in [false, true] {
        let sandbox = Sandbox::new();
        let (_unread, full) = full_pipe();
        let words: &[&str] = if json { &["--json", "serve"] } else { &["serve"] };
        let mut command = sandbox.command([words, &["--open", "--listen", "127.0.0.1:0"]].concat());
        if json {
            command.stdout(full).stderr(Stdio::null());
        } else {
            command.stdout(Stdio::null()).stderr(full);
        }
        let served = Served::unannounced(&mut command);
        eventually("it catches signals", || catches_sigterm(served.pid()));
        served.signal("-TERM");
        let process = served.pid().to_string();
        eventually("the end of the server", || !is_alive(&process));
        assert_eq!(served.wait().code, 0);
    }
}

#[test]
fn a_killed_server_ends_its_command_and_keeps_the_key_usable() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, SLEEPS);
    let id = served.start_key("a", "k").id();
    let pid = pid(&sandbox);
    served.until(&id, "running");
    served.signal("-KILL");
    served.wait();
    eventually("dead", || !is_alive(&pid));
    fs::remove_file(sandbox.path().join("pid")).unwrap();
    let other = Served::ready(&sandbox, SLEEPS);
    let ended = other.until(&id, "failed");
    assert_eq!(ended["reason"], "lease expired");
    let again = other.start_key("a", "k");
    assert_eq!((again.status, &again.body["attempt"]), (201, &json!(2)), "{again:?}");
    assert_eq!(again.body["retryOf"], id.as_str());
    other.until(&again.id(), "running");
    let stale = json!({ "token": ended["token"], "status": "succeeded" });
    let zombie = other.post(&format!("/api/v1/executions/{id}/complete"), &stale);
    assert_eq!(zombie.status, 409, "{zombie:?}");
}
