//! Lists on terminals of 80 and 120 columns, short ids, and the formats of lists.

use std::process::Command;

use super::run::Screen;
use super::support::{Sandbox, eventually};

/// Shows the output of a command on a terminal with this number of columns. A line of the snapshot that is
/// longer than the terminal would have been wrapped.
fn shown(sandbox: &Sandbox, columns: usize, words: &str) -> String {
    let plain = sandbox.command(words.split_whitespace());
    let words: Vec<_> = plain.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
    let binary = env!("CARGO_BIN_EXE_leasehold");
    let script = format!("stty cols {columns} rows 50; exec '{binary}' {} 2>&1", words.join(" "));
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("NO_COLOR", "1").env("TZ", "Europe/Berlin");
    let text = Screen::output_of(&command);
    for line in text.lines() {
        assert!(line.chars().count() <= columns, "wider than {columns} columns: {line}");
    }
    text
}

/// Replaces values that change from run to run by placeholders, and separates columns by two blanks. Of a cell that
/// was cut only the beginning stays: where it was cut depends on the widths of the ages.
fn masked(text: &str, ids: &[String]) -> String {
    let mut text = text.replace('\r', "").replace("just now", "0s ago");
    for (number, id) in ids.iter().enumerate() {
        let digits = id.replace('-', "");
        text = text.replace(id, &format!("{number}").repeat(id.len()));
        text = text.replace(&digits[24..], &format!("{number}").repeat(8));
    }
    let lines = text.lines().map(|line| {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(masked_cell).collect::<Vec<_>>().join("  ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn masked_cell(cell: &str) -> String {
    let is_time = cell.len() == 19 && cell.as_bytes()[4] == b'-' && cell.as_bytes()[10] == b' ';
    if is_time {
        return "[TIME]".to_owned();
    }
    if cell.starts_with("revoked ") {
        return "revoked [TIME]".to_owned();
    }
    if cell.starts_with("by ") {
        return "by [WHO]".to_owned();
    }
    if cell.starts_with("exec_") {
        return "[EXECUTION]".to_owned();
    }
    if cell.ends_with('…') {
        return cell.chars().take(8).chain(['…']).collect();
    }
    let is_age = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_digit())
            && word.ends_with(['s', 'm', 'h', 'd'])
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
    };
    let masked = |word: &str| match word {
        word if is_age(word) => "[AGE]".to_owned(),
        word if word.len() == 16 && word.chars().all(|c| c.is_ascii_digit()) => "[TOKEN]".to_owned(),
        word => word.to_owned(),
    };
    cell.split(' ').map(masked).collect::<Vec<_>>().join(" ")
}

fn tasks(sandbox: &Sandbox) -> Vec<String> {
    let add = |words: &str| sandbox.ok(&format!("tasks add {words}")).trim().to_owned();
    let ids = vec![
        add("mail"),
        add("reports/quarterly/europe-west --priority 7 --lock a-lock-with-a-rather-long-name"),
        add("reports/quarterly/europe-west --lock a-lock-with-a-rather-long-name"),
        add("mail --delay 10d"),
    ];
    sandbox.run_words(&[
        "tasks",
        "work",
        "mail",
        "--once",
        "--",
        "sh",
        "-c",
        "echo the mail server refused the message because of its size >&2; exit 65",
    ]);
    ids
}

#[test]
fn tasks_fit_the_terminal() {
    let sandbox = Sandbox::new();
    let ids = tasks(&sandbox);
    for columns in [80, 120] {
        let text = masked(&shown(&sandbox, columns, "tasks list"), &ids);
        insta::assert_snapshot!(format!("tasks-{columns}"), text);
    }
    let wide = masked(&shown(&sandbox, 500, "tasks list -o wide"), &ids);
    insta::assert_snapshot!("tasks-wide", wide);
    let pasted = sandbox.ok("tasks list");
    assert!(ids.iter().all(|id| pasted.contains(id.as_str())), "whole ids for programs: {pasted}");
    let names = sandbox.ok("tasks list -o name");
    assert_eq!(names.lines().rev().collect::<Vec<_>>(), ids, "{names}");
}

#[test]
fn locks_queues_and_history_fit_the_terminal() {
    let sandbox = Sandbox::new();
    let ids = tasks(&sandbox);
    sandbox.run_words(&[
        "locks",
        "acquire",
        "production/europe-west/database-migrations",
        "--ttl",
        "1h",
        "--holder",
        "deploy-bot@build-agent-17.example.org:4711",
        "--reason",
        "schema change 2024-11",
    ]);
    sandbox.hold("short --shared --holder ada --ttl 1h");
    sandbox.ok("queues pause mail --reason maintenance");
    sandbox.run_words(&["schedules", "set", "nightly", "0 3 * * *", "reports", "--zone", "Europe/Berlin"]);
    sandbox.ok("workflows run deploy -- true");
    for columns in [80, 120] {
        for words in ["locks list", "queues list", "workflows list", "schedules list", "history"] {
            let text = masked(&shown(&sandbox, columns, words), &ids);
            insta::assert_snapshot!(format!("{}-{columns}", words.replace(' ', "-")), text);
        }
    }
}

/// Host names, process ids and token ids have other lengths on other machines.
#[test]
fn executions_workers_and_tokens_fit_the_terminal() {
    let sandbox = Sandbox::new();
    sandbox.ok("workflows run deploy --key release-2024-11-05 -- true");
    sandbox.run_words(&[
        "workflows",
        "run",
        "import",
        "--",
        "sh",
        "-c",
        "echo the file has no header >&2; exit 65",
    ]);
    let mut worker = sandbox.start("tasks work mail reports/quarterly/europe-west --slots 4 -- true");
    eventually("the worker", || sandbox.json("workers").as_array().is_some_and(|all| all.len() == 1));
    sandbox.ok("token new --name dashboard --role reader");
    sandbox.ok("token new --name ci-of-the-billing-team --role worker --lasts 30d --scope queues:billing/* --scope locks:billing/*");
    let revoked = sandbox.json("token new --name old --role admin");
    sandbox.ok(&format!("token revoke {}", revoked["id"].as_str().unwrap()));
    let listed = sandbox.json("workers")[0].clone();
    let (host, pid) = (listed["host"].as_str().unwrap(), listed["pid"].to_string());
    let mut ids: Vec<_> = ["executions list", "workers"]
        .iter()
        .flat_map(|words| sandbox.json(words).as_array().unwrap().clone())
        .map(|listed| listed["id"].as_str().unwrap().trim_start_matches("exec_").to_owned())
        .collect();
    ids.sort();
    // "just now" is wider than the ages after it, and which columns fit depends on that.
    eventually("ages in seconds", || !shown(&sandbox, 120, "executions list").contains("just now"));
    let tokens: Vec<_> = sandbox.json("token list").as_array().unwrap().clone();
    for columns in [80, 120] {
        for words in ["executions list", "workers", "token list"] {
            let mut text = shown(&sandbox, columns, words).replace(env!("CARGO_PKG_VERSION"), "[VERSION]");
            for token in &tokens {
                text = text.replace(token["id"].as_str().unwrap(), "[ID]");
            }
            let start: String = host.chars().take(7).collect();
            let cells = text.split(' ').map(|word| match word {
                word if word == pid => "[PID]",
                word if word == host || word.starts_with(&start) && word.ends_with('…') => "[HOST]",
                word => word,
            });
            let text = masked(&cells.collect::<Vec<_>>().join(" "), &ids);
            insta::assert_snapshot!(format!("{}-{columns}", words.replace(' ', "-")), text);
        }
    }
    worker.kill().unwrap();
    worker.wait().unwrap();
}

#[test]
fn times_are_local_on_a_terminal_and_utc_elsewhere() {
    let sandbox = Sandbox::new();
    let id = sandbox.ok("tasks add mail --run-at 2030-01-01T06:00:00Z").trim().to_owned();
    let runs = |text: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with("runs")).unwrap();
        line.trim().split_once(" (").unwrap().0.to_owned()
    };
    assert_eq!(runs(&shown(&sandbox, 100, &format!("tasks show {id}"))), "runs      2030-01-01 07:00:00 CET");
    assert_eq!(
        runs(&shown(&sandbox, 100, &format!("tasks show {id} --utc"))),
        "runs      2030-01-01T06:00:00Z"
    );
    assert_eq!(runs(&sandbox.ok(&format!("tasks show {id}"))), "runs      2030-01-01T06:00:00Z");
}

