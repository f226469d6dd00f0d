//! Other processes of a test: the program `tests/helper/process.rs`, whose messages are lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// Process that is killed at the end of its test.
pub(super) struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// Returns the program with these arguments, not started yet.
pub(super) fn program(args: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_leasehold-test-process"));
    program.args(args);
    program
}

impl Process {
    pub(super) fn start(args: &[&str]) -> Self {
        let mut child = program(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Starts a worker on the queue `q`; `hold_in` is the round in which it stops to settle its leases.
    pub(super) fn worker(url: &str, batch: u32, ttl_millis: u64, hold_in: Option<usize>) -> Self {
        let hold_in = hold_in.map_or("never".to_owned(), |round| round.to_string());
        Self::start(&["work", url, &batch.to_string(), &ttl_millis.to_string(), &hold_in])
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn send(&mut self, command: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{command}").unwrap();
    }

    /// Returns the next message; `None` when the process has ended.
    pub(super) fn receive(&mut self) -> Option<String> {
        let mut line = String::new();
        (self.output.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }

    /// Returns the messages up to the first that the condition accepts, or all until the process ends.
    pub(super) fn receive_until(&mut self, is_last: impl Fn(&str) -> bool) -> Vec<String> {
        let mut messages = Vec::new();
        while let Some(message) = self.receive() {
            let ends = is_last(&message);
            messages.push(message);
            if ends {
                break;
            }
        }
        messages
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
