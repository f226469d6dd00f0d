//! Sandbox for one test: its own folder and store; everything that it starts ends with it.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold::model::{Holder, LockName, Reason};
use leasehold::{Leasehold, LockStatus};

use crate::support::with_usual_signals;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, write};

/// Maximum time of every wait in a test.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct RunSandbox {
    folder: tempfile::TempDir,
}

impl RunSandbox {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn store(&self) -> String {
        format!("sqlite:{}", self.path("store.db").display())
    }

    /// Returns `leasehold run` with these arguments, separated by blanks, and this command.
    pub(super) fn command(&self, words: &str, command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        run.arg("run").args(words.split_whitespace()).arg("--").args(command);
        self.configure(&mut run);
        run
    }

    /// Sets the environment of this test for a command.
    pub(super) fn configure(&self, command: &mut Command) {
        with_usual_signals();
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        command.env("LEASEHOLD_STORE", self.store()).env("SANDBOX", self.folder.path()).stdin(Stdio::null());
    }

    pub(super) fn output(&self, words: &str, command: &[&str]) -> Output {
        let mut run = self.command(words, command);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&mut run).output()
    }

    /// Starts a run with a shell script as its command, and leaves it running.
    pub(super) fn start(&self, words: &str, script: &str) -> Running {
        let mut run = self.command(words, &["sh", "-c", script]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&mut run)
    }

    pub(super) fn wait_for_file(&self, name: &str) -> String {
        let path = self.path(name);
        wait_until(name, || std::fs::read_to_string(&path).ok().filter(|text| !text.is_empty()))
    }

    /// Returns the status of a lock.
    pub(super) fn status(&self, lock: &str) -> LockStatus {
        let lock = LockName::new(lock).unwrap();
        self.ask(async |leasehold| leasehold.locks().status(&lock).await.unwrap())
    }

    /// Takes the lock from its holder by force.
    pub(super) fn force(&self, lock: &str) {
        let token = self.status(lock).holders[0].token;
        let lock = LockName::new(lock).unwrap();
        let (by, reason) = (Holder::new("operator").unwrap(), Reason::new("a test").unwrap());
        self.ask(async |leasehold| leasehold.locks().force_release(&lock, token, by, reason).await.unwrap());
    }

    /// Blocks all other writers of the store.
    pub(super) fn block(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.path("store.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        connection
    }

    /// Returns when the lease ends by the store's clock, as a reading of the boot clock in seconds.
    pub(super) fn lease_ends(&self, lock: &str) -> f64 {
        let status = self.status(lock);
        let now = self.ask(async |leasehold| leasehold.now().await.unwrap());
        let left = status.holders[0].expires_at.since(now);
        assert!(left > Duration::ZERO, "the lease has ended already");
        uptime() + left.as_secs_f64()
    }

    pub(super) fn ask<T>(&self, ask: impl AsyncFnOnce(&Leasehold) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let leasehold = Leasehold::connect(&self.store()).await.unwrap();
            ask(&leasehold).await
        })
    }

    /// Whether another caller gets the lock now.
    pub(super) fn is_free(&self, lock: &str) -> bool {
        self.output(lock, &["true"]).status.success()
    }

    /// Asserts that the last heartbeat in `heartbeats` was written before that moment.
    pub(super) fn assert_silent_before(&self, ends: f64) {
        let heartbeats = std::fs::read_to_string(self.path("heartbeats")).unwrap();
        let last: f64 = heartbeats.lines().rev().find_map(|line| line.parse().ok()).unwrap();
        assert!(last < ends, "it lived for {} s too long", last - ends);
    }
}

/// Shell script for a process that is hard to kill: orphaned, in its own session, ignoring SIGTERM,
/// SIGINT, SIGHUP and SIGQUIT. It writes its pid to `orphan` and repeatedly the time to
/// `heartbeats`.
pub(super) const ORPHAN: &str = r#"
    setsid sh -c '
        trap "" TERM INT HUP QUIT
        (
            sh -c "echo \$PPID" > "$SANDBOX/orphan.new"; mv "$SANDBOX/orphan.new" "$SANDBOX/orphan"
            while :; do read up rest < /proc/uptime; echo $up >> "$SANDBOX/heartbeats"; sleep 0.02; done
        ) & ' &
    while ! [ -s "$SANDBOX/heartbeats" ]; do sleep 0.01; done
"#;

/// Returns the clock that the orphan reads.
pub(super) fn uptime() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Running `leasehold run`; ended on drop with all its processes.
pub(super) struct Running {
    child: Child,
    pub(super) supervisor: Pid,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let supervisor = Pid::from_raw(child.id().try_into().unwrap());
        Self { child, supervisor }
    }

    /// Returns the parent of the command.
    pub(super) fn monitor(&self) -> Pid {
        let named = |parent, name: &str| {
            wait_until(name, || {
                children(parent).into_iter().find(|child| name_of(*child).as_deref() == Some(name))
            })
        };
        named(named(self.supervisor, "lease-watchdog"), "lease-monitor")
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(self.supervisor, signal).unwrap();
    }

    pub(super) fn stdin(&mut self) -> &mut Option<std::process::ChildStdin> {
        &mut self.child.stdin
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        wait_until("the end of leasehold run", || self.child.try_wait().unwrap())
    }

    /// Returns its exit status and output. The pipes are read to their end, so this also waits for
    /// every process that holds them.
    pub(super) fn output(mut self) -> Output {
        let (out, err) = (drain(self.child.stdout.take()), drain(self.child.stderr.take()));
        let status = self.wait();
        Output { status, stdout: out.join().unwrap(), stderr: err.join().unwrap() }
    }
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut all);
        }
        all
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        // Killing SUPERVISOR ends the rest, as the tests verify. A failed test may have left the
        // others stopped.
        for child in children(self.supervisor) {
            let _ = kill(child, Signal::SIGCONT);
            for grandchild in children(child) {
                let _ = kill(grandchild, Signal::SIGCONT);
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn wait_until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    wait_within(TIMEOUT, what, condition)
}

pub(super) fn wait_within<T>(timeout: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "timeout waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn wait_until_dead(pid: Pid) {
    wait_until(&format!("the death of {pid}"), || (!is_alive(pid)).then_some(()));
}

/// Whether the process is running and not a zombie.
pub(super) fn is_alive(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

pub(super) fn children(parent: Pid) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids =
        entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok().map(Pid::from_raw));
    pids.filter(|pid| stat(*pid).is_some_and(|(_, ppid)| ppid == parent)).collect()
}

pub(super) fn name_of(pid: Pid) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned())
}

fn stat(pid: Pid) -> Option<(String, Pid)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), Pid::from_raw(fields.next()?.parse().ok()?)))
}

pub(super) fn read_pid(path: &Path) -> Pid {
    read_pid_within(TIMEOUT, path)
}

pub(super) fn read_pid_within(timeout: Duration, path: &Path) -> Pid {
    wait_within(timeout, &path.display().to_string(), || {
        std::fs::read_to_string(path).ok()?.trim().parse().ok().map(Pid::from_raw)
    })
}

/// Returns a pipe that is full, as long as its first end is neither read nor dropped.
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (from, to) = std::io::pipe().unwrap();
    while poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], PollTimeout::ZERO).unwrap() > 0 {
        write(&to, &[b'.'; 4096]).unwrap();
    }
    (from, to)
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
