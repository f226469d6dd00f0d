//! What users of other tools type: a command without `--`, plain seconds, short options, aliases.

use super::support::Sandbox;

#[test]
fn a_command_needs_no_separator() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok("run a echo hi"), "hi\n");
    assert_eq!(sandbox.ok("run --ttl 10s a --wait 1s echo -n --json --store x"), "--json --store x");
    assert_eq!(sandbox.ok("run a -- echo -- hi"), "-- hi\n");
    assert_eq!(sandbox.run_words(&["run", "a", "sh", "-c", "exit 3"]).code, 3);
    // An option before the command is ours, and a typing error in it is not the command.
    let ran = sandbox.run("run a --wiat 10 echo hi");
    assert_eq!(ran.code, 64);
    assert!(ran.stderr.contains("'--wiat'"), "{}", ran.stderr);
    let ran = sandbox.run("run a");
    assert_eq!(ran.code, 64);
    assert!(ran.stderr.contains("hint: write the command after --"), "{}", ran.stderr);
}

#[test]
fn options_of_flock_work() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada --ttl 1h");
    assert_eq!(sandbox.run("run -n a true").code, 75);
    assert_eq!(sandbox.run("run -w 0.2 a true").code, 75);
    assert_eq!(sandbox.run("run -n -E 3 a true").code, 3);
    sandbox.hold("b -s --holder ada --ttl 1h");
    assert_eq!(sandbox.run("run -s b true").code, 0);
    assert_eq!(sandbox.run("run -n b true").code, 75);
    assert_eq!(sandbox.run("run -n -w 5 b true").code, 64, "they exclude each other");
}

#[test]
fn a_number_is_a_number_of_seconds() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.json("locks acquire a --ttl 90")["ttlSeconds"], 90.0);
    for wrong in ["-5", "5x", "1.2.3"] {
        let ran = sandbox.run(&format!("locks acquire b --ttl {wrong}"));
        assert_eq!(ran.code, 64, "{wrong}");
        assert!(ran.stderr.contains(&format!("'{wrong}'")), "{}", ran.stderr);
    }
}

#[test]
fn lists_and_pages_have_short_names() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let id = sandbox.ok("tasks add mail").trim().to_owned();
    assert_eq!(sandbox.ok("locks ls -o name"), "a\n");
    assert_eq!(sandbox.json("locks show a")["name"], "a");
    assert_eq!(sandbox.ok("tasks ls -o name"), format!("{id}\n"));
    assert_eq!(
        sandbox.ok("tasks rm mail-is-no-id".replace("mail-is-no-id", &id).as_str()),
        format!("{id}  aborted\n")
    );
    assert_eq!(sandbox.ok("queues ls -o name"), "mail\n");
    sandbox.run_words(&["schedules", "set", "nightly", "0 3 * * *", "reports"]);
    assert_eq!(sandbox.ok("schedules ls -o name"), "nightly\n");
    sandbox.ok("schedules rm nightly");
    assert_eq!(sandbox.ok("schedules ls -o name"), "");
    for words in ["help", "help run", "locks help ls", "tasks ls --help"] {
        assert_eq!(sandbox.run(words).code, 0, "{words}");
    }
}

#[test]
fn a_mistyped_store_is_pointed_out() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let mistyped = format!("sqlite:{}", sandbox.path().join("stor.db").display());
    let ran = sandbox.run(&format!("--store {mistyped} locks list"));
    assert!(
        ran.stderr.contains("does not exist yet; it is created now; did you mean sqlite:"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("store.db?"), "{}", ran.stderr);
    assert_eq!(
        sandbox.run(&format!("--store {mistyped} locks list")).stderr,
        "no lock is held or waited for\n"
    );
    assert_eq!(sandbox.run("--quiet locks list").stderr, "");
}

#[test]
fn a_mistyped_queue_is_pointed_out() {
    let sandbox = Sandbox::new();
    sandbox.ok("tasks add mail");
    let ran = sandbox.run("tasks list --queue mial");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "the queue 'mial' has never had a task; did you mean 'mail'?\n");
    let ran = sandbox.run("tasks list --queue mail --state failed");
    assert_eq!(ran.stderr, "no such task\n");
    let ran = sandbox.run("tasks work mial --until-empty -- true");
    assert_eq!(ran.code, 0);
    assert!(
        ran.stderr.contains("the queue 'mial' has never had a task; did you mean 'mail'?"),
        "{}",
        ran.stderr
    );
    let ran = sandbox.run("tasks add mial");
    assert_eq!(ran.code, 0);
    assert!(
        ran.stderr.contains("this is the first task of queue 'mial'; did you mean 'mail'?"),
        "{}",
        ran.stderr
    );
    assert_eq!(sandbox.run("tasks add mial").stderr, "");
}
