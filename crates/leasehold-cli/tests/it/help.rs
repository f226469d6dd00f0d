//! Help of every command, and properties of the command line as a whole.

use super::support::Sandbox;

pub(crate) const COMMANDS: [&str; 68] = [
    "",
    "run",
    "locks",
    "locks list",
    "locks status",
    "locks why",
    "locks deadlocks",
    "locks acquire",
    "locks renew",
    "locks release",
    "locks ask",
    "locks wait",
    "tasks",
    "tasks add",
    "tasks work",
    "tasks progress",
    "tasks wait",
    "tasks list",
    "tasks show",
    "tasks why",
    "tasks logs",
    "tasks counts",
    "tasks retry",
    "tasks cancel",
    "tasks update",
    "tasks recover",
    "tasks purge",
    "queues",
    "queues list",
    "queues pause",
    "queues resume",
    "queues retention",
    "schedules",
    "schedules set",
    "schedules list",
    "schedules show",
    "schedules run",
    "schedules pause",
    "schedules resume",
    "schedules remove",
    "workflows",
    "workflows list",
    "workflows run",
    "workflows status",
    "executions",
    "executions list",
    "executions show",
    "executions logs",
    "executions abort",
    "workers",
    "serve",
    "token",
    "token new",
    "token local",
    "token list",
    "token revoke",
    "history",
    "watch",
    "sweep",
    "fence",
    "fence check",
    "store",
    "store init",
    "doctor",
    "torture",
    "torture check",
    "completions",
    "man",
];

#[test]
fn every_command_explains_itself() {
    let sandbox = Sandbox::new();
    for command in COMMANDS {
        let ran = sandbox.run(&format!("{command} --help"));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{command}");
        let name = format!("help {command}").trim().replace(' ', "-");
        insta::assert_snapshot!(name, ran.stdout);
    }
}

#[test]
fn no_command_is_missing_from_the_list() {
    let sandbox = Sandbox::new();
    let listed = |command: &str| {
        let help = sandbox.ok(&format!("{command} -h"));
        let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        // A longer text continues on the next line, indented further.
        let commands = commands.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
        let names: Vec<_> = commands.filter_map(|line| line.split_whitespace().next()).collect();
        names.iter().map(|name| format!("{command} {name}").trim().to_owned()).collect::<Vec<_>>()
    };
    let mut all = vec![String::new()];
    for group in [
        "",
        "locks",
        "tasks",
        "queues",
        "schedules",
        "workflows",
        "executions",
        "token",
        "fence",
        "store",
        "torture",
    ] {
        all.extend(listed(group));
    }
    all.sort();
    let mut known = COMMANDS;
    known.sort_unstable();
    assert_eq!(all, known);
}

#[test]
fn the_version_is_printed() {
    let sandbox = Sandbox::new();
    for words in ["--version", "-V", "version"] {
        assert_eq!(sandbox.ok(words), concat!("leasehold ", env!("CARGO_PKG_VERSION"), "\n"), "{words}");
    }
}

#[test]
fn help_is_a_command_too() {
    let sandbox = Sandbox::new();
    for (words, same) in [
        ("help", "--help"),
        ("help run", "run --help"),
        ("help locks why", "locks why --help"),
        ("locks help", "locks --help"),
        ("locks help why", "locks why --help"),
        ("workers list --help", "workers list -h"),
    ] {
        assert_eq!(sandbox.ok(words), sandbox.ok(same), "{words}");
    }
    let unknown = sandbox.run("help nothing");
    assert_eq!((unknown.code, unknown.stdout.as_str()), (64, ""), "{unknown:?}");
}

#[test]
fn a_missing_separator_and_a_missing_value_are_named() {
    let sandbox = Sandbox::new();
    for words in ["tasks work q", "workflows run deploy ./deploy.sh", "run a"] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, 64, "{words}: {ran:?}");
        assert!(
            ran.stderr.contains("hint: write the command after --: leasehold "),
            "{words}: {}",
            ran.stderr
        );
    }
    for (words, option) in [
        ("run a --wait -- echo hi", "--wait <DURATION>"),
        ("run a --ttl -- echo hi", "--ttl <DURATION>"),
        ("run a -E -- echo hi", "--conflict-exit-code <CODE>"),
        ("tasks work q --grace -- true", "--grace <DURATION>"),
        ("workflows run deploy --input -- true", "--input <JSON>"),
    ] {
        let ran = sandbox.run(words);
        let expected = format!("leasehold: a value is required for '{option}' but none was supplied\n");
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{words}");
        assert!(ran.stderr.starts_with(&expected), "{words}: {}", ran.stderr);
    }
    let dashes = sandbox.run("run a -- echo -- --wait --");
    assert_eq!(dashes.stdout, "-- --wait --\n", "{dashes:?}");
}

#[test]
fn nothing_at_all_is_a_usage_error_that_shows_help() {
    let sandbox = Sandbox::new();
    for words in ["", "locks", "tasks", "queues", "schedules", "token", "fence", "store"] {
        let ran = sandbox.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (64, ""), "{words}");
        assert!(ran.stderr.contains("Usage: leasehold"), "{words}: {}", ran.stderr);
    }
}
