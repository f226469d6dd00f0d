//! `workflows` and `executions`: one run per event, under the workflow's lock.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::run::full_pipe;
use crate::support::{Ran, Sandbox, catches_sigterm, eventually, run};

impl Sandbox {
    /// Returns `workflows run deploy` with these arguments and a shell script as its command, not
    /// started yet.
    fn runner(&self, words: &str, script: &str) -> Command {
        let words = ["workflows", "run", "deploy"].into_iter().chain(words.split_whitespace());
        let mut command = self.command(words.chain(["--", "sh", "-c", script]));
        command.env("SANDBOX", self.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn execute(&self, words: &str, script: &str) -> Ran {
        run(&mut self.runner(words, script))
    }

    /// Returns all executions, newest first.
    fn executions(&self) -> Vec<Value> {
        let Value::Array(all) = self.json("executions list") else { panic!("no array") };
        all
    }

    /// Starts an execution that runs until it is stopped, and waits until it runs.
    fn endless(&self, words: &str) -> Endless {
        let child = self.runner(words, "echo $$ > $SANDBOX/pid; exec sleep 1000").spawn().unwrap();
        eventually("it runs", || self.executions().iter().any(|execution| execution["state"] == "running"));
        eventually("its command runs", || self.path().join("pid").exists());
        Endless(child)
    }
}

struct Endless(Child);

impl Endless {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    /// Waits until the runner has reported the start of its execution, with `--json`.
    fn reported(&mut self) {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("\"event\":\"start\""), "{line}");
    }

    /// Sends SIGTERM until the runner exits, and returns its exit code.
    fn terminated(&mut self) -> i32 {
        // Two signals of a kind that are pending at the same time count as one.
        eventually("the end of the runner", || {
            self.signal(Signal::SIGTERM);
            std::thread::sleep(Duration::from_millis(300));
            self.0.try_wait().unwrap().is_some()
        });
        self.code()
    }

    fn code(&mut self) -> i32 {
        let mut code = None;
        eventually("its end", || {
            code = self.0.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn input_and_environment_arrive_and_the_output_is_the_result() {
    let sandbox = Sandbox::new();
    let ran = sandbox.execute(
        r#"--key k --input {"commit":"4f2a"}"#,
        "cat > $SANDBOX/input; env | grep ^LEASEHOLD_ | grep -v 'PROGRESS\\|STORE\\|TOKEN' | sort > $SANDBOX/env; echo '{\"hosts\": 3}'",
    );
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"hosts\": 3}\n"), "{ran:?}");
    let execution = sandbox.executions().remove(0);
    let id = execution["id"].as_str().unwrap();
    assert_eq!((&execution["state"], &execution["result"]), (&"succeeded".into(), &json!({"hosts": 3})));
    assert_eq!(std::fs::read_to_string(sandbox.path().join("input")).unwrap(), r#"{"commit":"4f2a"}"#);
    let env = std::fs::read_to_string(sandbox.path().join("env")).unwrap();
    let expected = format!(
        "LEASEHOLD_ATTEMPT=1\nLEASEHOLD_EXECUTION_ID={id}\nLEASEHOLD_HOLDER={id}\nLEASEHOLD_KEY=k\n\
         LEASEHOLD_LOCK=workflow/deploy\nLEASEHOLD_LOCKS=workflow/deploy\nLEASEHOLD_QUEUE=workflow/deploy\n\
         LEASEHOLD_TASK={}\nLEASEHOLD_WORKFLOW=deploy\n",
        id.strip_prefix("exec_").unwrap()
    );
    let (within, env): (Vec<&str>, Vec<&str>) =
        env.lines().partition(|line| line.starts_with("LEASEHOLD_WITHIN="));
    assert_eq!(env.join("\n") + "\n", expected);
    let lease = within.first().and_then(|line| line.strip_prefix("LEASEHOLD_WITHIN=")).unwrap();
    assert_eq!(lease.len(), 16, "the public name of the lease on its lock: {lease}");
}

#[test]
fn an_event_runs_once_and_again_only_after_a_failure() {
    let sandbox = Sandbox::new();
    let count = "echo x >> $SANDBOX/runs; exit $(cat $SANDBOX/code)";
    let go = |code: &str, words: &str| {
        std::fs::write(sandbox.path().join("code"), code).unwrap();
        sandbox.execute(words, count)
    };
    let failed = go("7", "--key k");
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.stderr.contains("exit code 7"), "{}", failed.stderr);
    assert_eq!(go("0", "--key k").code, 0);
    let again = go("0", "--key k");
    assert_eq!((again.code, again.stdout.as_str()), (0, ""));
    assert!(again.stderr.contains("nothing to do: exec_"), "{}", again.stderr);
    assert_eq!(go("0", "--key k --input 1").code, 1, "another input");
    let runs = std::fs::read_to_string(sandbox.path().join("runs")).unwrap();
    assert_eq!(runs.lines().count(), 2);
    let [second, first] = &sandbox.executions()[..] else { panic!("two executions") };
    assert_eq!((&second["attempt"], &second["retryOf"]), (&2.into(), &first["id"]));
    assert_eq!((&first["key"], &second["key"]), (&"k".into(), &"k".into()), "the failed one keeps its key");
    for words in ["--key k", "--key k --workflow deploy"] {
        let found = sandbox.json(&format!("executions list {words}"));
        assert_eq!((&found[0]["id"], &found[1]["id"]), (&second["id"], &first["id"]), "{words}");
    }
    let one = sandbox.json("executions list --key k --state failed");
    assert_eq!(one.as_array().map(Vec::len), Some(1), "{one}");
    for words in ["--key other", "--key k --workflow other", "--key k --state queued"] {
        assert_eq!(sandbox.json(&format!("executions list {words}")), json!([]), "{words}");
    }
}

/// The stderr of a failing command is printed once, and one line reports how it ended.
#[test]
fn a_failure_is_printed_once() {
    let sandbox = Sandbox::new();
    let failed = sandbox.execute("", "echo no such host >&2; exit 7");
    assert_eq!(failed.code, 1);
    let id = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    let expected = format!("no such host\nleasehold: {id} failed: the command failed with exit code 7\n");
    assert_eq!(failed.stderr, expected);
}

#[test]
fn the_start_of_an_execution_is_when_it_ran_not_when_it_was_added() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.endless("");
    let id = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    let waits = sandbox.runner("--on-locked queue", "true").spawn().unwrap();
    eventually("it waits", || sandbox.executions()[0]["state"] == "blocked");
    let table = sandbox.tidy(&sandbox.ok("executions list --state blocked"));
    let row = table.lines().nth(1).unwrap();
    assert_eq!(row, "exec_[ID]  deploy  blocked  1  [AGE] ago  -  -", "it has not started");
    sandbox.ok(&format!("executions abort {id}"));
    first.code();
    assert_eq!(Ran::from(waits.wait_with_output().unwrap()).code, 0);
}

#[test]
fn one_runs_at_a_time_and_others_are_refused_skipped_or_wait() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.endless("--key first");
    let id = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    let status = sandbox.json("workflows status deploy");
    assert_eq!((&status["isLocked"], &status["executionId"]), (&true.into(), &id.as_str().into()));
    assert_eq!(sandbox.json("locks status workflow/deploy")["holder"], id.as_str());
    let refused = sandbox.execute("--key k", "true");
    assert_eq!(refused.code, 75, "{refused:?}");
    assert!(refused.stderr.contains(&format!("Currently executing: {id}")), "{}", refused.stderr);
    let skipped = sandbox.execute("--on-locked skip", "echo no");
    assert_eq!((skipped.code, skipped.stdout.as_str()), (0, ""), "{skipped:?}");
    let waits = sandbox.runner("--key k --on-locked queue=1", "echo done").spawn().unwrap();
    eventually("it waits", || sandbox.executions().iter().any(|execution| execution["state"] == "blocked"));
    assert_eq!(sandbox.execute("--on-locked queue=1", "true").code, 75, "the line is full");
    let same = sandbox.execute("--key first", "true");
    assert_eq!(same.code, 75, "how it ends is not known: {same:?}");
    assert!(same.stderr.contains(&format!("{id} is running for this key")), "{}", same.stderr);
    let aborted = sandbox.ok(&format!("executions abort {id} --reason enough"));
    assert_eq!(aborted, format!("{id}  stopping\n"));
    assert_eq!(first.code(), 1);
    let same = sandbox.execute("--key first", "true");
    assert_eq!(same.code, 1, "it was aborted: {same:?}");
    assert!(same.stderr.contains(&format!("nothing was run: {id} was aborted earlier")), "{}", same.stderr);
    let waited = Ran::from(waits.wait_with_output().unwrap());
    assert_eq!((waited.code, waited.stdout.as_str()), (0, "done\n"), "{waited:?}");
    let shown = sandbox.json(&format!("executions show {id}"));
    assert_eq!(shown["state"], "aborted");
    assert!(shown["reason"].as_str().unwrap().starts_with("enough (by "), "{shown}");
    assert_eq!(sandbox.run(&format!("executions abort {id}")).code, 1, "it is over");
}

#[test]
fn an_execution_over_its_max_runtime_is_aborted() {
    let sandbox = Sandbox::new();
    let ran = sandbox.execute("--max-runtime 200ms", "sleep 1000");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("timeout"), "{}", ran.stderr);
    assert_eq!(sandbox.executions()[0]["state"], "aborted");
}

