//! Maximum runtimes, intervals and default ttls; details of conflicts; re-acquiring and taking over
//! leases.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Ran, Sandbox, eventually, run};

/// Returns the JSON error of a refused command.
fn refused(sandbox: &Sandbox, words: &str, code: i32) -> Value {
    let ran = sandbox.run(&format!("--json {words}"));
    assert_eq!(ran.code, code, "{words}: {ran:?}");
    serde_json::from_str(&ran.stderr).unwrap()
}

#[test]
fn a_command_that_reaches_its_max_runtime_exits_with_124() {
    let sandbox = Sandbox::new();
    let began = Instant::now();
    let ran = sandbox.run("run a --max-runtime 500ms -- sleep 60");
    assert_eq!(ran.code, 124, "{ran:?}");
    assert!(ran.stderr.contains("the command ran for 500ms, its --max-runtime; ending it"), "{ran:?}");
    assert!(!ran.stderr.contains("could not be renewed"), "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(20));
    // The lock is free, and the history contains a release.
    let status = sandbox.json("locks status a");
    assert_eq!((&status["isLocked"], &status["last"]["status"]), (&false.into(), &"released".into()));
    assert_eq!(sandbox.run("run a --max-runtime 30s -- true").code, 0);
    assert_eq!(sandbox.run("run a --max-runtime 0s -- true").code, 64);
}

/// The command and its child ignore SIGTERM.
#[test]
fn a_command_that_ignores_its_max_runtime_is_killed() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; sleep 60 & echo $! > child; while :; do sleep 1; done";
    let words = ["run", "a", "--max-runtime", "1s", "--kill-after", "500ms", "--", "sh", "-c", script];
    let began = Instant::now();
    let ran = sandbox.run_words(&words);
    assert_eq!(ran.code, 124, "{ran:?}");
    assert!(began.elapsed() >= Duration::from_millis(1400), "it has its grace");
    let child = std::fs::read_to_string(sandbox.path().join("child")).unwrap();
    let is_dead = !std::path::Path::new("/proc").join(child.trim()).join("cwd").exists();
    assert!(is_dead, "nothing of the tree is left");
}

#[test]
fn a_task_that_runs_for_too_long_has_failed_and_is_tried_again() {
    let sandbox = Sandbox::new();
    sandbox.ok("tasks add q --max-attempts 2 --backoff 10ms");
    let script = "echo try >> tries; sleep 60";
    let words = ["tasks", "work", "q", "--until-done", "--max-runtime", "300ms", "--", "sh", "-c", script];
    let worked = sandbox.command(words).output().unwrap();
    assert_eq!(worked.status.code(), Some(1), "the task was given up: {worked:?}");
    let messages = String::from_utf8_lossy(&worked.stderr).into_owned();
    assert!(messages.contains("it reached its time limit; it will be retried in"), "{messages}");
    assert!(messages.contains("it reached its time limit; given up after 2 of 2 attempts"), "{messages}");
    let task = sandbox.json("tasks list --all")[0].clone();
    let shown = sandbox.json(&format!("tasks show {}", task["id"].as_str().unwrap()));
    assert_eq!(shown["error"], "timeout: it ran for 300ms", "{shown}");
    let tries = std::fs::read_to_string(sandbox.path().join("tries")).unwrap();
    assert_eq!(tries.lines().count(), 2);
}

#[test]
fn the_interval_of_recovery_has_bounds() {
    let sandbox = Sandbox::new();
    for wrong in ["0s", "9ms", "25h"] {
        let ran = sandbox.run(&format!("tasks work q --recover-every {wrong} --until-empty -- true"));
        assert_eq!(ran.code, 64, "{wrong}: {ran:?}");
        assert!(ran.stderr.contains("out of bounds: 10ms to 1d"), "{ran:?}");
    }
    assert_eq!(sandbox.run("tasks work q --recover-every 30m --until-empty -- true").code, 0);
}