#[test]
fn a_short_id_is_accepted_if_it_is_unique() {
    let sandbox = Sandbox::new();
    let ids: Vec<_> = (0..3).map(|_| sandbox.ok("tasks add mail").trim().to_owned()).collect();
    let (first, last) = (&ids[0], &ids[0][28..]);
    assert_eq!(sandbox.json(&format!("tasks show {last}"))["id"], first.as_str());
    assert_eq!(sandbox.json(&format!("tasks show {}", &first[..30]))["id"], first.as_str());
    assert!(sandbox.ok(&format!("tasks cancel {last}")).starts_with(first.as_str()));
    let ran = sandbox.run(&format!("tasks show {}", &first[..8]));
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.stderr.contains("is not unique: 3 tasks match"), "{}", ran.stderr);
    assert!(ids.iter().all(|id| ran.stderr.contains(id.as_str())), "{}", ran.stderr);
    let ran = sandbox.run("tasks show ffffffff --json");
    assert_eq!(ran.code, 1);
    let failure: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(failure["code"], "UNKNOWN_TASK");
    for wrong in ["abc", "hello", "exec_"] {
        assert_eq!(sandbox.run(&format!("tasks show {wrong}")).code, 64, "{wrong}");
    }
    // A task is not an execution.
    assert_eq!(sandbox.run(&format!("executions show {last}")).code, 1);
    sandbox.ok("workflows run deploy -- true");
    let id = sandbox.json("executions list")[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(sandbox.json(&format!("executions show {}", &id[id.len() - 8..]))["id"], id.as_str());
    assert_eq!(sandbox.json(&format!("executions show exec_{}", &id[id.len() - 8..]))["id"], id.as_str());
}

