//! A place for one test: its own folder, its own store, and everything it starts ends with it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold::model::{Holder, LockName, Reason};
use leasehold::{Leasehold, LockStatus};

use crate::support::with_usual_signals;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Nothing that a test waits for takes longer, unless it is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    pub(super) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn store(&self) -> String {
        format!("sqlite:{}", self.path("store.db").display())
    }

    /// `leasehold run` with these words, which are separated by blanks, and then this command.
    pub(super) fn command(&self, words: &str, command: &[&str]) -> Command {
        let mut run = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        run.arg("run").args(words.split_whitespace()).arg("--").args(command);
        self.settle(&mut run);
        run
    }

    /// Gives a command the surroundings of this test.
    pub(super) fn settle(&self, command: &mut Command) {
        with_usual_signals();
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        command.env("LEASEHOLD_STORE", self.store()).env("LAB", self.folder.path()).stdin(Stdio::null());
    }

    pub(super) fn output(&self, words: &str, command: &[&str]) -> Output {
        let mut run = self.command(words, command);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&mut run).output()
    }

    /// Starts it and leaves it running, with a shell script for a command.
    pub(super) fn start(&self, words: &str, script: &str) -> Running {
        let mut run = self.command(words, &["sh", "-c", script]);
        run.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::start(&mut run)
    }

    pub(super) fn wait_for_file(&self, name: &str) -> String {
        let path = self.path(name);
        wait_until(name, || std::fs::read_to_string(&path).ok().filter(|text| !text.is_empty()))
    }

    /// What the store says about a lock, now.
    pub(super) fn status(&self, lock: &str) -> LockStatus {
        let lock = LockName::new(lock).unwrap();
        self.ask(async |leasehold| leasehold.status(&lock).await.unwrap())
    }

    /// Takes the lock away from whoever has it.
    pub(super) fn force(&self, lock: &str) {
        let token = self.status(lock).holders[0].token;
        let lock = LockName::new(lock).unwrap();
        let (by, why) = (Holder::new("somebody").unwrap(), Reason::new("a test").unwrap());
        self.ask(async |leasehold| leasehold.force_release(&lock, token, by, why).await.unwrap());
    }

    /// Keeps everybody else from writing to the store.
    pub(super) fn block(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.path("store.db")).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        connection
    }

    /// When the lease ends by the store's clock, as a reading of the boot clock in seconds.
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

    /// Whether somebody else gets the lock now.
    pub(super) fn is_free(&self, lock: &str) -> bool {
        self.output(lock, &["true"]).status.success()
    }

    /// The last sign of life in `beats` came before that moment.
    pub(super) fn assert_silent_before(&self, ends: f64) {
        let beats = std::fs::read_to_string(self.path("beats")).unwrap();
        let last: f64 = beats.lines().rev().find_map(|line| line.parse().ok()).unwrap();
        assert!(last < ends, "it lived for {} s too long", last - ends);
    }
}

/// A shell script for a process that is hard to kill: orphaned, in a session of its own, deaf to all polite signals.
/// It writes its number to `ghost` and the time to `beats`, again and again.
pub(super) const GHOST: &str = r#"
    setsid sh -c '
        trap "" TERM INT HUP QUIT
        (
            sh -c "echo \$PPID" > "$LAB/ghost.new"; mv "$LAB/ghost.new" "$LAB/ghost"
            while :; do read up rest < /proc/uptime; echo $up >> "$LAB/beats"; sleep 0.02; done
        ) & ' &
    while ! [ -s "$LAB/beats" ]; do sleep 0.01; done
"#;

/// The same clock that the ghost reads.
pub(super) fn uptime() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// A `leasehold run` under way. When dropped, nothing of it is left.
pub(super) struct Running {
    child: Child,
    pub(super) front: Pid,
}

impl Running {
    pub(super) fn start(command: &mut Command) -> Self {
        let child = command.spawn().unwrap();
        let front = Pid::from_raw(child.id().try_into().unwrap());
        Self { child, front }
    }

    /// The parent of the command.
    pub(super) fn keeper(&self) -> Pid {
        let named = |parent, name: &str| {
            wait_until(name, || {
                children(parent).into_iter().find(|child| name_of(*child).as_deref() == Some(name))
            })
        };
        named(named(self.front, "lease-watchdog"), "lease-keeper")
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill(self.front, signal).unwrap();
    }

    pub(super) fn stdin(&mut self) -> &mut Option<std::process::ChildStdin> {
        &mut self.child.stdin
    }

    pub(super) fn wait(&mut self) -> ExitStatus {
        wait_until("the end of leasehold run", || self.child.try_wait().unwrap())
    }

    /// How it ended and what it wrote. The pipes are read to their end, so this also waits for everybody who has them.
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
        // Killing FRONT ends the rest: that is what the tests are about. A failed test may have stopped the others.
        for child in children(self.front) {
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
    wait_within(PATIENCE, what, condition)
}

pub(super) fn wait_within<T>(patience: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn wait_until_dead(pid: Pid) {
    wait_until(&format!("the death of {pid}"), || (!is_alive(pid)).then_some(()));
}

/// Running, not just waiting to be buried.
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
    read_pid_within(PATIENCE, path)
}

pub(super) fn read_pid_within(patience: Duration, path: &Path) -> Pid {
    wait_within(patience, &path.display().to_string(), || {
        std::fs::read_to_string(path).ok()?.trim().parse().ok().map(Pid::from_raw)
    })
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
