//! `torture`: a short run on each store of this machine, its end by signals, and the check of recorded
//! histories. The race of `doctor`.

use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::http::Served;
use super::support::{Ran, Sandbox, eventually, run};

/// Runs `torture` on a store, and asserts that nothing is violated and that all was checked.
pub(crate) fn is_fit(sandbox: &Sandbox, store: &str, token: Option<&str>) -> Value {
    let words = "--json torture --seconds 12 --record history.jsonl";
    let mut command = sandbox.command(words.split(' '));
    command.env("LEASEHOLD_STORE", store);
    if let Some(token) = token {
        command.env("LEASEHOLD_API_TOKEN", token);
    }
    let ran = run(&mut command);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["violations"], &report["fit"]), (&0.into(), &true.into()), "{report:#}");
    let faults: u64 = report["faults"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert!(faults >= 20, "{report:#}");
    assert!(!report["notPromised"]["limits"].as_array().unwrap().is_empty(), "{report:#}");
    report
}

#[test]
fn sqlite_is_fit_under_faults() {
    let sandbox = Sandbox::new();
    let store = format!("sqlite:{}", sandbox.path().join("torture.db").display());
    let report = is_fit(&sandbox, &store, None);
    assert_eq!(report["engine"], "sqlite");
    assert!(report["operations"]["ticks"].as_u64().unwrap() >= 5, "{report:#}");
    let schedules = run(sandbox.command(["--json", "schedules", "list"]).env("LEASEHOLD_STORE", &store));
    assert_eq!(schedules.stdout.trim(), "[]", "the schedule is removed");
    // The recorded history says the same.
    let again = sandbox.json("torture check history.jsonl");
    assert_eq!(again, report);
    let shown = sandbox.ok("torture check history.jsonl");
    assert!(shown.contains("fit for: exclusion ✓  fencing ✓"), "{shown}");
    assert!(shown.contains("not promised: processes of another machine; "), "{shown}");
}

#[test]
fn a_server_is_fit_under_faults() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    is_fit(&sandbox, &format!("http://{}", served.address()), Some(served.token()));
}

#[test]
fn a_violation_is_shown_and_exits_with_1() {
    let sandbox = Sandbox::new();
    let header = r#"{"format":1,"store":"sqlite:x","engine":"sqlite","seed":1,"ttlMillis":1000,"workers":2,"proxied":true,"queues":true,"tasks":true}"#;
    let held_by = |process: u32, at: u64| {
        let acquire = json!({ "at": at, "process": process, "event": "acquire", "op": 1, "lock": "l", "mode": "exclusive" });
        let granted = json!({
            "at": at, "process": process, "event": "granted", "op": 1,
            "lease": process.to_string(), "token": process, "until": 1000,
        });
        format!("{acquire}\n{granted}\n")
    };
    let history = format!("{header}\n{}{}", held_by(1, 0), held_by(2, 10));
    std::fs::write(sandbox.path().join("h.jsonl"), history).unwrap();
    let Ran { code, stdout, .. } = sandbox.run("torture check h.jsonl");
    assert_eq!(code, 1, "{stdout}");
    for part in ["violations  1", "exclusion is violated: 'l' is held twice", r#""process":2,"#, "NOT fit"] {
        assert!(stdout.contains(part), "{stdout}");
    }
}

