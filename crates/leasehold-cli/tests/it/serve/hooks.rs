//! Webhooks that run commands: variables of the event, and events that run nothing.

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};

use crate::support::{Sandbox, eventually};

use super::support::{Reply, Served, request};

const SETTINGS: &str = r#"
[workflows.a]
command = ["sh", "-c", "env | grep ^LEASEHOLD_WEBHOOK_ | sort > env.part; mv env.part env"]
environment = ["LEASEHOLD_WEBHOOK_EVENT"]
[triggers.requests]
workflow = "a"
scheme = "github"
secrets = ["hush"]
events = ["pull_request"]
"#;

/// Returns a delivery that is signed as GitHub does.
fn deliver(served: &Served, headers: &[(&str, &str)], body: &Value) -> Reply {
    let body = body.to_string();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"hush");
    let code = ring::hmac::sign(&key, body.as_bytes());
    let code = code.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
    let signature = format!("sha256={code}");
    let headers = [&[("x-hub-signature-256", signature.as_str())], headers].concat();
    request(served.address, "POST", "/api/webhooks/requests", &headers, &body)
}

const OPENED: [(&str, &str); 2] = [("x-github-event", "pull_request"), ("x-github-delivery", "guid-1")];
const VARIABLES: &str = "LEASEHOLD_WEBHOOK_DELIVERY=guid-1\nLEASEHOLD_WEBHOOK_EVENT=pull_request.opened\n\
                         LEASEHOLD_WEBHOOK_TRIGGER=requests\n";

#[test]
fn a_command_knows_the_webhook_that_started_it() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, SETTINGS);
    let started = deliver(&served, &OPENED, &json!({ "action": "opened" }));
    assert_eq!((started.status, &started.body["started"]), (200, &json!(true)), "{started:?}");
    served.until(&started.id(), "succeeded");
    assert_eq!(fs::read_to_string(sandbox.path().join("env")).unwrap(), VARIABLES);
}

/// Neither the input of a caller nor the environment of the server looks like a webhook to the
/// command.
#[test]
fn a_command_without_a_webhook_has_no_webhook_variables() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("leasehold.toml"), SETTINGS).unwrap();
    let mut command = sandbox.command(["--json", "serve", "--open", "--listen", "127.0.0.1:0"]);
    command.args(["--config", "leasehold.toml"]).env("LEASEHOLD_WEBHOOK_EVENT", "push");
    let served = Served::spawn(command.stdout(Stdio::piped()));
    eventually("ready", || served.get("/readyz").status == 200);
    let claim = json!({ "input": { "json": 1 }, "metadata": { "webhookTrigger": "requests", "webhookEvent": "push" } });
    let started = served.post("/api/v1/workflows/a/executions", &json!({ "input": claim.clone() }));
    served.until(&started.id(), "succeeded");
    assert_eq!(fs::read_to_string(sandbox.path().join("env")).unwrap(), "");
    let task = json!({ "payload": claim });
    let claimed = served.post("/api/v1/queues/workflow%2Fa/tasks", &task);
    assert_eq!((claimed.status, &claimed.body["code"]), (403, &json!("FORBIDDEN")), "{claimed:?}");
}

#[test]
fn an_execution_that_another_server_runs_knows_its_webhook_too() {
    let sandbox = Sandbox::new();
    let first = Served::ready(&sandbox, SETTINGS);
    // A queue is created with its first task.
    let before = [("x-github-event", "pull_request"), ("x-github-delivery", "guid-0")];
    first.until(&deliver(&first, &before, &json!({ "action": "closed" })).id(), "succeeded");
    fs::remove_file(sandbox.path().join("env")).unwrap();
    assert_eq!(first.post("/api/v1/queues/workflow%2Fa/pause", &json!({})).status, 200);
    let id = deliver(&first, &OPENED, &json!({ "action": "opened" })).id();
    first.signal("-KILL");
    first.wait();
    assert!(!sandbox.path().join("env").exists());
    let second = Served::ready(&sandbox, SETTINGS);
    assert_eq!(second.post("/api/v1/queues/workflow%2Fa/resume", &json!({})).status, 200);
    second.until(&id, "succeeded");
    assert_eq!(fs::read_to_string(sandbox.path().join("env")).unwrap(), VARIABLES);
}

#[test]
fn a_ping_and_a_filtered_event_run_nothing() {
    let sandbox = Sandbox::new();
    let served = Served::ready(&sandbox, SETTINGS);
    for event in ["ping", "issues"] {
        let headers = [("x-github-event", event), ("x-github-delivery", event)];
        let reply = deliver(&served, &headers, &json!({ "action": "opened" }));
        assert_eq!((reply.status, &reply.body["started"]), (200, &json!(false)), "{reply:?}");
        assert!(reply.body["reason"].as_str().unwrap().contains(event), "{reply:?}");
    }
    assert_eq!(served.get("/api/v1/executions").body["executions"], json!([]));
}

/// Unsigned deliveries fill neither the log nor the disk.
#[test]
fn refused_deliveries_are_logged_once_in_a_second_and_counted() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("leasehold.toml"), SETTINGS).unwrap();
    let log = sandbox.path().join("log");
    let mut command = sandbox.command(["--json", "serve", "--open", "--listen", "127.0.0.1:0"]);
    command.args(["--config", "leasehold.toml"]).stdout(Stdio::piped());
    let served = Served::spawn(command.stderr(fs::File::create(&log).unwrap()));
    eventually("ready", || served.get("/readyz").status == 200);
    let began = Instant::now();
    for number in 0..200 {
        let trigger = if number % 2 == 0 { "requests" } else { "no-such-trigger" };
        let refused = request(served.address, "POST", &format!("/api/webhooks/{trigger}"), &[], "{}");
        assert!([401, 404].contains(&refused.status), "{refused:?}");
    }
    let most = began.elapsed().as_secs() + 1;
    let log = fs::read_to_string(&log).unwrap();
    let lines = log.lines().filter(|line| line.contains("webhook refused")).count() as u64;
    assert!((1..=most).contains(&lines), "{lines} lines in {most} s:\n{log}");
    assert!(!log.contains("no-such-trigger"), "{log}");
    let metrics = served.get("/metrics").body;
    for series in [
        "{trigger=\"requests\",reason=\"missing_signature\"} 100\n",
        "{trigger=\"\",reason=\"unknown_trigger\"} 100\n",
    ] {
        let series = format!("leasehold_webhook_refused_total{series}");
        assert!(metrics.as_str().unwrap().contains(&series), "{series}: {metrics}");
    }
}

#[test]
fn an_invalid_filter_is_named_by_check() {
    let sandbox = Sandbox::new();
    let checked = |line: &str| {
        fs::write(sandbox.path().join("leasehold.toml"), format!("{SETTINGS}{line}\n")).unwrap();
        let ran = sandbox.run("serve --config leasehold.toml --check");
        assert_eq!(ran.code, 78, "{ran:?}");
        ran.stderr
    };
    let wrong = checked("when = [\"$.a\", \"$[?@.b =]\"]");
    assert!(wrong.contains("leasehold.toml, line 10, 'when': invalid JSONPath query '$[?@.b =]'"), "{wrong}");
    let wrong = checked("branches = [\"release/*/x\"]");
    assert!(wrong.contains("leasehold.toml, line 10, 'branches': invalid pattern 'release/*/x'"), "{wrong}");
}