#[test]
fn more_events_than_shown_are_announced() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a");
    sandbox.ok(&format!("locks release a {}", held.with));
    let ran = sandbox.run("history --limit 1");
    assert_eq!(ran.stderr, "there are older ones; raise --limit\n");
    assert!(ran.stdout.contains("released"), "{}", ran.stdout);
    assert_eq!(sandbox.run("history --limit 2").stderr, "");
    assert_eq!(sandbox.json("history --limit 1").as_array().unwrap().len(), 1);
}

#[test]
fn a_format_is_chosen_with_o() {
    let sandbox = Sandbox::new();
    sandbox.hold("b");
    sandbox.hold("a");
    assert_eq!(sandbox.ok("locks list -o name"), "a\nb\n");
    let listed: serde_json::Value = serde_json::from_str(&sandbox.ok("locks list -o json")).unwrap();
    assert_eq!(listed[1]["holder"], sandbox.json("locks list")[1]["holder"]);
    let ran = sandbox.run("locks list -o yaml");
    assert_eq!(ran.code, 64);
    assert!(ran.stderr.contains("[possible values: wide, json, name]"), "{}", ran.stderr);
    let ran = sandbox.run("tasks list -o json --limit 0");
    assert!(serde_json::from_str::<serde_json::Value>(&ran.stderr).is_ok(), "{}", ran.stderr);
}

#[test]
fn a_watched_list_is_shown_again_when_it_changes() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let mut child = sandbox.start("locks list --json --watch=100ms");
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(out);
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first.as_array().unwrap().len(), 1);
    sandbox.hold("b");
    eventually("the second lock", || {
        let list: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        list.as_array().unwrap().len() == 2
    });
    child.kill().unwrap();
    child.wait().unwrap();
}
