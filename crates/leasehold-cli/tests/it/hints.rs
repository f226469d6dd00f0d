//! Commands in hints can be pasted: they use the same store and contain no secret.

use super::support::{Ran, Sandbox, run};

/// Returns the commands in the hints of an error.
fn commands(ran: &Ran) -> Vec<String> {
    let hints = ran.stderr.lines().filter_map(|line| line.strip_prefix("hint: "));
    hints
        .filter_map(|hint| hint.find("leasehold ").map(|at| hint[at + "leasehold ".len()..].to_owned()))
        .collect()
}

/// A store named by a flag differs from the store of a command without the flag.
#[test]
fn every_command_in_a_hint_uses_the_same_store() {
    let sandbox = Sandbox::new();
    let other = format!("--store sqlite:{}", sandbox.path().join("other.db").display());
    let run = |words: &str| sandbox.run(&format!("{other} {words}"));
    assert_eq!(run("locks acquire l --holder ada").code, 0);
    let added = run("tasks add q --key k --payload 1").stdout;
    let id = added.split_whitespace().next().unwrap();
    assert_eq!(run("workflows run w --key k -- false").code, 1);
    let unknown = "00000000-0000-0000-0000-000000000001";
    let mut seen = 0;
    for words in [
        "run l -- true",
        "locks acquire l",
        &format!("locks renew l --lease-id {unknown} --token 5"),
        "locks release l --force --reason why",
        &format!("tasks show {unknown}"),
        "tasks counts nothing",
        "tasks add q --key k --payload 2",
        &format!("tasks update {id} --version 99 --priority 1"),
        "schedules show nothing",
        "workflows run w --key k --reuse never -- true",
        &format!("executions show {unknown}"),
        "run l --json -- true",
    ] {
        let failed = run(words);
        assert_ne!(failed.code, 0, "{words}");
        let hints = failed.stderr.matches("leasehold --store ").count();
        assert!(hints > 0, "{words}: {}", failed.stderr);
        assert!(failed.stderr.contains(&format!("leasehold {other} ")), "{words}: {}", failed.stderr);
        seen += hints;
    }
    assert!(seen >= 12);
    // The pasted command uses the store that reported the error.
    let held = run("run l -- true");
    let [why] = commands(&held).try_into().unwrap();
    assert!(sandbox.ok(&why).contains("'l' is held by ada"), "{why}");
    assert!(sandbox.ok("locks why l").contains("'l' is not held"), "the other store knows nothing");
}

#[test]
fn commands_about_a_lock_whose_name_looks_like_an_option_work() {
    let sandbox = Sandbox::new();
    let shown = |purpose: &str| {
        let why = sandbox.ok("locks why -- --x");
        let line = why.lines().find(|line| line.trim_start().starts_with(purpose));
        let line = line.unwrap_or_else(|| panic!("no command to {purpose} in:\n{why}"));
        line[line.find("leasehold ").unwrap() + "leasehold ".len()..].replace("COMMAND", "true")
    };
    assert_eq!(sandbox.run(&shown("take it")).code, 0);
    let held = sandbox.run("locks acquire --holder ada -- --x");
    assert_eq!(held.code, 0, "{held:?}");
    let refused = sandbox.run("run -- --x true");
    let [why] = commands(&refused).try_into().unwrap();
    assert!(sandbox.ok(&why).contains("'--x' is held by ada"), "{why}");
    assert_eq!(sandbox.run(&shown("ask")).code, 0);
    let force = shown("force");
    assert_eq!(sandbox.run(&force.replace("--force", "--force --yes")).code, 0, "{force}");
    assert_eq!(sandbox.run(&shown("take it")).code, 0);
}

#[test]
fn the_default_store_needs_no_flag_and_a_variable_is_repeated() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(["tasks", "counts", "nothing"]);
    let plain = run(command.env_remove("LEASEHOLD_STORE"));
    assert!(plain.stderr.contains("hint: see the queues with: leasehold queues list\n"), "{}", plain.stderr);
    let store = format!("sqlite:{}", sandbox.path().join("store.db").display());
    let named = sandbox.run("tasks counts nothing");
    let hint = format!("hint: see the queues with: leasehold --store {store} queues list\n");
    assert!(named.stderr.contains(&hint), "{}", named.stderr);
}

#[test]
fn a_secret_is_not_repeated() {
    let sandbox = Sandbox::new();
    let served = super::http::Served::over(&sandbox.path().join("served.db"));
    let store = format!("http://{}@{}", served.token(), served.address());
    let ran = sandbox.run(&format!("--store {store} tasks counts nothing"));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(!ran.stderr.contains(served.token()), "{}", ran.stderr);
    let hint = "hint: see the queues with: leasehold --store \"$LEASEHOLD_STORE\" queues list\n";
    assert!(ran.stderr.contains(hint), "{}", ran.stderr);
}

#[test]
fn the_hint_of_a_server_that_wants_a_token_names_the_variable() {
    let sandbox = Sandbox::new();
    let served = super::http::Served::over(&sandbox.path().join("served.db"));
    let store = format!("http://{}", served.address());
    let stranger = sandbox.run(&format!("--store {store} locks list"));
    assert_eq!(stranger.code, 77, "{stranger:?}");
    assert!(stranger.stderr.contains("hint: set LEASEHOLD_API_TOKEN to a token"), "{}", stranger.stderr);
    assert!(stranger.stderr.contains("https://TOKEN@HOST"), "{}", stranger.stderr);
    let mut command = sandbox.command(["--store", &store, "token", "list"]);
    let tokens = run(command.env("LEASEHOLD_API_TOKEN", served.token()));
    assert_eq!(tokens.code, 77, "{tokens:?}");
    assert!(tokens.stderr.contains("run it against the server's own store"), "{}", tokens.stderr);
}

/// If too few files can be opened, an error is reported and no panic occurs.
#[test]
fn a_limit_of_open_files_that_is_too_low_is_an_error() {
    let sandbox = Sandbox::new();
    for words in ["locks list", "run a -- true", "tasks work q -- true", "doctor", "--json locks list"] {
        let script = "ulimit -n 10; exec \"$0\" \"$@\"";
        let ran = run(&mut sandbox.command_in(&["sh", "-c", script], words));
        assert_eq!((ran.code, ran.stdout.as_str()), (78, ""), "{words}: {ran:?}");
        assert!(ran.stderr.contains("more files"), "{words}: {}", ran.stderr);
        assert!(!ran.stderr.contains("panicked"), "{words}: {}", ran.stderr);
    }
}
