//! `tasks retry`, `cancel`, `update`, `recover`, `purge`, `queues pause` and `resume`.

use crate::support::Sandbox;

const UNKNOWN_TASK: &str = "01a1deb1-1ca7-7312-a891-f34f7801532f";

#[test]
fn a_waiting_task_is_cancelled_at_once_and_can_be_retried() {
    let sandbox = Sandbox::new();
    let (one, two) = (sandbox.add(&["mail"]), sandbox.add(&["mail"]));
    let ran = sandbox.run(&format!("tasks cancel {one} {two} --reason oops"));
    assert_eq!((ran.code, ran.stdout), (0, format!("{one}  aborted\n{two}  aborted\n")));
    assert_eq!(sandbox.task(&one)["cancel"]["reason"], "oops");
    assert_eq!(sandbox.json(&format!("tasks retry {one}"))[0]["state"], "pending");
    let again = sandbox.run(&format!("tasks retry {one}"));
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("is pending; trying it again is not possible now"), "{again:?}");
}

#[test]
fn one_failure_does_not_stop_the_others() {
    let sandbox = Sandbox::new();
    let known = sandbox.add(&["mail"]);
    let ran = sandbox.run(&format!("tasks cancel {UNKNOWN_TASK} {known}"));
    assert_eq!((ran.code, ran.stdout), (1, format!("{known}  aborted\n")));
    assert!(ran.stderr.contains(&format!("there is no task {UNKNOWN_TASK}")), "{}", ran.stderr);
}

#[test]
fn all_failed_tasks_are_retried() {
    let sandbox = Sandbox::new();
    for _ in 0..3 {
        sandbox.add(&["mail", "--max-attempts", "1"]);
    }
    sandbox.work("mail", "exit 1");
    assert_eq!(sandbox.ok("tasks retry --failed --queue mail"), "3 tasks will be retried\n");
    assert_eq!(sandbox.json("tasks counts mail")[0]["counts"]["pending"], 3);
    assert_eq!(sandbox.json("tasks retry --failed --queue mail")["retried"], 0);
    assert_eq!(sandbox.run("tasks retry --failed --queue post").code, 1);
}

#[test]
fn a_task_is_changed_only_at_the_version_that_was_seen() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail", "--backoff", "7s"]);
    let version = sandbox.task(&id)["version"].to_string();
    let words = "--payload [2] --priority 9 --max-attempts 2 --run-at 2100-01-01T00:00:00Z";
    let after = sandbox.json(&format!("tasks update {id} --version {version} {words}"));
    assert_eq!(after["payload"], serde_json::json!([2]));
    assert_eq!((&after["priority"], &after["maxAttempts"]), (&9.into(), &2.into()));
    assert_eq!((&after["state"], &after["backoffSeconds"]), (&"scheduled".into(), &7.0.into()));
    let late = sandbox.run(&format!("tasks update {id} --version {version} --priority 1"));
    assert_eq!(late.code, 1);
    assert!(late.stderr.contains(&format!("you saw version {version}, and it is at")), "{late:?}");
    let over = sandbox.json(&format!("tasks cancel {id}"))[0]["version"].to_string();
    let over = sandbox.run(&format!("tasks update {id} --version {over} --priority 1"));
    assert!(
        over.code == 1 && over.stderr.contains("is aborted; that change is not possible now"),
        "{over:?}"
    );
}

#[test]
fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["mail"]);
    let paused = sandbox.run_words(&["queues", "pause", "mail", "--reason", "the server is down"]);
    assert_eq!(paused.stdout, "queue 'mail' is paused\n");
    let queue = &sandbox.json("queues list")[0];
    assert_eq!((&queue["paused"], &queue["pause"]["reason"]), (&true.into(), &"the server is down".into()));
    sandbox.work("mail", "echo done");
    assert_eq!(sandbox.task(&id)["state"], "pending");
    assert_eq!(sandbox.json("queues resume mail")["paused"], false);
    sandbox.work("mail", "echo done");
    assert_eq!(sandbox.task(&id)["state"], "succeeded");
    for words in ["queues pause post", "queues resume post"] {
        let unknown = sandbox.run(words);
        assert_eq!(unknown.code, 1, "{words}");
        assert!(unknown.stderr.contains("there is no queue 'post'; there is 'mail'"), "{unknown:?}");
    }
}

