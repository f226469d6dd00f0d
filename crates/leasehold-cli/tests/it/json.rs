//! `--json` of every command: stdout and stderr are JSON and nothing else, in the shapes of
//! docs/json.md.

use serde_json::{Value, json};

use super::support::{Ran, Sandbox, run};

/// Parses a text that is one value, or one value per line.
fn values(text: &str) -> Vec<Value> {
    if let Ok(value) = serde_json::from_str(text) {
        return vec![value];
    }
    let read = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    text.lines().map(read).collect()
}

fn json(sandbox: &Sandbox, words: &str) -> (Ran, Vec<Value>, Vec<Value>) {
    let ran = sandbox.run(&format!("--json {words}"));
    let (out, error) = (values(&ran.stdout), values(&ran.stderr));
    (ran, out, error)
}

/// A change returns `success`, a query returns the object itself, and lists are arrays.
#[test]
fn every_command_writes_json_and_nothing_else() {
    let sandbox = Sandbox::new();
    let id = sandbox.json("tasks add q --key k")["id"].as_str().unwrap().to_owned();
    sandbox.run_words(&["schedules", "set", "s", "@daily", "q"]);
    sandbox.run("workflows run w -- true");
    let execution = sandbox.json("executions list")[0]["id"].as_str().unwrap().to_owned();
    let held = sandbox.hold("l");
    for words in [
        &format!("locks renew l {}", held.with),
        "locks ask l --reason why",
        "locks wait l --for held",
        &format!("locks release l {}", held.with),
        "locks acquire l",
        "locks release l --force --reason why --yes",
        "sweep",
        "store init",
        "tasks add q",
        &format!("tasks update {id} --version 1 --priority 3"),
        "queues pause q",
        "queues resume q",
        "queues retention q",
        "schedules pause s",
        "schedules resume s",
        "tasks recover",
        "tasks retry --failed --queue q",
        "tasks purge --older-than 1h --yes",
        "token new --name ci --role worker",
        "token new --name ci --role worker --print-hash",
        "schedules remove s",
    ] {
        let (ran, out, error) = json(&sandbox, words);
        assert_eq!((ran.code, error.len()), (0, 0), "{words}: {ran:?}");
        let [answer] = &out[..] else { panic!("{words}: one value: {ran:?}") };
        assert_eq!(answer["success"], true, "{words}: {answer}");
    }
    for words in [
        "locks status l",
        "locks why l",
        &format!("tasks show {id}"),
        &format!("executions show {execution}"),
        "workflows status w",
        "doctor",
    ] {
        let (ran, out, error) = json(&sandbox, words);
        assert_eq!((ran.code, error.len(), out.len()), (0, 0, 1), "{words}: {ran:?}");
        assert!(out[0].is_object(), "{words}: {ran:?}");
    }
    for words in [
        "locks list",
        "history",
        "tasks list",
        "tasks counts",
        "queues list",
        "schedules list",
        "workflows list",
        "executions list",
        "workers",
        "token list",
        &format!("tasks cancel {id}"),
        &format!("tasks retry {id}"),
    ] {
        let (ran, out, error) = json(&sandbox, words);
        assert_eq!((ran.code, error.len(), out.len()), (0, 0, 1), "{words}: {ran:?}");
        assert!(out[0].is_array(), "{words}: {ran:?}");
    }
    for words in [
        "locks renew l --lease-id 00000000-0000-0000-0000-000000000001 --token 5",
        "fence check l --token 5",
        "locks ask l",
        "tasks show 1",
        "schedules show nothing",
        "executions show exec_1",
        "run l --wait -- true",
        "nonsense",
        "token revoke nothing",
        "--store nothing: locks list",
    ] {
        let (ran, out, error) = json(&sandbox, words);
        assert_ne!(ran.code, 0, "{words}");
        assert_eq!((out.len(), error.len()), (0, 1), "{words}: {ran:?}");
        let failure = &error[0];
        assert_eq!(failure["success"], false, "{words}: {failure}");
        assert!(failure["code"].is_string() && failure["error"].is_string(), "{words}: {failure}");
    }
}

#[test]
fn a_lock_has_one_name_everywhere() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("l");
    for words in [
        "locks status l",
        "locks why l",
        &format!("locks renew l {}", held.with),
        &format!("fence check l --token {}", held.token),
        "locks ask l",
        &format!("locks release l {}", held.with),
        "locks acquire l",
    ] {
        assert_eq!(sandbox.json(words)["name"], "l", "{words}");
    }
    assert_eq!(sandbox.json("locks list")[0]["name"], "l");
}

