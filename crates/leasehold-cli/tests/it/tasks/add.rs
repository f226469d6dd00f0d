//! `tasks add`.

use std::io::Write;
use std::process::Stdio;

use crate::support::{Ran, Sandbox, run, shape};

#[test]
fn a_task_is_added_and_its_id_printed() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail", "--payload", r#"{"to": "ada", "big": 12345678901234567890123}"#]);
    let task = sandbox.task(&id);
    assert_eq!((&task["queue"], &task["state"]), (&"mail".into(), &"pending".into()));
    // Numbers that do not fit into a float are kept as they were written.
    assert!(sandbox.ok(&format!("--json tasks show {id}")).contains("12345678901234567890123"));
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok("tasks add mail")), @"[ID]");
    insta::assert_snapshot!("json-add", shape(sandbox.json("tasks add mail --payload 1 --key k")));
}

#[test]
fn every_option_arrives() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&[
        "mail",
        "--key",
        "k",
        "--priority",
        "-7",
        "--lock",
        "a lock",
        "--max-attempts",
        "3",
        "--backoff",
        "2s",
        "--run-at",
        "2100-01-01T00:00:00+01:00",
    ]);
    insta::assert_snapshot!(shape(sandbox.task(&id)));
    let delayed = sandbox.add(&["mail", "--delay", "1h"]);
    assert_eq!(sandbox.task(&delayed)["state"], "scheduled");
}

#[test]
fn the_same_key_and_payload_is_the_same_task() {
    let sandbox = Sandbox::new();
    let first = sandbox.add(&["mail", "--payload", "[1]", "--key", "k"]);
    let again = sandbox.run("tasks add mail --payload [1] --key k");
    assert_eq!(again.stdout, format!("{first}  duplicate pending\n"));
    let again = sandbox.json("tasks add mail --payload [1.0] --key k");
    assert_eq!((&again["duplicate"], &again["state"]), (&true.into(), &"pending".into()));
    let other = sandbox.run("tasks add mail --payload [2] --key k");
    assert_eq!(other.code, 1);
    assert!(other.stderr.contains("was added with another payload"), "{other:?}");
    let other = sandbox.run("--json tasks add mail --payload [2] --key k");
    assert!(other.stderr.contains(r#""code":"KEY_REUSED""#), "{other:?}");
    assert_ne!(sandbox.add(&["letters", "--payload", "[2]", "--key", "k"]), first);
}

/// A caller that adds the task again wants it to run: a failed duplicate is not a success.
#[test]
fn a_duplicate_of_a_failed_task_exits_with_1() {
    let sandbox = Sandbox::new();
    let first = sandbox.add(&["mail", "--key", "k", "--max-attempts", "1"]);
    sandbox.work("mail", "exit 3");
    let again = sandbox.run("tasks add mail --key k");
    assert_eq!((again.code, again.stdout), (1, format!("{first}  duplicate failed\n")));
    let reused = sandbox.run("tasks add mail --payload [2] --key k --reuse failed");
    assert_eq!(reused.code, 0, "{reused:?}");
    assert!(!reused.stdout.contains("duplicate"), "{reused:?}");
    sandbox.work("mail", "true");
    let again = sandbox.run("tasks add mail --payload [2] --key k --reuse failed");
    assert!(again.code == 0 && again.stdout.ends_with("duplicate succeeded\n"), "{again:?}");
    assert_eq!(sandbox.run("tasks add mail --payload [3] --key k --reuse finished").code, 0);
}

fn fed(sandbox: &Sandbox, words: &str, input: &str) -> Ran {
    let mut command = sandbox.command(words.split_whitespace());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_payload_comes_from_a_file_or_from_stdin() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("order.json"), " {\"a\":1}\n").unwrap();
    let from_file = sandbox.add(&["mail", "--payload", "@order.json", "--key", "k"]);
    let from_stdin = fed(&sandbox, "tasks add mail --payload - --key k", "{\"a\":1}");
    assert_eq!(
        from_stdin.stdout,
        format!("{from_file}  duplicate pending\n"),
        "blanks around it do not count"
    );
}

#[test]
fn many_are_added_line_by_line() {
    let sandbox = Sandbox::new();
    let lines: Vec<_> = (0..1234).map(|number| format!("{{\"n\": {number}}}\n")).collect();
    let ran = fed(&sandbox, "tasks add mail --lines - --priority 3", &lines.concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "added 1234 tasks to 'mail'\n"), "{ran:?}");
    assert_eq!(sandbox.json("tasks counts mail")[0]["counts"]["pending"], 1234);
    let all = sandbox.json("tasks list --all");
    assert_eq!(all.as_array().unwrap().len(), 1234);
    assert_eq!(all[0]["priority"], 3);
    std::fs::write(sandbox.path().join("two"), "1\n\n2").unwrap();
    assert_eq!(sandbox.json("tasks add mail --lines two")["added"], 2);
}

#[test]
fn a_bad_line_is_named_and_earlier_lines_stay() {
    let sandbox = Sandbox::new();
    let lines = format!("{}oops\n", "1\n".repeat(600));
    let ran = fed(&sandbox, "tasks add mail --lines -", &lines);
    assert_eq!((ran.code, ran.stdout.as_str()), (64, ""));
    assert!(ran.stderr.contains("stdin, line 601: the payload is not JSON"), "{ran:?}");
    assert!(ran.stderr.contains("500 tasks before this line were added"), "{ran:?}");
    assert_eq!(sandbox.json("tasks counts mail")[0]["counts"]["pending"], 500);
}

#[test]
fn a_payload_that_is_too_large_is_refused_wherever_it_comes_from() {
    let sandbox = Sandbox::new();
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    std::fs::write(sandbox.path().join("large"), &large).unwrap();
    for words in ["tasks add mail --payload @large", "tasks add mail --lines large"] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, 64, "{words}");
        assert!(ran.stderr.contains("1048576 bytes is the most"), "{words}: {}", ran.stderr);
    }
    let missing = run(&mut sandbox.command(["tasks", "add", "mail", "--payload", "@nowhere"]));
    assert_eq!(missing.code, 64);
    assert!(missing.stderr.contains("file 'nowhere' cannot be read"), "{missing:?}");
}