#[test]
fn a_signal_aborts_the_running_and_removes_the_waiting_execution() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.endless("--grace 0s");
    let waits = sandbox.runner("--on-locked queue", "true").spawn().unwrap();
    eventually("it waits", || sandbox.executions().iter().any(|execution| execution["state"] == "blocked"));
    let signal =
        |child: &Child| kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    signal(&waits);
    assert_eq!(Ran::from(waits.wait_with_output().unwrap()).code, 128 + 15);
    assert_eq!(
        sandbox.executions()[0]["reason"].as_str().unwrap().split(" (by").next(),
        Some("the runner exited before the execution started")
    );
    signal(&first.0);
    assert_ne!(first.code(), 0);
    let aborted = sandbox.executions().remove(1);
    assert_eq!(aborted["state"], "aborted");
    assert!(aborted["reason"].as_str().unwrap().starts_with("shutdown"), "{aborted}");
    assert_eq!(sandbox.execute("", "true").code, 0, "the workflow is free");
}

/// Another worker runs the execution of the first runner, whose worker waits for the next one.
#[test]
fn a_runner_returns_the_executions_of_others() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.endless("");
    let id = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    let start = |input: &str, script: &str| {
        let words = format!("--json --on-locked queue --input {input}");
        let mut runner = Endless(sandbox.runner(&words, script).spawn().unwrap());
        runner.reported();
        runner
    };
    let mut first = start("1", "touch $SANDBOX/first");
    first.signal(Signal::SIGSTOP);
    let script = "cat > $SANDBOX/other; until test -e $SANDBOX/go; do sleep 0.01; done";
    let words = ["tasks", "work", "workflow/deploy", "--once", "--", "sh", "-c", script];
    let mut other = sandbox.command(words);
    other.env("SANDBOX", sandbox.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut other = Endless(other.spawn().unwrap());
    sandbox.ok(&format!("executions abort {id}"));
    running.code();
    let read = |name: &str| std::fs::read_to_string(sandbox.path().join(name)).unwrap_or_default();
    eventually("another worker runs it", || read("other") == "1");
    first.signal(Signal::SIGCONT);
    let mut second = start("2", "cat > $SANDBOX/second");
    second.signal(Signal::SIGSTOP);
    eventually("both work", || sandbox.json("workers").as_array().unwrap().len() == 2);
    std::fs::write(sandbox.path().join("go"), "").unwrap();
    assert_eq!((other.code(), first.code()), (0, 0), "the first execution has succeeded");
    second.signal(Signal::SIGCONT);
    assert_eq!(second.code(), 0);
    assert_eq!(read("second"), "2");
    assert!(!sandbox.path().join("first").exists(), "its execution was run by the other worker");
    let states: Vec<_> = sandbox.executions().iter().map(|execution| execution["state"].clone()).collect();
    assert_eq!(states, ["succeeded", "succeeded", "aborted"]);
}

