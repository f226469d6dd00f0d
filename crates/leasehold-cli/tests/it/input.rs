//! Invalid input: a clear message with a hint, exit code 64, and no change.

use super::support::{Sandbox, without_store};

/// Returns the message, after checks that apply to every usage error.
fn refused(words: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_words(words);
    assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{words:?}: {ran:?}");
    assert!(!sandbox.path().join("store.db").exists(), "{words:?} made a store");
    without_store(&ran.stderr)
}

pub(crate) fn all_refused(cases: &[&[&str]]) -> String {
    let told = cases
        .iter()
        .map(|words| format!("$ leasehold {}\n{}", words.join(" ").escape_debug(), refused(words)));
    told.collect::<Vec<_>>().join("\n")
}

#[test]
fn invalid_names() {
    let long = "x".repeat(256);
    let told = all_refused(&[
        &["locks", "status", ""],
        &["locks", "acquire", "a\nb"],
        &["locks", "acquire", "\u{1b}[31mred"],
        &["locks", "acquire", "a\u{202e}b"],
        &["run", "a\u{2028}b", "--", "true"],
        &["locks", "why", " a"],
        &["run", "", "--", "true"],
        &["run", "a", "--with", "b\u{7}", "--", "true"],
        &["run", "a", "--holder", "", "--", "true"],
        &["locks", "ask", "a", "--reason", "\t"],
    ]);
    insta::assert_snapshot!(told);
    assert!(refused(&["locks", "status", &long]).contains("has 256 bytes; 255 is the most"));
}

#[test]
fn invalid_durations() {
    let acquire = |option, value| vec!["locks", "acquire", "a", option, value];
    let cases = [
        acquire("--ttl", "0"),
        acquire("--ttl", "0s"),
        acquire("--ttl", "-5s"),
        acquire("--ttl", "5x"),
        acquire("--ttl", "soon"),
        acquire("--ttl", "99999999999999999999d"),
        acquire("--ttl", "4000d"),
        acquire("--wait", "soon"),
        acquire("--wait", "-1s"),
        acquire("--wait", ""),
        acquire("--steal-stale", "0"),
        vec!["run", "a", "--ttl", "0", "--", "true"],
        vec!["run", "a", "--wait", "for ever", "--", "true"],
        vec!["run", "a", "--kill-after", "x", "--", "true"],
        vec!["run", "a", "--at-least", "0", "--", "true"],
        vec!["locks", "wait", "a", "--for", "free", "--timeout", "1x"],
        vec!["locks", "renew", "a", "--ttl", "0"],
    ];
    let cases: Vec<_> = cases.iter().map(Vec::as_slice).collect();
    insta::assert_snapshot!(all_refused(&cases));
}

#[test]
fn invalid_numbers_and_words() {
    let told = all_refused(&[
        &["locks", "acquire", "a", "--slots", "0"],
        &["locks", "acquire", "a", "--slots", "99999999999"],
        &["locks", "acquire", "a", "--slots", "2", "--shared"],
        &["locks", "acquire", "a", "--priority", "5000"],
        &["locks", "acquire", "a", "-E", "256"],
        &["locks", "acquire", "a", "-E", "-1"],
        &["locks", "acquire", "a", "--meta", "novalue"],
        &["locks", "acquire", "a", "--with", "a"],
        &["run", "a", "--renew-at", "1", "--", "true"],
        &["run", "a", "--renew-at", "nan", "--", "true"],
        &["run", "a"],
        &["run", "a", "--wait"],
        &["locks", "list", "--filter", "status=odd"],
        &["locks", "list", "--filter", "status=held", "--all"],
        &["locks", "list", "--limit", "0"],
        &["locks", "wait", "a"],
        &["locks", "wait", "a", "--for", "lunch"],
        &["locks", "renew", "a", "--lease-id", "1", "--token", "1"],
        &["locks", "release", "a"],
        &["locks", "release", "a", "--force"],
        &["locks", "release", "a", "--force", "--reason", "x"],
        &["locks", "release", "a", "--yes", "--lease-id", "x", "--token", "1"],
        &["fence", "check", "a", "--token", "-1"],
        &["fence", "check", "a", "--token", "9007199254740992"],
        &["watch", "a", "--prefix", "b"],
        &["completions", "cmd.exe"],
        &["lokcs", "list"],
        &["locks", "lits"],
        &["--stroe", "x", "doctor"],
    ]);
    insta::assert_snapshot!(told);
}

#[test]
fn too_much_metadata() {
    let much = format!("k={}", "x".repeat(5000));
    assert!(refused(&["locks", "acquire", "a", "--meta", &much]).contains("too much metadata"));
    assert!(refused(&["run", "a", "--meta", &much, "--", "true"]).contains("too much metadata"));
}

#[test]
fn a_usage_error_is_json_for_programs() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("locks acquire a --ttl 0 --json");
    assert_eq!(ran.code, 64);
    insta::assert_snapshot!(ran.stderr, @r#"{"success":false,"error":"--ttl <DURATION>: a duration of 0 is too short; 1ms is the least","code":"INVALID"}"#);
    let ran = sandbox.run("--json locks wait a");
    assert_eq!(ran.code, 64);
    insta::assert_snapshot!(ran.stderr, @r#"{"success":false,"error":"the following required arguments were not provided: --for <STATE>","code":"USAGE","hint":"usage: leasehold locks wait --for <STATE> <NAME>"}"#);
}
