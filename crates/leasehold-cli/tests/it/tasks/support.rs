//! Helpers for the tests of this folder: adding tasks and running workers.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Ran, Sandbox, eventually, run};

impl Sandbox {
    /// Adds a task and returns its id.
    pub(super) fn add(&self, words: &[&str]) -> String {
        let words: Vec<_> = ["tasks", "add"].iter().chain(words).copied().collect();
        let ran = self.run_words(&words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.stdout.split_whitespace().next().unwrap().to_owned()
    }

    pub(super) fn task(&self, id: &str) -> Value {
        self.json(&format!("tasks show {id}"))
    }

    /// Returns `tasks work` with these arguments and a shell script as its command, not started yet.
    pub(super) fn worker(&self, words: &str, script: &str) -> Command {
        let words = ["tasks", "work"].into_iter().chain(words.split_whitespace());
        let mut command = self.command(words.chain(["--", "sh", "-c", script]));
        command.env("SANDBOX", self.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a worker until no task is left.
    pub(super) fn work(&self, words: &str, script: &str) -> Ran {
        let ran = run(&mut self.worker(&format!("{words} --until-empty"), script));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    pub(super) fn start_worker(&self, words: &str, script: &str) -> Working {
        Working(self.worker(words, script).spawn().unwrap())
    }

    /// Waits for a file of this sandbox and returns its contents.
    pub(super) fn written(&self, name: &str) -> String {
        let path = self.path().join(name);
        let mut text = String::new();
        eventually(name, || {
            text = std::fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text
    }

    pub(super) fn until_task(&self, id: &str, state: &str) -> Value {
        let mut task = Value::Null;
        eventually(&format!("task {id} {state}"), || {
            task = self.task(id);
            task["state"] == state
        });
        task
    }
}

/// Running worker; killed on drop, together with its commands.
pub(super) struct Working(pub(super) Child);

impl Working {
    pub(super) fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0.id().try_into().unwrap()), signal).unwrap();
    }

    pub(super) fn wait(&mut self) -> i32 {
        let mut code = None;
        eventually("the end of the worker", || {
            code = self.0.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this process is running and not a zombie.
pub(super) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}
