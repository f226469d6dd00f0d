//! Schedules: recurring tasks.

use super::support::Sandbox;

const SET: [&str; 5] = ["schedules", "set", "nightly", "0 3 * * *", "reports"];

#[test]
fn a_schedule_is_set_listed_paused_and_removed() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.run("schedules list").stderr, "there is no schedule\n");
    let set = sandbox.run_words(&[&SET[..], &["--zone", "Europe/Berlin", "--lock", "db"]].concat());
    assert_eq!(set.code, 0, "{set:?}");
    assert!(set.stdout.contains("0 3 * * * in Europe/Berlin"), "{}", set.stdout);
    let list = sandbox.json("schedules list");
    let one = &list[0];
    assert_eq!(
        (&one["name"], &one["queue"], &one["lock"]),
        (&"nightly".into(), &"reports".into(), &"db".into())
    );
    assert_eq!(one["next"].as_array().map(Vec::len), Some(1));
    assert_eq!(sandbox.json("schedules show nightly --next 30")["next"].as_array().map(Vec::len), Some(30));
    assert_eq!(sandbox.json("schedules pause nightly")["paused"], true);
    assert!(sandbox.ok("schedules list").contains("paused"));
    assert_eq!(sandbox.json("schedules resume nightly")["paused"], false);
    assert_eq!(sandbox.ok("schedules remove nightly"), "schedule 'nightly' is removed\n");
    let gone = sandbox.run("schedules show nightly");
    assert_eq!(gone.code, 1);
    assert!(gone.stderr.starts_with("leasehold: there is no schedule 'nightly'\n"), "{}", gone.stderr);
}

#[test]
fn invalid_input_is_refused_before_anything_is_stored() {
    let sandbox = Sandbox::new();
    for (words, told) in [
        (
            ["schedules", "set", "s", "every day", "q", "--missed", "all"],
            "'every day' is not a valid cron expression",
        ),
        (["schedules", "set", "s", "0 0 30 2 *", "q", "--missed", "all"], "that never happens"),
        (["schedules", "set", "s", "@daily", "q", "--zone", "Mars/Olympus"], "no time zone 'Mars/Olympus'"),
        (
            ["schedules", "set", "s", "@daily", "q", "--missed", "some"],
            "'some' is not a policy for missed ticks",
        ),
        (["schedules", "set", "s", "@daily", "q", "--payload", "{"], "not JSON"),
        (["schedules", "set", "s", "@daily", "q", "--max-attempts", "0"], "0"),
    ] {
        let ran = sandbox.run_words(&words);
        assert_eq!(ran.code, 64, "{words:?}: {ran:?}");
        assert!(ran.stderr.contains(told), "{words:?}: {}", ran.stderr);
    }
    assert_eq!(sandbox.json("schedules list"), serde_json::json!([]));
}

#[test]
fn until_empty_first_adds_tasks_for_missed_ticks() {
    let sandbox = Sandbox::new();
    let set = sandbox.run_words(&["schedules", "set", "tick", "* * * * * *", "ticks"]);
    assert_eq!(set.code, 0, "{set:?}");
    // Ticks without a running worker.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    let words =
        ["tasks", "work", "ticks", "--until-empty", "--", "sh", "-c", "echo \"$LEASEHOLD_KEY\" >> keys"];
    assert_eq!(sandbox.run_words(&words).code, 0);
    let keys = std::fs::read_to_string(sandbox.path().join("keys")).unwrap_or_default();
    assert!(keys.lines().filter(|key| key.starts_with("schedule tick")).count() >= 2, "{keys}");
}

#[test]
fn a_tick_becomes_a_task_that_a_worker_runs() {
    let sandbox = Sandbox::new();
    let set = sandbox.run_words(&["schedules", "set", "tick", "* * * * * *", "ticks", "--payload", "[7]"]);
    assert_eq!(set.code, 0, "{set:?}");
    // Two workers: a tick is still one task.
    let words =
        ["tasks", "work", "ticks", "--", "sh", "-c", "echo \"$LEASEHOLD_KEY\" >> keys; cat >> payloads"];
    let mut workers = [(); 2].map(|()| sandbox.command(words).spawn().unwrap());
    let keys = sandbox.path().join("keys");
    let read = || std::fs::read_to_string(&keys).unwrap_or_default();
    let began = std::time::Instant::now();
    while read().lines().count() < 3 {
        assert!(began.elapsed().as_secs() < 60, "no ticks: {:?}", read());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    let mut seen: Vec<String> = read().lines().map(str::to_owned).collect();
    assert!(seen.iter().all(|key| key.starts_with("schedule tick ")), "{seen:?}");
    let all = seen.len();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), all, "no tick ran twice");
    assert!(std::fs::read_to_string(sandbox.path().join("payloads")).unwrap().starts_with("[7]"));
}

/// Ticks of any age: a worker that starts does not run ticks that occurred while no worker was
/// running.
#[test]
fn ticks_without_a_worker_are_missed_at_any_age() {
    let sandbox = Sandbox::new();
    for policy in ["none", "last", "all"] {
        let words = ["schedules", "set", policy, "* * * * * *", policy, "--missed", policy];
        assert_eq!(sandbox.run_words(&words).code, 0);
    }
    std::thread::sleep(std::time::Duration::from_millis(5_200));
    let script = "echo \"$LEASEHOLD_QUEUE\" >> ran";
    let words = ["tasks", "work", "none", "last", "all", "--until-empty", "--", "sh", "-c", script];
    assert_eq!(sandbox.run_words(&words).code, 0);
    let ran = std::fs::read_to_string(sandbox.path().join("ran")).unwrap_or_default();
    let count = |queue: &str| ran.lines().filter(|line| *line == queue).count();
    // Ticks that occur while the worker runs are not missed.
    let during = count("all").saturating_sub(5);
    assert!(count("all") >= 5, "{ran}");
    for policy in ["none", "last"] {
        assert!((1..=2 + during).contains(&count(policy)), "{policy}: {ran}");
    }
    let shown = sandbox.ok("schedules show none");
    assert!(shown.contains("none: missed ticks are skipped"), "{shown}");
}