#[test]
fn a_runner_whose_queued_execution_is_aborted_runs_nothing() {
    let sandbox = Sandbox::new();
    let _running = sandbox.endless("");
    let waits = sandbox.runner("--on-locked queue", "touch $SANDBOX/ran").spawn().unwrap();
    eventually("it waits", || sandbox.executions()[0]["state"] == "blocked");
    let id = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    sandbox.ok(&format!("executions abort {id} --reason enough"));
    let ran = Ran::from(waits.wait_with_output().unwrap());
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains(&format!("{id} was aborted: enough")), "{ran:?}");
    assert!(!ran.stderr.contains("the turn"), "{ran:?}");
    assert!(!sandbox.path().join("ran").exists());
}

#[test]
fn signals_end_a_runner_whose_output_is_not_read() {
    let sandbox = Sandbox::new();
    // Long lines: each line is an event of its own, and a full pipe of short ones takes seconds of processor time.
    let script = "echo 1 > $SANDBOX/began; exec yes $(printf %01000d 1)";
    let mut runner = Endless(sandbox.runner("--json", script).spawn().unwrap());
    eventually("it runs", || sandbox.path().join("began").exists());
    // By then the pipe and the queue of the writer are full.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(runner.terminated(), 128 + 15);
    assert_ne!(sandbox.executions()[0]["state"], "succeeded");
}

/// The output of the command fills the pipe, so that the failure cannot be written.
#[test]
fn a_signal_ends_a_runner_whose_failure_is_not_read() {
    let sandbox = Sandbox::new();
    let script = "head -c 65536 /dev/zero >&2; exit 7";
    let mut runner = Endless(sandbox.runner("--grace 0s", script).spawn().unwrap());
    eventually("the command has failed", || {
        sandbox.executions().first().is_some_and(|execution| execution["state"] == "failed")
    });
    eventually("its worker has ended", || sandbox.json("workers") == json!([]));
    // Two signals may arrive before all output has been written.
    let code = runner.terminated();
    assert!([1, 128 + 15].contains(&code), "{code}");
}

