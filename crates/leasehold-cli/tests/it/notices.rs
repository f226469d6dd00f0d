//! Changes to a lease or a task notify the holding process at once, long before its next renewal.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::engines::support::engine_at;
use super::support::{Ran, Sandbox, eventually, run};

/// Store shared by several processes.
struct Engine {
    sandbox: Sandbox,
    url: String,
    /// Stopped on drop.
    _server: Option<Server>,
}

struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Engine {
    fn sqlite() -> Self {
        let sandbox = Sandbox::new();
        let url = format!("sqlite:{}", sandbox.path().join("store.db").display());
        Self { sandbox, url, _server: None }
    }

    /// `name` is the parameter that separates the tests on one engine.
    fn of(engine: &str, name: &str) -> Self {
        let url = format!("{}?{name}=notices_{}_{}", engine_at(engine), std::process::id(), number());
        Self { sandbox: Sandbox::new(), url, _server: None }
    }

    fn http() -> Self {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command(["serve", "--listen", "127.0.0.1:0", "--json"]);
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        let url = format!("http://{}", ready["listening"].as_str().unwrap());
        let server = Some(Server(child));
        let engine = Self { sandbox, url, _server: server };
        eventually("the server is ready", || engine.run("locks list").code == 0);
        engine
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.sandbox.command(words);
        command.env("LEASEHOLD_STORE", &self.url);
        command
    }

    fn run(&self, words: &str) -> Ran {
        run(&mut self.command(&words.split_whitespace().collect::<Vec<_>>()))
    }

    fn ok(&self, words: &str) -> serde_json::Value {
        let ran = self.run(&format!("--json {words}"));
        assert_eq!(ran.code, 0, "{words}: {ran:?}");
        serde_json::from_str(&ran.stdout).unwrap_or_default()
    }

    /// Starts a command that holds lock `a` until it is stopped, and gives it time to subscribe.
    fn holder(&self) -> std::process::Child {
        let script = "echo up > up; exec sleep 600";
        let holder = self.command(&["run", "a", "--ttl", "1h", "--", "sh", "-c", script]).spawn().unwrap();
        eventually("it runs", || self.sandbox.path().join("up").exists());
        std::thread::sleep(Duration::from_secs(1));
        holder
    }

    fn a_forced_release_ends_the_command(&self) {
        let mut holder = self.holder();
        self.ok("locks release a --force --reason stuck --yes");
        assert_eq!(ends(&mut holder), 79);
    }

    /// A command may shorten the ttl of its own lease by the ids in its environment. The lease is
    /// then renewed more often.
    fn a_lease_with_a_shorter_ttl_is_kept(&self) {
        self.keeps_a_lease_that_is_shortened_after("1.5");
    }

    /// The command shortens the ttl before the holder has subscribed to notifications.
    fn a_lease_that_is_shortened_at_once_is_kept(&self) {
        self.keeps_a_lease_that_is_shortened_after("0");
    }

    fn keeps_a_lease_that_is_shortened_after(&self, seconds: &str) {
        let renew = "$BIN locks renew a --lease-id $LEASEHOLD_LEASE_ID --token $LEASEHOLD_TOKEN --ttl 3s";
        let script = format!("sleep {seconds}; {renew} && sleep 6");
        let words = ["run", "a", "--ttl", "1h", "--kill-after", "200ms", "--", "sh", "-c", &script];
        let mut command = self.command(&words);
        let status = command.env("BIN", env!("CARGO_BIN_EXE_leasehold")).status().unwrap();
        assert_eq!(status.code(), Some(0));
    }

    fn an_aborted_execution_is_stopped(&self) {
        let words =
            ["workflows", "run", "deploy", "--ttl", "1h", "--", "sh", "-c", "echo up > up; exec sleep 600"];
        let mut runner = self.command(&words).spawn().unwrap();
        eventually("it runs", || self.sandbox.path().join("up").exists());
        let list = self.ok("executions list --state running");
        let list = list.as_array().or_else(|| list["executions"].as_array()).unwrap().clone();
        let id = list[0]["executionId"].as_str().or_else(|| list[0]["id"].as_str()).unwrap().to_owned();
        std::thread::sleep(Duration::from_secs(1));
        self.ok(&format!("executions abort {id}"));
        assert_ne!(ends(&mut runner), 0);
    }

    fn a_cancelled_task_is_stopped(&self) {
        let words = ["tasks", "work", "q", "--ttl", "1h", "--", "sleep", "600"];
        let mut worker = self.command(&words).spawn().unwrap();
        let added = self.ok("tasks add q --payload {}");
        let id = added["id"].as_str().or_else(|| added[0]["id"].as_str()).unwrap().to_owned();
        let state = || self.ok(&format!("tasks show {id}"))["state"].as_str().unwrap().to_owned();
        eventually("it runs", || state() == "running");
        std::thread::sleep(Duration::from_secs(1));
        self.ok(&format!("tasks cancel {id}"));
        eventually("it is aborted", || state() == "aborted");
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
}

/// Returns another number with each call.
fn number() -> u32 {
    static NUMBERS: AtomicU32 = AtomicU32::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Returns the exit code of a command that ends within seconds.
fn ends(child: &mut std::process::Child) -> i32 {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            println!("it ended after {:?}", started.elapsed());
            return status.code().unwrap();
        }
        if started.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

macro_rules! on_every_engine {
    ($($case:ident)+) => {
        $(mod $case {
            use super::Engine;

            #[test]
            fn on_sqlite() {
                Engine::sqlite().$case();
            }

            #[test]
            fn on_postgres() {
                Engine::of("postgres", "schema").$case();
            }

            #[test]
            fn on_redis() {
                Engine::of("redis", "prefix").$case();
            }

            #[test]
            fn on_http() {
                Engine::http().$case();
            }
        })+
    };
}

on_every_engine! {
    a_forced_release_ends_the_command
    a_lease_with_a_shorter_ttl_is_kept
    a_lease_that_is_shortened_at_once_is_kept
    a_cancelled_task_is_stopped
    an_aborted_execution_is_stopped
}