#[test]
fn bad_input_is_refused() {
    let sandbox = Sandbox::new();
    let write = |name: &str, text: &str| std::fs::write(sandbox.path().join(name), text).unwrap();
    let header = r#"{"format":1,"store":"s","engine":"e","seed":1,"ttlMillis":1000,"workers":2,"proxied":true,"queues":true,"tasks":true}"#;
    write("no.jsonl", "nonsense");
    write("empty.jsonl", "");
    write("cut.jsonl", &format!("{header}\n{{\"at\":1,\"process\":0,\"event\":\"drai"));
    write("long.jsonl", &format!("{header}\n{}", "x".repeat(1 << 20)));
    std::fs::write(sandbox.path().join("bytes.jsonl"), [0xff; 4000]).unwrap();
    std::fs::create_dir(sandbox.path().join("folder")).unwrap();
    for (words, code, part) in [
        ("torture check missing.jsonl", 78, "cannot read missing.jsonl"),
        ("torture check folder", 78, "cannot read folder"),
        ("torture check no.jsonl", 78, "line 1 is no header of a history"),
        ("torture check empty.jsonl", 78, "line 1 is no header of a history"),
        ("torture check bytes.jsonl", 78, "line 1 is no header of a history"),
        ("torture check cut.jsonl", 78, "line 2 is no record"),
        ("torture check long.jsonl", 78, "line 2 is longer than 65536 bytes"),
        ("torture check", 64, "<FILE>"),
        ("torture --faults kill,flood", 64, "'flood' is not a fault; faults are: kill, stop"),
        ("torture --faults kill,,stop", 64, "'' is not a fault; faults are: kill, stop"),
        ("torture --seconds 0", 64, "--seconds"),
        ("torture --seconds 86401", 64, "--seconds"),
        ("torture --workers 0", 64, "--workers"),
        ("torture --workers 1000", 64, "--workers"),
        ("torture --locks 0", 64, "--locks"),
        ("torture --ttl 0s", 64, "--ttl"),
        ("torture --seed x", 64, "--seed"),
        ("--store memory: torture", 78, "exists in one process only"),
        ("--store http://127.0.0.1:1 torture", 69, "127.0.0.1:1"),
        ("torture --record missing/h.jsonl", 78, "cannot write missing/h.jsonl"),
    ] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, code, "{words}: {ran:?}");
        assert!(ran.stderr.contains(part), "{words}: {ran:?}");
    }
}

#[test]
fn a_history_whose_times_are_extreme_is_checked() {
    let sandbox = Sandbox::new();
    let header = r#"{"format":1,"store":"s","engine":"e","seed":1,"ttlMillis":18446744073709551615,"workers":2,"proxied":true,"queues":true,"tasks":true}"#;
    let most = u64::MAX;
    let records = [
        json!({ "at": most, "process": 1, "event": "stalled", "millis": most }),
        json!({ "at": 0, "process": 0, "event": "fault", "worker": 1, "fault": "stop", "millis": most }),
        json!({ "at": 0, "process": 1, "event": "acquire", "op": 1, "lock": "l", "mode": "exclusive" }),
        json!({ "at": most, "process": 1, "event": "granted", "op": 1, "lease": "a", "token": most, "until": most }),
        json!({ "at": most, "process": 1, "event": "extended", "op": 1, "until": 0 }),
    ];
    let lines: Vec<String> = records.iter().map(ToString::to_string).collect();
    std::fs::write(sandbox.path().join("h.jsonl"), format!("{header}\n{}\n", lines.join("\n"))).unwrap();
    let ran = sandbox.run("torture check h.jsonl");
    assert_eq!((ran.code, ran.stderr.as_str()), (1, ""), "{ran:?}");
    assert!(
        ran.stdout.contains("NOT fit") && ran.stdout.contains("incomplete: the run was cut off"),
        "{ran:?}"
    );
}

#[test]
fn a_caller_that_may_only_read_is_refused_at_once() {
    let sandbox = Sandbox::new();
    let store = format!("sqlite:{}", sandbox.path().join("served.db").display());
    let served = Served::over(&sandbox.path().join("served.db"));
    let words = ["--json", "token", "new", "--name", "reader", "--role", "reader"];
    let created = run(sandbox.command(words).env("LEASEHOLD_STORE", &store));
    let created: Value = serde_json::from_str(&created.stdout).unwrap();
    let mut command = sandbox.command(["torture"]);
    command.env("LEASEHOLD_STORE", format!("http://{}", served.address()));
    let ran = run(command.env("LEASEHOLD_API_TOKEN", created["token"].as_str().unwrap()));
    assert_eq!((ran.code, ran.stdout.as_str()), (77, ""), "{ran:?}");
}

/// Run that a test ends.
struct Torture {
    child: Child,
}

impl Torture {
    /// Starts a run of two minutes, and waits until its workers compete for locks.
    fn start(sandbox: &Sandbox, words: &str) -> Self {
        let torture = Self { child: sandbox.start(&format!("torture --seconds 120 {words}")) };
        eventually("workers", || torture.workers().len() == 4);
        eventually("locks", || {
            sandbox.json("locks list --all --prefix torture-").as_array().unwrap().len() > 3
        });
        torture
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap())
    }

    /// Returns the worker processes and their states.
    fn workers(&self) -> Vec<(Pid, char)> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let parsed = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let with_state = parsed.filter_map(|pid: i32| Some((Pid::from_raw(pid), state(Pid::from_raw(pid))?)));
        with_state
            .filter(|(_, (_, parent))| *parent == self.pid())
            .map(|(pid, (state, _))| (pid, state))
            .collect()
    }

    /// Waits for the end, which must come soon.
    fn end(mut self) -> Ran {
        let deadline = Instant::now() + Duration::from_secs(100);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the run does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        self.child.wait_with_output().map(Ran::from).unwrap()
    }
}