/// Messages about waiting are JSON too.
#[test]
fn a_run_that_waits_writes_json_to_stderr() {
    let sandbox = Sandbox::new();
    sandbox.hold("l --holder ada");
    let (ran, out, error) = json(&sandbox, "run l --wait 900ms -- echo never");
    assert_eq!((ran.code, out.len()), (75, 0), "{ran:?}");
    let [waiting, failure] = &error[..] else { panic!("two lines: {ran:?}") };
    assert_eq!(waiting["event"], "message");
    assert!(
        waiting["message"].as_str().unwrap().starts_with("waiting for lock 'l', held by ada"),
        "{waiting}"
    );
    assert_eq!((&failure["success"], &failure["code"]), (&json!(false), &json!("LOCK_CONFLICT")));
}

fn with_script(sandbox: &Sandbox, words: &str, script: &str) -> (i32, Vec<Value>, Vec<Value>) {
    let words = ["--json"].into_iter().chain(words.split_whitespace());
    let ran = run(&mut sandbox.command(words.chain(["--", "sh", "-c", script])));
    (ran.code, values(&ran.stdout), values(&ran.stderr))
}

#[test]
fn a_worker_reports_its_attempts() {
    let sandbox = Sandbox::new();
    let id = sandbox.json("tasks add q --max-attempts 1")["id"].clone();
    let (code, out, error) = with_script(&sandbox, "tasks work q --until-empty", "echo one; printf '[3]'");
    assert_eq!((code, error.len()), (0, 0), "{out:?}");
    let events: Vec<_> = out.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["working", "started", "output", "output", "ended"], "{out:?}");
    assert!(out[1..].iter().all(|line| line["task"] == id && line["queue"] == "q"), "{out:?}");
    assert_eq!((&out[2]["stream"], &out[2]["text"]), (&json!("stdout"), &json!("one")));
    let end = &out[4];
    assert_eq!(
        (&end["success"], &end["outcome"], &end["willRetry"]),
        (&json!(true), &json!("succeeded"), &json!(false))
    );
    assert_eq!(end["result"], "one\n[3]");
    sandbox.json("tasks add q --max-attempts 2 --backoff 1h");
    let (_, out, _) = with_script(&sandbox, "tasks work q --once", "echo no >&2; exit 3");
    let end = out.last().unwrap();
    assert_eq!((&end["outcome"], &end["willRetry"]), (&json!("failed"), &json!(true)), "{out:?}");
    assert_eq!(end["error"], "the command failed with exit code 3");
    assert!(out.iter().any(|line| line["stream"] == "stderr" && line["text"] == "no"), "{out:?}");
}

#[test]
fn a_workflow_that_is_run_reports_its_start_and_its_end() {
    let sandbox = Sandbox::new();
    let go = |words: &str, script: &str| with_script(&sandbox, &format!("workflows run w {words}"), script);
    let (code, out, error) = go("--key k", "echo '{\"hosts\": 3}'");
    assert_eq!((code, error.len()), (0, 0), "{out:?}");
    let (first, last) = (&out[0], out.last().unwrap());
    assert_eq!((&first["event"], &first["outcome"]), (&json!("start"), &json!("started")));
    assert_eq!((&last["event"], &last["success"]), (&json!("finished"), &json!(true)));
    assert_eq!(last["execution"]["result"], json!({"hosts": 3}));
    assert_eq!(last["execution"]["id"], first["executionId"]);
    let (code, out, error) = go("--key k", "true");
    assert_eq!((code, out.len(), error.len()), (0, 1, 0));
    assert_eq!((&out[0]["outcome"], &out[0]["state"]), (&json!("duplicate"), &json!("succeeded")));
    let (code, out, error) = go("--key f", "exit 4");
    assert_eq!((code, error.len()), (1, 1), "{out:?}");
    assert_eq!((&error[0]["code"], &error[0]["success"]), (&json!("EXECUTION_FAILED"), &json!(false)));
    assert!(error[0]["error"].as_str().unwrap().ends_with("failed: the command failed with exit code 4"));
    assert_eq!(out.last().unwrap()["execution"]["state"], "failed");
    let (code, out, error) = go("--key f --reuse never", "true");
    assert_eq!(
        (code, &out[0]["outcome"], &error[0]["code"]),
        (1, &json!("duplicate"), &json!("EXECUTION_FAILED"))
    );
    let (code, _, error) = go("--key k --input 1", "true");
    assert_eq!((code, &error[0]["code"]), (1, &json!("IDEMPOTENCY_KEY_REUSED")));
}
