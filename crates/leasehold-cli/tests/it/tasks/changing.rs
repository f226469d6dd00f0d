//! `tasks retry`, `cancel`, `update`, `recover`, `purge`, `queues pause` and `resume`.

use crate::support::Bench;

const NOBODY: &str = "01a1deb1-1ca7-7312-a891-f34f7801532f";

#[test]
fn what_waits_is_cancelled_at_once_and_can_be_tried_again() {
    let bench = Bench::new();
    let (one, two) = (bench.add(&["mail"]), bench.add(&["mail"]));
    let ran = bench.run(&format!("tasks cancel {one} {two} --reason oops"));
    assert_eq!((ran.code, ran.stdout), (0, format!("{one}  aborted\n{two}  aborted\n")));
    assert_eq!(bench.task(&one)["cancel"]["reason"], "oops");
    assert_eq!(bench.json(&format!("tasks retry {one}"))[0]["state"], "pending");
    let again = bench.run(&format!("tasks retry {one}"));
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("is pending; trying it again is not possible now"), "{again:?}");
}

#[test]
fn one_that_fails_does_not_keep_the_others_from_it() {
    let bench = Bench::new();
    let known = bench.add(&["mail"]);
    let ran = bench.run(&format!("tasks cancel {NOBODY} {known}"));
    assert_eq!((ran.code, ran.stdout), (1, format!("{known}  aborted\n")));
    assert!(ran.stderr.contains(&format!("there is no task {NOBODY}")), "{}", ran.stderr);
}

#[test]
fn all_that_failed_are_tried_again() {
    let bench = Bench::new();
    for _ in 0..3 {
        bench.add(&["mail", "--max-attempts", "1"]);
    }
    bench.work("mail", "exit 1");
    assert_eq!(bench.ok("tasks retry --failed --queue mail"), "3 tasks will be tried again\n");
    assert_eq!(bench.json("tasks counts mail")[0]["counts"]["pending"], 3);
    assert_eq!(bench.json("tasks retry --failed --queue mail")["retried"], 0);
    assert_eq!(bench.run("tasks retry --failed --queue post").code, 1);
}

#[test]
fn a_task_is_changed_only_at_the_version_that_was_seen() {
    let bench = Bench::new();
    let id = bench.add(&["mail", "--backoff", "7s"]);
    let version = bench.task(&id)["version"].to_string();
    let words = "--payload [2] --priority 9 --max-attempts 2 --run-at 2100-01-01T00:00:00Z";
    let after = bench.json(&format!("tasks update {id} --version {version} {words}"));
    assert_eq!(after["payload"], serde_json::json!([2]));
    assert_eq!((&after["priority"], &after["maxAttempts"]), (&9.into(), &2.into()));
    assert_eq!((&after["state"], &after["backoffSeconds"]), (&"scheduled".into(), &7.0.into()));
    let late = bench.run(&format!("tasks update {id} --version {version} --priority 1"));
    assert_eq!(late.code, 1);
    assert!(late.stderr.contains(&format!("you saw version {version}, and it is at")), "{late:?}");
    let over = bench.json(&format!("tasks cancel {id}"))[0]["version"].to_string();
    let over = bench.run(&format!("tasks update {id} --version {over} --priority 1"));
    assert!(
        over.code == 1 && over.stderr.contains("is aborted; that change is not possible now"),
        "{over:?}"
    );
}

#[test]
fn a_paused_queue_gives_nothing_until_it_is_resumed() {
    let bench = Bench::new();
    let id = bench.add(&["mail"]);
    let paused = bench.run_words(&["queues", "pause", "mail", "--reason", "the server is down"]);
    assert_eq!(paused.stdout, "queue 'mail' is paused\n");
    let queue = &bench.json("queues list")[0];
    assert_eq!((&queue["paused"], &queue["pause"]["reason"]), (&true.into(), &"the server is down".into()));
    bench.work("mail", "echo done");
    assert_eq!(bench.task(&id)["state"], "pending");
    assert_eq!(bench.json("queues resume mail")["paused"], false);
    bench.work("mail", "echo done");
    assert_eq!(bench.task(&id)["state"], "succeeded");
    for words in ["queues pause post", "queues resume post"] {
        let unknown = bench.run(words);
        assert_eq!(unknown.code, 1, "{words}");
        assert!(unknown.stderr.contains("there is no queue 'post'; there is 'mail'"), "{unknown:?}");
    }
}

