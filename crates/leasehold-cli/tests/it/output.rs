//! Destinations of output, and errors of writing it.

use std::fs::OpenOptions;
use std::process::Stdio;

use super::support::{Ran, Sandbox, run};

/// Runs with a reader that has closed the pipe before anything is written.
fn with_closed_reader(sandbox: &Sandbox, words: &str) -> Ran {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = sandbox.command(words.split_whitespace());
    command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().map(Ran::from).unwrap()
}

#[test]
fn a_closed_reader_is_no_error() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    for words in [
        "locks list",
        "locks status a --json",
        "history",
        "doctor",
        "man",
        "completions bash",
        "--help",
        "--version",
        "locks why a",
    ] {
        let ran = with_closed_reader(&sandbox, words);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words}");
    }
}

/// The caller sees the result in the exit code, as after `leasehold tasks wait ID | head -1`.
#[test]
fn a_closed_reader_does_not_hide_the_result() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let added = sandbox.ok("tasks add q --key k");
    let id = added.split_whitespace().next().unwrap();
    sandbox.ok(&format!("tasks cancel {id}"));
    let other = sandbox.ok("tasks add q");
    let (wait, cancel) = (format!("tasks wait {id}"), format!("tasks cancel {} {id}", other.trim()));
    for (words, code) in [
        ("locks status a --exit-code", 75),
        (wait.as_str(), 1),
        ("tasks add q --key k", 1),
        ("tasks add q --key k --wait", 1),
        (cancel.as_str(), 1),
    ] {
        let ran = with_closed_reader(&sandbox, words);
        assert_eq!(ran.code, code, "{words}: {ran:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = run(sandbox.command(["locks", "list"]).stdout(full));
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.stderr, @"leasehold: the output cannot be written: No space left on device (os error 28)");
}

#[test]
fn a_command_says_that_it_has_succeeded_if_its_output_cannot_be_written() {
    let sandbox = Sandbox::new();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = run(sandbox.command(["tasks", "add", "q", "1"]).stdout(full));
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.stderr, @"
    leasehold: the output cannot be written: No space left on device (os error 28)
    hint: what the command adds was stored: do not repeat it
    ");
    assert_eq!(sandbox.json("tasks list").as_array().unwrap().len(), 1);
}

#[test]
fn a_lease_that_cannot_be_printed_is_released() {
    let sandbox = Sandbox::new();
    let ran = with_closed_reader(&sandbox, "locks acquire a");
    assert_eq!(ran.code, 1, "the caller must not believe that it holds the lock");
    insta::assert_snapshot!(ran.stderr, @"
    leasehold: the output cannot be written: Broken pipe (os error 32)
    hint: the lock was released
    ");
    assert_eq!(sandbox.json("locks status a")["isLocked"], false);
}

#[test]
fn an_unread_error_still_has_its_exit_code() {
    let sandbox = Sandbox::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = sandbox.command(["locks", "ask", "a"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn the_log_goes_to_stderr_and_only_if_asked() {
    let sandbox = Sandbox::new();
    let quiet = sandbox.run("locks list -q");
    assert_eq!(quiet.stderr, "");
    let ran = run(sandbox.command(["locks", "list", "--json"]).env("LEASEHOLD_LOG", "trace"));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "[]\n"));
}

#[test]
fn global_options_may_stand_anywhere() {
    let sandbox = Sandbox::new();
    let store = format!("sqlite:{}", sandbox.path().join("other.db").display());
    for words in [
        "--json --store STORE locks list",
        "locks --json list --store STORE",
        "locks list --store=STORE --json",
    ] {
        let ran = sandbox.run(&words.replace("STORE", &store));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "[]\n"), "{words}");
    }
    assert!(sandbox.path().join("other.db").exists());
    assert!(!sandbox.path().join("store.db").exists());
}
