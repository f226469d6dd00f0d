//! Where output goes, and what happens when it cannot.

use std::fs::OpenOptions;
use std::process::Stdio;

use super::support::{Bench, Ran, run};

/// Runs with a reader that has gone before anything is written.
fn to_nobody(bench: &Bench, words: &str) -> Ran {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = bench.command(words.split_whitespace());
    command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().map(Ran::from).unwrap()
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let bench = Bench::new();
    bench.hold("a");
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
        let ran = to_nobody(&bench, words);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{words}");
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let bench = Bench::new();
    bench.hold("a");
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = run(bench.command(["locks", "list"]).stdout(full));
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.stderr, @"leasehold: the output cannot be written: No space left on device (os error 28)");
}

#[test]
fn a_lease_that_nobody_can_be_told_of_is_given_back() {
    let bench = Bench::new();
    to_nobody(&bench, "locks acquire a");
    assert_eq!(bench.json("locks status a")["isLocked"], false);
}

#[test]
fn an_error_nobody_reads_is_still_an_exit_code() {
    let bench = Bench::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = bench.command(["locks", "ask", "a"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(1));
}

#[test]
fn the_log_goes_to_stderr_and_only_if_asked() {
    let bench = Bench::new();
    let quiet = bench.run("locks list -q");
    assert_eq!(quiet.stderr, "");
    let ran = run(bench.command(["locks", "list", "--json"]).env("LEASEHOLD_LOG", "trace"));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "[]\n"));
}

#[test]
fn global_options_may_stand_anywhere() {
    let bench = Bench::new();
    let store = format!("sqlite:{}", bench.path().join("other.db").display());
    for words in [
        "--json --store STORE locks list",
        "locks --json list --store STORE",
        "locks list --store=STORE --json",
    ] {
        let ran = bench.run(&words.replace("STORE", &store));
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "[]\n"), "{words}");
    }
    assert!(bench.path().join("other.db").exists());
    assert!(!bench.path().join("store.db").exists());
}