#[test]
fn what_has_ended_is_put_away_and_forgotten() {
    let bench = Bench::new();
    let ids: Vec<_> = (0..3).map(|_| bench.add(&["mail"])).collect();
    bench.work("mail", "true");
    bench.add(&["mail"]);
    assert_eq!(bench.ok("tasks purge --older-than 1h --yes"), "deleted 0 tasks\n");
    assert_eq!(bench.ok("tasks purge --older-than 0s --state failed --yes"), "deleted 0 tasks\n");
    assert_eq!(bench.ok("tasks purge --older-than 0s --archive --yes"), "archived 3 tasks\n");
    assert_eq!(bench.json("tasks list").as_array().unwrap().len(), 1);
    assert_eq!(bench.json("tasks list --archived").as_array().unwrap().len(), 4);
    assert_eq!(bench.json("tasks purge --queue mail --older-than 0s --yes")["purged"], 3);
    assert_eq!(bench.run(&format!("tasks show {}", ids[0])).code, 1);
    let unasked = bench.run("tasks purge --older-than 0s");
    assert_eq!(unasked.code, 64);
    assert!(unasked.stderr.contains("needs --yes"), "{unasked:?}");
}

#[test]
fn nothing_to_recover_is_said() {
    let bench = Bench::new();
    bench.add(&["mail"]);
    assert_eq!(bench.ok("tasks recover"), "nothing to recover\n");
    assert_eq!(bench.json("tasks recover")["returned"], 0);
}

#[test]
fn a_task_that_is_not_there_is_said_with_its_code() {
    let bench = Bench::new();
    bench.add(&["mail"]);
    for words in ["tasks show", "tasks retry", "tasks cancel", "tasks update --version 1 --priority 1"] {
        let ran = bench.run(&format!("--json {words} {NOBODY}"));
        assert_eq!(ran.code, 1, "{words}");
        assert!(ran.stderr.contains(r#""code":"UNKNOWN_TASK""#), "{words}: {}", ran.stderr);
    }
}

#[test]
fn how_long_finished_tasks_are_kept_can_be_shown_and_set() {
    let bench = Bench::new();
    let week = "succeeded tasks are kept for 7d, failed for 7d, aborted for 7d\n";
    assert_eq!(bench.ok("queues retention mail"), format!("queue 'mail': {week}"));
    let set = bench.ok("queues retention mail --succeeded 1d --failed forever");
    assert_eq!(set, "queue 'mail': succeeded tasks are kept for 1d, failed for ever, aborted for 7d\n");
    let value = bench.json("queues retention mail");
    assert_eq!(
        (&value["queue"], &value["retention"]["failedSeconds"]),
        (&"mail".into(), &serde_json::Value::Null)
    );
    assert_eq!(value["retention"]["succeededSeconds"], 86400.0);
    bench.ok("queues retention --all 30d");
    assert_eq!(bench.json("queues retention post")["retention"]["abortedSeconds"], 2_592_000.0);
    assert!(bench.ok("queues retention mail --reset").contains("kept for 30d, failed for 30d"));
    let short = bench.ok("queues retention workflow/deploy --all 1h");
    assert!(short.contains("kept for 30d"), "executions are kept for a month at least: {short}");
    for wrong in ["--all never", "--all 0", "--all 1d --failed 2d", "--reset --all 1d"] {
        assert_eq!(bench.run(&format!("queues retention mail {wrong}")).code, 64, "{wrong}");
    }
}
