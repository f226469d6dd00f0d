//! Adding tasks and working on them, for the tests of this folder.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Bench, Ran, eventually, run};

impl Bench {
    /// Adds a task and gives its id.
    pub(super) fn add(&self, words: &[&str]) -> String {
        let words: Vec<_> = ["tasks", "add"].iter().chain(words).copied().collect();
        let ran = self.run_words(&words);
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.stdout.split_whitespace().next().unwrap().to_owned()
    }

    pub(super) fn task(&self, id: &str) -> Value {
        self.json(&format!("tasks show {id}"))
    }

    /// `tasks work` with these words and a shell script for a command, not started yet.
    pub(super) fn worker(&self, words: &str, script: &str) -> Command {
        let words = ["tasks", "work"].into_iter().chain(words.split_whitespace());
        let mut command = self.command(words.chain(["--", "sh", "-c", script]));
        command.env("BENCH", self.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Works until nothing is left.
    pub(super) fn work(&self, words: &str, script: &str) -> Ran {
        let ran = run(&mut self.worker(&format!("{words} --until-empty"), script));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran
    }

    pub(super) fn start_worker(&self, words: &str, script: &str) -> Working {
        Working(self.worker(words, script).spawn().unwrap())
    }

    /// What a file of this bench contains, once it is there.
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

/// A worker at work. When dropped, it is killed, and its commands with it.
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

/// Whether this process is running, and not just waiting to be buried.
pub(super) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next());
    state.is_some_and(|state| state != "Z" && state != "X")
}
