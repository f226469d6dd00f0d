//! Deadlocks of real processes: `locks deadlocks`, and `--check-deadlock` when a waiter joins.

use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::http::Served;
use super::support::{Sandbox, eventually, run};

/// Runs that each hold a lock and, when they may go on, request the lock of the next one within it.
struct Ring<'a> {
    sandbox: &'a Sandbox,
    configure: &'a dyn Fn(&mut Command),
    runs: Vec<Child>,
}

impl<'a> Ring<'a> {
    fn new(sandbox: &'a Sandbox, configure: &'a dyn Fn(&mut Command)) -> Self {
        Self { sandbox, configure, runs: Vec::new() }
    }

    /// Starts a run that holds `first`, and then takes `second` with these options.
    fn start(&mut self, first: &str, second: &str, options: &str) {
        let script = format!(
            "touch held-{first}; while [ ! -e go-{first} ]; do sleep 0.05; done; \
             exec {} run {second} {options} -- true",
            env!("CARGO_BIN_EXE_leasehold")
        );
        let mut command = self.sandbox.command(["run", first, "--ttl", "20s", "--", "sh", "-c", &script]);
        (self.configure)(&mut command);
        self.runs.push(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        eventually(&format!("{first} is held"), || {
            self.sandbox.path().join(format!("held-{first}")).exists()
        });
    }

    /// Lets the run that holds this lock go on.
    fn release(&self, first: &str) {
        std::fs::write(self.sandbox.path().join(format!("go-{first}")), "").unwrap();
    }

    /// Returns the exit code and the output of a search.
    fn search(&self) -> (i32, Value) {
        let mut command = self.sandbox.command(["--json", "locks", "deadlocks"]);
        (self.configure)(&mut command);
        let ran = run(&mut command);
        let found = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        (ran.code, found)
    }

    fn until_waited(&self, lock: &str) {
        eventually(&format!("{lock} is waited for"), || {
            let mut command = self.sandbox.command(["--json", "locks", "status", lock]);
            (self.configure)(&mut command);
            let status: Value = serde_json::from_str(&run(&mut command).stdout).unwrap();
            status["waiters"].as_array().is_some_and(|waiters| !waiters.is_empty())
        });
    }
}

impl Drop for Ring<'_> {
    fn drop(&mut self) {
        for child in &mut self.runs {
            let _ = kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM);
        }
        for child in &mut self.runs {
            let _ = child.wait();
        }
    }
}

/// Makes deadlocks of two and of three processes, and checks that they are found, and nothing else.
pub(crate) fn deadlocks_are_found(configure: &dyn Fn(&mut Command)) {
    for locks in [&["a", "b"][..], &["c", "d", "e"]] {
        let sandbox = Sandbox::new();
        let mut ring = Ring::new(&sandbox, configure);
        let next = |at: usize| locks[(at + 1) % locks.len()];
        for (at, lock) in locks.iter().enumerate() {
            ring.start(lock, next(at), "--wait 60s");
        }
        assert_eq!(ring.search().0, 0, "each run holds one lock, and none waits");
        for lock in &locks[1..] {
            ring.release(lock);
        }
        for at in 1..locks.len() {
            ring.until_waited(next(at));
        }
        let (code, found) = ring.search();
        assert_eq!((code, &found["deadlocks"]), (0, &serde_json::json!([])), "one run does not wait");
        assert_eq!(found["examined"], locks.len() - 1);
        ring.release(locks[0]);
        ring.until_waited(next(0));
        let (code, found) = ring.search();
        assert_eq!(code, 80, "{found:#}");
        let deadlocks = found["deadlocks"].as_array().unwrap();
        assert_eq!(deadlocks.len(), 1, "{found:#}");
        assert_eq!(deadlocks[0]["locks"], serde_json::json!(locks), "{found:#}");
        assert_eq!(deadlocks[0]["waits"].as_array().unwrap().len(), locks.len(), "{found:#}");
        let command = deadlocks[0]["commands"][0]["command"].as_str().unwrap();
        let with = locks.join(" --with ");
        assert!(command.ends_with(&format!(" run {with} -- COMMAND")), "{command}");
    }
}

#[test]
fn deadlocks_of_two_and_three_processes_are_found() {
    deadlocks_are_found(&|_| {});
}

#[test]
fn deadlocks_are_found_through_a_server() {
    let sandbox = Sandbox::new();
    let served = Served::over(&sandbox.path().join("served.db"));
    let file = sandbox.path().join("token");
    std::fs::write(&file, format!("{}\n", served.token())).unwrap();
    deadlocks_are_found(&|command| {
        command.env("LEASEHOLD_STORE", format!("http://{}", served.address()));
        command.env("LEASEHOLD_TOKEN_FILE", &file);
    });
}

#[test]
fn a_request_that_closes_a_ring_fails_at_once() {
    let sandbox = Sandbox::new();
    let mut ring = Ring::new(&sandbox, &|_| {});
    ring.start("a", "b", "--wait 60s");
    ring.start("b", "a", "--wait 60s --check-deadlock");
    ring.release("a");
    ring.until_waited("b");
    ring.release("b");
    // The second run fails and releases b, so that the first one gets it and succeeds.
    let second = ring.runs.pop().unwrap().wait_with_output().unwrap();
    let said = sandbox.tidy(&String::from_utf8_lossy(&second.stderr));
    assert_eq!(second.status.code(), Some(80), "{said}");
    assert!(said.contains("waiting for lock 'a' would not end: deadlock of 'a' and 'b': "), "{said}");
    assert!(said.contains("hint: take the locks together: leasehold run a --with b -- COMMAND"), "{said}");
    let first = ring.runs.pop().unwrap().wait_with_output().unwrap();
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
}

#[test]
fn a_page_shows_the_ring() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok("locks deadlocks"), "There is no deadlock; 0 locks with waiters examined.\n");
    let mut ring = Ring::new(&sandbox, &|_| {});
    ring.start("a", "b", "--wait 60s --holder inner-a");
    ring.start("b", "a", "--wait 60s --holder inner-b");
    ring.release("a");
    ring.release("b");
    ring.until_waited("a");
    ring.until_waited("b");
    let shown = sandbox.run("locks deadlocks");
    assert_eq!(shown.code, 80, "{shown:?}");
    assert!(shown.stdout.starts_with("Deadlock of 'a' and 'b':\n"), "{}", shown.stdout);
    assert!(
        shown.stdout.contains(" holds 'b', and inner-b within it waits for 'a', for "),
        "{}",
        shown.stdout
    );
    assert!(shown.stdout.contains(" locks release a --force --token "), "{}", shown.stdout);
}