#[test]
fn a_conflict_names_the_lease_and_counts_down() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada --ttl 30m");
    let told = refused(&sandbox, "locks acquire a", 75);
    let held = &told["details"]["holders"][0];
    let left = held["expiresInSeconds"].as_f64().unwrap();
    assert!((1700.0..=1800.0).contains(&left), "{told}");
    let status = sandbox.json("locks status a");
    assert_eq!(held["leaseRef"], status["holders"][0]["leaseRef"], "both name the same lease");
    assert_ne!(held["leaseRef"], status["holders"][0]["leaseId"]);
    let text = sandbox.run("locks acquire a").stderr;
    assert!(text.contains("Z (in 29m"), "{text}");
}

#[test]
fn a_start_that_is_refused_names_the_workflow_and_the_execution() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.start("workflows run dep -- sleep 60");
    let executions = || sandbox.json("executions list");
    eventually("it runs", || executions()[0]["state"] == "running");
    let told = refused(&sandbox, "workflows run dep -- true", 75);
    let details = &told["details"];
    assert_eq!((&told["code"], &details["workflowId"]), (&"WORKFLOW_LOCKED".into(), &"dep".into()));
    assert_eq!(details["existingExecutionId"], executions()[0]["id"]);
    assert!(
        details["message"].as_str().unwrap().starts_with("Only one execution can run at a time"),
        "{told}"
    );
    // The operator has started it.
    let by = executions()[0]["startedBy"].as_str().unwrap().to_owned();
    assert!(by.contains('@'), "{by}");
    let id = executions()[0]["id"].as_str().unwrap().to_owned();
    assert!(sandbox.ok(&format!("executions show {id}")).contains(&format!("started by   {by}")));
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn taking_over_an_expired_lease_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada --ttl 1s");
    std::thread::sleep(Duration::from_millis(1100));
    let ran = sandbox.run("locks acquire a --holder bob --ttl 1s");
    assert_eq!(ran.code, 0, "{ran:?}");
    let told = "leasehold: lock 'a': took over the lease of ada, which expired ";
    assert!(ran.stderr.contains(told) && ran.stderr.contains("ago without a release"), "{ran:?}");
    std::thread::sleep(Duration::from_millis(1100));
    let taken = sandbox.json("locks acquire a --holder eve --ttl 1s");
    assert_eq!(taken["tookOver"]["holder"], "bob", "{taken}");
    std::thread::sleep(Duration::from_millis(1100));
    let ran = sandbox.run("run a -- true");
    assert!(ran.stderr.contains("took over the lease of eve, which expired "), "{ran:?}");
    // A released lease is not taken over.
    let ran = sandbox.run("run a -- true");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

#[test]
fn the_same_lease_id_gives_the_same_lease() {
    let sandbox = Sandbox::new();
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let first = sandbox.json(&format!("locks acquire a --lease-id {id}"));
    let again = sandbox.json(&format!("locks acquire a --lease-id {id}"));
    assert_eq!((&first["leaseId"], &first["token"]), (&id.into(), &again["token"]));
    assert_eq!(sandbox.run("locks acquire a").code, 75);
    let token = first["token"].to_string();
    sandbox.ok(&format!("locks release a --lease-id {id} --token {token}"));
    let again_granted = sandbox.json(&format!("locks acquire a --lease-id {id}"));
    assert_ne!(again_granted["token"], first["token"], "it had been released: this is another grant");
    assert_eq!(sandbox.run("locks acquire a --lease-id nonsense").code, 64);
    assert_eq!(sandbox.run(&format!("locks acquire a --with b --lease-id {id}")).code, 64);
}

#[test]
fn a_holder_gets_its_lease_again_only_with_reentrant() {
    let sandbox = Sandbox::new();
    let first = sandbox.json("locks acquire a --holder job-7");
    assert_eq!(sandbox.run("locks acquire a --holder job-7").code, 75, "a name alone is no proof");
    let again = sandbox.json("locks acquire a --holder job-7 --reentrant");
    assert_eq!((&again["leaseId"], &again["token"]), (&first["leaseId"], &first["token"]));
    assert_eq!(sandbox.run("locks acquire a --holder job-8 --reentrant").code, 75);
    let free = sandbox.json("locks acquire b --holder job-7 --reentrant");
    assert_eq!(free["holder"], "job-7");
    assert_eq!(sandbox.run("locks acquire a --reentrant").code, 64, "it needs --holder");
}