#[test]
fn finished_tasks_are_archived_and_purged() {
    let sandbox = Sandbox::new();
    let ids: Vec<_> = (0..3).map(|_| sandbox.add(&["mail"])).collect();
    sandbox.work("mail", "true");
    sandbox.add(&["mail"]);
    assert_eq!(sandbox.ok("tasks purge --older-than 1h --yes"), "deleted 0 tasks\n");
    assert_eq!(sandbox.ok("tasks purge --older-than 0s --state failed --yes"), "deleted 0 tasks\n");
    assert_eq!(sandbox.ok("tasks purge --older-than 0s --archive --yes"), "archived 3 tasks\n");
    assert_eq!(sandbox.json("tasks list").as_array().unwrap().len(), 1);
    assert_eq!(sandbox.json("tasks list --archived").as_array().unwrap().len(), 4);
    assert_eq!(sandbox.json("tasks purge --queue mail --older-than 0s --yes")["purged"], 3);
    assert_eq!(sandbox.run(&format!("tasks show {}", ids[0])).code, 1);
    let unasked = sandbox.run("tasks purge --older-than 0s");
    assert_eq!(unasked.code, 64);
    assert!(unasked.stderr.contains("needs --yes"), "{unasked:?}");
}

#[test]
fn nothing_to_recover_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.add(&["mail"]);
    assert_eq!(sandbox.ok("tasks recover"), "nothing to recover\n");
    assert_eq!(sandbox.json("tasks recover")["returned"], 0);
}

#[test]
fn an_unknown_task_has_an_error_code() {
    let sandbox = Sandbox::new();
    sandbox.add(&["mail"]);
    for words in ["tasks show", "tasks retry", "tasks cancel", "tasks update --version 1 --priority 1"] {
        let ran = sandbox.run(&format!("--json {words} {UNKNOWN_TASK}"));
        assert_eq!(ran.code, 1, "{words}");
        assert!(ran.stderr.contains(r#""code":"UNKNOWN_TASK""#), "{words}: {}", ran.stderr);
    }
}

#[test]
fn retention_can_be_shown_and_set() {
    let sandbox = Sandbox::new();
    let week = "succeeded tasks are kept for 7d, failed for 7d, aborted for 7d\n";
    assert_eq!(sandbox.ok("queues retention mail"), format!("queue 'mail': {week}"));
    let set = sandbox.ok("queues retention mail --succeeded 1d --failed forever");
    assert_eq!(set, "queue 'mail': succeeded tasks are kept for 1d, failed for ever, aborted for 7d\n");
    let value = sandbox.json("queues retention mail");
    assert_eq!(
        (&value["queue"], &value["retention"]["failedSeconds"]),
        (&"mail".into(), &serde_json::Value::Null)
    );
    assert_eq!(value["retention"]["succeededSeconds"], 86400.0);
    sandbox.ok("queues retention --all 30d");
    assert_eq!(sandbox.json("queues retention post")["retention"]["abortedSeconds"], 2_592_000.0);
    assert!(sandbox.ok("queues retention mail --reset").contains("kept for 30d, failed for 30d"));
    let short = sandbox.ok("queues retention workflow/deploy --all 1h");
    assert!(short.contains("kept for 30d"), "executions are kept for a month at least: {short}");
    for wrong in ["--all never", "--all 0", "--all 1d --failed 2d", "--reset --all 1d"] {
        assert_eq!(sandbox.run(&format!("queues retention mail {wrong}")).code, 64, "{wrong}");
    }
}
