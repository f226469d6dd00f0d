//! Text of other users changes no terminal and forges no log line: control characters (including
//! C1), line separators and bidirectional controls are shown as escapes.

use super::support::{Sandbox, run};

/// JSON with a C1 control, a bidirectional control and a line separator in a string, and a carriage
/// return between values.
const PAYLOAD: &str = "{\"a\":\r\"x\u{9b}2J\u{202e}\u{2028}\"}";

fn is_safe(how: &str, text: &str) {
    let unsafe_char = text.chars().find(|c| {
        (c.is_control() && !matches!(c, '\n' | '\t'))
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    assert_eq!(unsafe_char, None, "{how}: {text:?}");
}

#[test]
fn payloads_errors_and_results_are_shown_with_escapes() {
    let sandbox = Sandbox::new();
    sandbox.run_words(&["schedules", "set", "s", "@daily", "q", "--payload", PAYLOAD]);
    let added = sandbox.run_words(&["tasks", "add", "q", "--payload", PAYLOAD]);
    let id = added.stdout.trim();
    sandbox.run_words(&["workflows", "run", "w", "--input", PAYLOAD, "--", "cat"]);
    let script = "printf '\\302\\2332J\\033[2K\\r' >&2; cat; exit 1";
    sandbox.run_words(&["tasks", "work", "q", "--once", "--", "sh", "-c", script]);
    for words in [
        "schedules show s",
        "schedules list",
        &format!("tasks show {id}"),
        "tasks list",
        "executions list",
        "workflows list",
    ] {
        for json in ["", "--json "] {
            let ran = sandbox.run(&format!("{json}{words}"));
            assert_eq!(ran.code, 0, "{words}: {ran:?}");
            is_safe(words, &ran.stdout);
        }
    }
    let shown = sandbox.json(&format!("tasks show {id}"));
    assert_eq!(shown["payload"]["a"], "x\u{9b}2J\u{202e}\u{2028}", "and it means the same");
    let events = run(&mut sandbox.command([
        "--json",
        "workflows",
        "run",
        "w",
        "--",
        "printf",
        "\\302\\2332J\\033c\\n",
    ]));
    is_safe("workflows run", &events.stdout);
}

#[test]
fn names_are_refused_and_not_echoed() {
    let sandbox = Sandbox::new();
    for bad in ["a\u{202e}b", "a\u{2028}b", "a\u{9b}b", "a\u{2066}b"] {
        for words in [["locks", "status", bad], ["tasks", "add", bad], ["locks", "why", bad]] {
            let ran = sandbox.run_words(&words);
            assert_eq!(ran.code, 64, "{words:?}: {ran:?}");
            is_safe("a refusal", &ran.stderr);
        }
    }
}

/// Escape sequences are written to terminals only.
#[test]
fn a_log_in_a_file_has_no_colours() {
    let sandbox = Sandbox::new();
    let ran = run(sandbox.command(["locks", "list"]).env("LEASEHOLD_LOG", "trace"));
    is_safe("the log", &ran.stderr);
    let json = run(sandbox.command(["--json", "locks", "list"]).env("LEASEHOLD_LOG", "trace"));
    for line in json.stderr.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["event"], "log");
    }
}
