//! Operating tasks from a shell: waiting for them, running schedules now, cancelling by a filter, working until
//! all is done.

use crate::support::{Ran, Sandbox, run};

#[test]
fn a_caller_waits_for_tasks_and_learns_how_they_ended() {
    let sandbox = Sandbox::new();
    let good = sandbox.ok("tasks add mail 1").trim().to_owned();
    let waiter = sandbox.start(&format!("tasks wait {good}"));
    let ran = sandbox.run(&format!("tasks wait {good} --timeout 0"));
    assert_eq!(ran.code, 75, "{ran:?}");
    assert!(ran.stderr.contains("is still pending"), "{}", ran.stderr);
    sandbox.ok("tasks work mail --once -- cat");
    let ran = Ran::from(waiter.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stdout), (0, format!("{good}  succeeded\n")));
    let bad = sandbox.ok("tasks add mail 2").trim().to_owned();
    sandbox.run_words(&["tasks", "work", "mail", "--once", "--", "sh", "-c", "exit 65"]);
    let ran = sandbox.run(&format!("tasks wait {good} {} --json", &bad[28..]));
    assert_eq!(ran.code, 1);
    let tasks: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&tasks[0]["state"], &tasks[1]["state"]), (&"succeeded".into(), &"failed".into()));
    assert_eq!(sandbox.run("tasks wait 00000000-0000-7000-8000-000000000000").code, 1, "no such task");
}

#[test]
fn a_task_is_added_and_awaited_in_one_command() {
    let sandbox = Sandbox::new();
    let adder = sandbox.start("tasks add mail --wait");
    let mut worker = sandbox.start("tasks work mail --once -- true");
    let ran = Ran::from(adder.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.ends_with("  succeeded\n"), "{}", ran.stdout);
    worker.wait().unwrap();
    assert_eq!(sandbox.run("tasks add mail --wait=100ms").code, 75);
}

#[test]
fn a_payload_is_an_argument_or_stdin() {
    let sandbox = Sandbox::new();
    let payload = |id: &str| sandbox.json(&format!("tasks show {id}"))["payload"].clone();
    let id = sandbox.run_words(&["tasks", "add", "mail", r#"{"to": "ada"}"#]).stdout;
    assert_eq!(payload(id.trim())["to"], "ada");
    assert_eq!(payload(sandbox.ok("tasks add mail -5").trim()), -5);
    let mut command = sandbox.command(["tasks", "add", "mail", "-"]);
    std::fs::write(sandbox.path().join("in"), "[1, 2]").unwrap();
    let ran = run(command.stdin(std::fs::File::open(sandbox.path().join("in")).unwrap()));
    assert_eq!(payload(ran.stdout.trim())[1], 2);
    assert_eq!(sandbox.run("tasks add mail 1 --payload 2").code, 64);
    assert_eq!(sandbox.run("tasks add mail --prioritty 5").code, 64);
}

#[test]
fn a_schedule_runs_now() {
    let sandbox = Sandbox::new();
    sandbox.run_words(&[
        "schedules",
        "set",
        "nightly",
        "0 3 * * *",
        "reports",
        "--payload",
        "7",
        "--priority",
        "9",
        "--lock",
        "l",
    ]);
    let id = sandbox.ok("schedules run nightly").trim().to_owned();
    let task = sandbox.json(&format!("tasks show {id}"));
    assert_eq!(
        (&task["queue"], &task["payload"], &task["priority"]),
        (&"reports".into(), &7.into(), &9.into())
    );
    assert_eq!(task["lock"], "l");
    assert_ne!(sandbox.json("schedules run nightly")["id"], id.as_str());
    assert_eq!(sandbox.run("schedules run nosuch").code, 1);
}

#[test]
fn tasks_are_cancelled_and_retried_by_a_filter() {
    let sandbox = Sandbox::new();
    for words in ["mail", "mail --delay 1h", "other"] {
        sandbox.ok(&format!("tasks add {words}"));
    }
    let ran = sandbox.run("tasks cancel --queue mail");
    assert_eq!(ran.code, 64);
    assert!(ran.stderr.contains("needs --yes"), "{}", ran.stderr);
    assert_eq!(sandbox.ok("tasks cancel --queue mail --state scheduled --yes"), "1 task cancelled\n");
    assert_eq!(sandbox.ok("tasks cancel --queue mail --yes"), "1 task cancelled\n");
    assert_eq!(sandbox.ok("tasks cancel --queue mail --yes"), "0 tasks cancelled\n");
    assert_eq!(sandbox.json("tasks counts other")[0]["counts"]["pending"], 1);
    assert_eq!(sandbox.run("tasks cancel --queue mail --state failed --yes").code, 64);
    assert_eq!(sandbox.run("tasks cancel --yes").code, 64);
    assert_eq!(sandbox.run("tasks cancel --queue nosuch --yes").code, 1);
    sandbox.run_words(&["tasks", "work", "other", "--once", "--", "sh", "-c", "exit 65"]);
    assert_eq!(sandbox.ok("tasks retry --failed"), "1 task will be retried\n");
}

#[test]
fn a_worker_works_until_all_is_done_and_tells_of_failures() {
    let sandbox = Sandbox::new();
    sandbox.ok("tasks add mail --max-attempts 2 --backoff 300ms");
    sandbox.ok("tasks add mail --delay 700ms");
    let work = |script: &str| {
        sandbox.run_words(&["tasks", "work", "mail", "--until-done", "--", "sh", "-c", script])
    };
    let ran = work("test -e seen || { touch seen; exit 1; }");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("failed with exit code 1; it will be retried in "), "{}", ran.stderr);
    assert_eq!(sandbox.json("tasks counts mail")[0]["counts"]["succeeded"], 2);
    sandbox.ok("tasks add mail --max-attempts 1");
    let ran = work("exit 1");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("; given up after 1 of 1 attempts"), "{}", ran.stderr);
    assert_eq!(work("true").code, 0, "only what ran here counts");
}