/// Returns the state and the parent of a process that exists.
fn state(pid: Pid) -> Option<(char, Pid)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.chars().next()?;
    Some((state, Pid::from_raw(fields.next()?.parse().ok()?)))
}

/// Waits until these processes have ended.
fn have_ended(workers: &[(Pid, char)]) {
    for (pid, _) in workers {
        eventually(&format!("the end of worker {pid}"), || state(*pid).is_none_or(|(state, _)| state == 'Z'));
    }
}

#[test]
fn a_signal_ends_a_run_early_and_what_there_is_is_checked() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let sandbox = Sandbox::new();
        let torture = Torture::start(&sandbox, "--record h.jsonl");
        let workers = torture.workers();
        kill(torture.pid(), signal).unwrap();
        let ran = torture.end();
        have_ended(&workers);
        assert!(ran.stderr.contains("ending the run; a second signal ends it at once"), "{ran:?}");
        for part in ["interrupted before its time", "violations  0", "exclusion ✓"] {
            assert!(ran.stdout.contains(part), "{ran:?}");
        }
        // A verdict may be missing after so short a time.
        assert!([code, 1].contains(&ran.code), "{ran:?}");
        let report: Value =
            serde_json::from_str(&sandbox.run("--json torture check h.jsonl").stdout).unwrap();
        assert_eq!((&report["interrupted"], &report["complete"]), (&true.into(), &true.into()), "{report:#}");
    }
}

/// Waits until a worker is stopped, and returns all workers.
fn with_a_stopped_one(torture: &Torture) -> Vec<(Pid, char)> {
    let mut workers = Vec::new();
    eventually("a stopped worker", || {
        workers = torture.workers();
        workers.iter().any(|(_, state)| *state == 'T')
    });
    workers
}

#[test]
fn a_second_signal_ends_a_run_at_once() {
    let sandbox = Sandbox::new();
    let torture = Torture::start(&sandbox, "--faults stop --ttl 10s");
    let workers = with_a_stopped_one(&torture);
    kill(torture.pid(), Signal::SIGINT).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    kill(torture.pid(), Signal::SIGINT).unwrap();
    let ran = torture.end();
    assert_eq!((ran.code, ran.stdout.as_str()), (130, ""), "{ran:?}");
    have_ended(&workers);
}

#[test]
fn a_killed_coordinator_leaves_no_worker_not_even_a_stopped_one() {
    let sandbox = Sandbox::new();
    let torture = Torture::start(&sandbox, "--faults stop --ttl 10s");
    let workers = with_a_stopped_one(&torture);
    kill(torture.pid(), Signal::SIGKILL).unwrap();
    torture.end();
    have_ended(&workers);
}

/// Asserts that one of several clients is granted a lock at a time, and that none holds it afterwards.
pub(crate) fn race_is_fair(sandbox: &Sandbox, store: &str) {
    let words = |words: &str| {
        let mut command = sandbox.command(words.split(' '));
        let ran = run(command.env("LEASEHOLD_STORE", store));
        assert_eq!(ran.code, 0, "{ran:?}");
        serde_json::from_str::<Value>(&ran.stdout).unwrap()
    };
    let report = words("--json doctor --race");
    let race = report["checks"].as_array().unwrap().iter().find(|check| check["name"] == "race").unwrap();
    assert_eq!(race["status"], "ok", "{report:#}");
    assert!(race["detail"].as_str().unwrap().starts_with("16 clients, "), "{report:#}");
    let locks = words("--json locks list --prefix leasehold-doctor");
    assert_eq!(locks, json!([]), "a lock is still held");
}

#[test]
fn the_doctor_races_clients_for_a_lock() {
    let sandbox = Sandbox::new();
    race_is_fair(&sandbox, &format!("sqlite:{}", sandbox.path().join("race.db").display()));
    let shown = sandbox.ok("doctor --race");
    assert!(shown.contains("✓ race         16 clients, "), "{shown}");
    assert!(!sandbox.ok("doctor").contains("race"), "without the flag the store is not changed");
}