#[test]
fn a_default_ttl_comes_from_the_environment_or_the_config_file() {
    let sandbox = Sandbox::new();
    let ttl = |words: &[&str], variable: Option<&str>| {
        let mut command = sandbox.command([&["--json", "locks", "acquire"], words].concat());
        if let Some(ttl) = variable {
            command.env("LEASEHOLD_TTL", ttl);
        }
        let Ran { code, stdout, stderr } = run(&mut command);
        assert_eq!(code, 0, "{stderr}");
        serde_json::from_str::<Value>(&stdout).unwrap()["ttlSeconds"].as_f64().unwrap()
    };
    let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.001, "{found} {wanted}");
    near(ttl(&["a"], None), 30.0);
    near(ttl(&["b"], Some("30m")), 1800.0);
    near(ttl(&["g"], Some("45")), 45.0);
    std::fs::create_dir_all(sandbox.path().join("config/leasehold")).unwrap();
    std::fs::write(sandbox.path().join("config/leasehold/config.toml"), "ttl = \"10m\"\n").unwrap();
    near(ttl(&["c"], None), 600.0);
    near(ttl(&["d"], Some("30m")), 1800.0);
    near(ttl(&["e", "--ttl", "1m"], Some("30m")), 60.0);
    let ran = run(sandbox.command(["run", "f", "--", "true"]).env("LEASEHOLD_TTL", "soon"));
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("LEASEHOLD_TTL is 'soon'"), "{ran:?}");
    // Too short for a command, as with --ttl.
    let ran = run(sandbox.command(["run", "f", "--", "true"]).env("LEASEHOLD_TTL", "10ms"));
    assert_ne!(ran.code, 0, "{ran:?}");
}

#[test]
fn renewals_are_recorded_if_configured() {
    let sandbox = Sandbox::new();
    let kinds = |sandbox: &Sandbox| -> Vec<String> {
        let events = sandbox.json("history a");
        events.as_array().unwrap().iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
    };
    let ran = run(&mut sandbox.command("run a --ttl 1s -- sleep 1.5".split(' ')));
    assert_eq!((ran.code, kinds(&sandbox).contains(&"renewed".to_owned())), (0, false), "{ran:?}");
    let logged = |words: &str| {
        let mut command = sandbox.command(words.split(' '));
        command.env("LEASEHOLD_AUDIT", "renewals");
        run(&mut command)
    };
    assert_eq!(logged("run a --ttl 1s -- sleep 1.5").code, 0);
    assert!(kinds(&sandbox).iter().filter(|kind| *kind == "renewed").count() >= 2, "{:?}", kinds(&sandbox));
    let held = sandbox.hold("b");
    assert_eq!(logged(&format!("locks renew b {}", held.with)).code, 0);
    assert_eq!(sandbox.json("history b").as_array().unwrap().len(), 2);
    let wrong = run(sandbox.command(["locks", "list"]).env("LEASEHOLD_AUDIT", "everything"));
    assert_eq!(wrong.code, 78, "{wrong:?}");
    assert!(wrong.stderr.contains("write one of: renewals, none"), "{wrong:?}");
}

#[test]
fn a_schedule_has_jitter_within_bounds() {
    let sandbox = Sandbox::new();
    let set = sandbox.run_words(&["schedules", "set", "s", "@hourly", "q", "--jitter", "30s"]);
    assert_eq!(set.code, 0, "{set:?}");
    assert!(set.stdout.contains("each task runs up to 30s after its tick"), "{set:?}");
    assert_eq!(sandbox.json("schedules show s")["jitterSeconds"], 30.0);
    let long = sandbox.run_words(&["schedules", "set", "s", "@hourly", "q", "--jitter", "2d"]);
    assert_eq!(long.code, 64, "{long:?}");
    assert!(long.stderr.contains("a jitter of 2d is too long; 1d is the longest"), "{long:?}");
}
