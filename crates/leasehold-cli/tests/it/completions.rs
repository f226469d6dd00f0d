//! Completions: the scripts for shells, and what they show from the store.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use super::support::{Sandbox, eventually, run};

/// Returns what bash would complete for the last of these words.
fn completed(sandbox: &Sandbox, words: &[&str]) -> Vec<String> {
    complete(&mut completion(sandbox, words))
}

fn completion(sandbox: &Sandbox, words: &[impl AsRef<OsStr>]) -> Command {
    let mut command = sandbox.command(["--", "leasehold"]);
    command.args(words).env("LEASEHOLD_COMPLETE", "bash");
    command.env("_CLAP_COMPLETE_INDEX", words.len().to_string()).env("_CLAP_IFS", "\n");
    command
}

fn complete(command: &mut Command) -> Vec<String> {
    let ran = run(command);
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.stdout.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn names_and_short_ids_come_from_the_store() {
    let sandbox = Sandbox::new();
    sandbox.hold("deploy/prod");
    sandbox.hold("deploy/test");
    let id = sandbox.ok("tasks add mail").trim().to_owned();
    sandbox.run_words(&["schedules", "set", "nightly", "0 3 * * *", "reports"]);
    assert_eq!(completed(&sandbox, &["locks", "why", "dep"]), ["deploy/prod", "deploy/test"]);
    assert_eq!(completed(&sandbox, &["run", "deploy/p"]), ["deploy/prod"]);
    assert_eq!(completed(&sandbox, &["tasks", "list", "--queue", "m"]), ["mail"]);
    assert_eq!(completed(&sandbox, &["tasks", "show", ""])[0], id.replace('-', "")[24..]);
    assert_eq!(completed(&sandbox, &["schedules", "pause", "n"]), ["nightly"]);
    assert!(completed(&sandbox, &["locks", "st"]).contains(&"status".to_owned()));
    assert!(completed(&sandbox, &["tasks", "list", "-o", "n"]).contains(&"name".to_owned()));
    assert_eq!(completed(&sandbox, &["queues", "retention", "m"]), ["mail"]);
    assert_eq!(completed(&sandbox, &["run", "--with", "deploy/t"]), ["deploy/test"]);
    sandbox.ok("workflows run deploy -- true");
    let executions = completed(&sandbox, &["executions", "show", "exec_"]);
    assert_eq!(executions.len(), 1, "{executions:?}");
    assert_eq!(completed(&sandbox, &["executions", "logs", "exec_"]), executions);
}

#[test]
fn short_ids_of_workers_come_from_the_store() {
    let sandbox = Sandbox::new();
    let mut worker = sandbox.start("tasks work mail -- true");
    eventually("the worker is listed", || sandbox.json("workers")[0]["id"].is_string());
    let id = sandbox.json("workers")[0]["id"].as_str().unwrap().replace('-', "");
    let found = completed(&sandbox, &["tasks", "list", "--worker", ""]);
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert_eq!(found, [&id[24..]]);
}

#[test]
fn the_typed_store_is_used_and_none_is_created() {
    let sandbox = Sandbox::new();
    sandbox.hold("a-lock");
    let other = format!("sqlite:{}", sandbox.path().join("other.db").display());
    assert!(completed(&sandbox, &["--store", &other, "locks", "why", "a"]).is_empty());
    assert!(!sandbox.path().join("other.db").exists());
    sandbox.ok(&format!("--store {other} locks acquire another"));
    assert_eq!(completed(&sandbox, &["--store", &other, "locks", "why", "a"]), ["another"]);
    assert_eq!(completed(&sandbox, &["locks", "why", "a"]), ["a-lock"]);
}

#[test]
fn the_default_store_is_used_and_not_created() {
    let sandbox = Sandbox::new();
    let mut why = completion(&sandbox, &["locks", "why", "a"]);
    why.env_remove("LEASEHOLD_STORE");
    assert!(complete(&mut why).is_empty());
    assert!(!sandbox.path().join("state").exists());
    let mut acquire = sandbox.command(["locks", "acquire", "a-lock"]);
    assert_eq!(run(acquire.env_remove("LEASEHOLD_STORE")).code, 0);
    assert_eq!(complete(&mut why), ["a-lock"]);
}

#[test]
fn a_word_that_is_not_utf8_does_not_matter() {
    let sandbox = Sandbox::new();
    sandbox.hold("a-lock");
    let words = [&b"tasks"[..], b"add", b"q", b"--payload", b"@caf\xe9", b"--lock", b"a"];
    let words = words.map(OsStr::from_bytes);
    assert_eq!(complete(&mut completion(&sandbox, &words)), ["a-lock"]);
}

#[test]
fn an_unreachable_store_has_no_names_and_ends_in_time() {
    let sandbox = Sandbox::new();
    let words = ["--store", "http://127.0.0.1:1", "locks", "why", "a"];
    assert!(completed(&sandbox, &words).is_empty());
}