/// The runner reports that it waits although its first event is not read, and withdraws its execution at a signal.
#[test]
fn a_waiting_runner_whose_output_is_not_read_keeps_its_place_until_a_signal() {
    let sandbox = Sandbox::new();
    let _running = sandbox.endless("");
    let (_unread, full) = full_pipe();
    let mut runner = sandbox.runner("--json --ttl 2s --on-locked queue", "true");
    let mut waits = Endless(runner.stdout(full).spawn().unwrap());
    eventually("it waits", || sandbox.executions()[0]["state"] == "blocked");
    // Longer than its deadline: while the runner is alive, its execution stays in the queue.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(sandbox.executions()[0]["state"], "blocked");
    waits.signal(Signal::SIGTERM);
    assert_eq!(waits.code(), 128 + 15);
    assert_eq!(sandbox.executions()[0]["state"], "aborted");
}

#[test]
fn a_signal_ends_a_runner_whose_message_is_not_read() {
    let sandbox = Sandbox::new();
    let _running = sandbox.endless("");
    let (_unread, full) = full_pipe();
    let mut runner = sandbox.runner("--on-locked skip", "true");
    let mut skips = Endless(runner.stderr(full).spawn().unwrap());
    eventually("it catches signals", || catches_sigterm(skips.0.id()));
    assert_eq!(skips.terminated(), 128 + 15);
}

#[test]
fn a_runner_that_is_killed_leaves_a_failed_execution_and_no_process() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.endless("--key k --ttl 2s");
    let pid = std::fs::read_to_string(sandbox.path().join("pid")).unwrap();
    // State and start of the process: its id may be used again.
    let process = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).ok()?;
        let fields: Vec<_> = stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect();
        (fields[0] != "Z").then(|| fields[19].clone())
    };
    let started = process();
    assert!(started.is_some());
    first.0.kill().unwrap();
    first.code();
    eventually("nothing of it is alive", || process() != started);
    eventually("the event may come again", || {
        sandbox.execute("--key k", "true");
        sandbox.executions().len() == 2
    });
    let [second, first] = &sandbox.executions()[..] else { panic!("two executions") };
    assert_eq!((&first["state"], &first["reason"]), (&"failed".into(), &"lease expired".into()));
    assert_eq!(second["retryOf"], first["id"]);
}

#[test]
fn a_runner_killed_while_waiting_does_not_block_others() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.endless("");
    let running = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    let mut waits = sandbox.runner("--key k --ttl 1s --on-locked queue", "echo never").spawn().unwrap();
    eventually("it waits", || sandbox.executions().iter().any(|execution| execution["state"] == "blocked"));
    // Longer than its deadline: while the runner is alive, its execution stays in the queue.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(sandbox.executions()[0]["state"], "blocked");
    waits.kill().unwrap();
    waits.wait().unwrap();
    sandbox.ok(&format!("executions abort {running}"));
    first.code();
    eventually("the next one runs", || sandbox.execute("", "true").code == 0);
    let gone = sandbox.executions().into_iter().find(|execution| execution["key"] == "k").unwrap();
    assert_eq!(gone["state"], "failed", "{gone}");
    assert!(gone["reason"].as_str().unwrap().contains("runner is dead"), "{gone}");
    let again = sandbox.execute("--key k", "echo done");
    assert_eq!((again.code, again.stdout.as_str()), (0, "done\n"), "its event can come again: {again:?}");
}

#[test]
fn workflows_and_executions_are_listed_for_people() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok("workflows list"), "");
    assert_eq!(sandbox.ok("executions list"), "");
    sandbox.execute("--key k --input [1]", "echo 5");
    let table = sandbox.tidy(&sandbox.ok("executions list"));
    assert_eq!(
        table,
        "ID  WORKFLOW  STATE  ATTEMPT  ADDED  STARTED  ENDED  NOTE\n\
         exec_[ID]  deploy  succeeded  1  [AGE] ago  [AGE] ago  [AGE] ago\n"
    );
    assert!(sandbox.ok("workflows list").starts_with("WORKFLOW  SCHEDULED"));
    assert!(sandbox.ok("workflows status deploy").starts_with("deploy  free"));
    let id = sandbox.executions()[0]["id"].as_str().unwrap().to_owned();
    let page = sandbox.ok(&format!("executions show {id}"));
    for part in ["succeeded", "input", "[1]", "key", "result"] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert_eq!(sandbox.run("executions show exec_1").code, 64);
    let unknown = sandbox.run("executions show exec_00000000-0000-0000-0000-000000000001");
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("there is no execution"), "{}", unknown.stderr);
}
