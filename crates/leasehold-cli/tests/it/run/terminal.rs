//! On a terminal: the command can read from it, Ctrl-C and Ctrl-Z reach it, and the shell keeps
//! control.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};

use super::support::{RunSandbox, TIMEOUT, read_pid, wait_until, wait_until_dead};

/// Program on its own terminal, with simulated key presses.
pub(crate) struct Screen {
    keyboard: File,
    shown: String,
    /// Bytes of a character that is not complete yet.
    unread: Vec<u8>,
    child: Child,
}

impl Screen {
    /// Runs the command as the leader of a session that has a new terminal.
    pub(super) fn start(sandbox: &RunSandbox, command: &Command) -> Self {
        let (keyboard, terminal) = new_terminal();
        // `setsid --ctty` makes its stdin the controlling terminal of the new session.
        let mut on_terminal = Command::new("setsid");
        on_terminal.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        sandbox.configure(&mut on_terminal);
        on_terminal.env("PS1", "prompt> ").env_remove("ENV");
        Self::spawn(on_terminal, keyboard, terminal)
    }

    /// Runs the command, with the variables that were set for it, as the leader of a session that has a new
    /// terminal.
    pub(crate) fn of(command: &Command) -> Self {
        let (keyboard, terminal) = new_terminal();
        let mut on_terminal = Command::new("setsid");
        on_terminal.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_terminal.env(name, value),
                None => on_terminal.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            on_terminal.current_dir(folder);
        }
        Self::spawn(on_terminal, keyboard, terminal)
    }

    fn spawn(mut on_terminal: Command, keyboard: File, terminal: File) -> Self {
        let slave = |file: &File| Stdio::from(file.try_clone().unwrap());
        on_terminal.stdin(slave(&terminal)).stdout(slave(&terminal)).stderr(terminal);
        Self { keyboard, shown: String::new(), unread: Vec::new(), child: on_terminal.spawn().unwrap() }
    }

    /// A shell with job control, and `leasehold` in its path.
    fn shell(sandbox: &RunSandbox) -> Self {
        let mut screen = Self::start(sandbox, Command::new("sh").arg("-i"));
        screen.shows("prompt> ");
        screen
    }

    /// Returns everything that the command shows until it ends.
    pub(crate) fn output_of(command: &Command) -> String {
        let mut screen = Self::of(command);
        let deadline = Instant::now() + TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "no end: {:?}", screen.shown);
            let ended = screen.child.try_wait().unwrap().is_some();
            if !screen.reads() && ended {
                return std::mem::take(&mut screen.shown);
            }
        }
    }

    /// Reads what the terminal shows now. Returns whether there was anything.
    fn reads(&mut self) -> bool {
        let mut fds = [PollFd::new(self.keyboard.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, PollTimeout::from(100u8)) != Ok(1) {
            return false;
        }
        let mut buffer = [0; 4096];
        // Reading fails when no process has the terminal open any more; the output so far is complete.
        let count = self.keyboard.read(&mut buffer).unwrap_or(0);
        self.unread.extend_from_slice(&buffer[..count]);
        // A character may arrive in two pieces.
        let whole = match str::from_utf8(&self.unread) {
            Ok(_) => self.unread.len(),
            Err(error) => error.valid_up_to(),
        };
        self.shown.push_str(&String::from_utf8_lossy(&self.unread[..whole]));
        self.unread.drain(..whole);
        count > 0
    }

    pub(crate) fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the text has been shown, and discards everything up to it.
    pub(crate) fn shows(&mut self, expected: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.shown.find(expected) {
                self.shown = self.shown.split_off(at + expected.len());
                return;
            }
            assert!(Instant::now() < deadline, "{expected:?} is not shown, but {:?}", self.shown);
            self.reads();
        }
    }

    pub(crate) fn ends_with_code(&mut self) -> i32 {
        wait_until("the end of the session", || self.child.try_wait().unwrap()).code().unwrap()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns both ends of a new terminal. Neither is inherited by accident: it would never be closed.
fn new_terminal() -> (File, File) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let mut open = File::options();
    open.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
    let slave = open.open(ptsname_r(&master).unwrap()).unwrap();
    (File::from(OwnedFd::from(master)), slave)
}

/// Returns `leasehold run` as typed in a shell.
fn typed(words: &str, script: &str) -> String {
    format!("'{}' run {words} -- sh -c '{script}'", env!("CARGO_BIN_EXE_leasehold"))
}

#[test]
fn the_command_reads_from_the_terminal() {
    let sandbox = RunSandbox::new();
    let mut screen = Screen::start(
        &sandbox,
        &sandbox.command("a", &["sh", "-c", "echo ready; read line; echo \"heard $line\"; exit 3"]),
    );
    screen.shows("ready");
    screen.types("hello\n");
    screen.shows("heard hello");
    assert_eq!(screen.ends_with_code(), 3);
}

#[test]
fn ctrl_c_reaches_the_command() {
    let sandbox = RunSandbox::new();
    let script = r#"trap "echo caught; exit 3" INT; echo ready; while :; do sleep 0.05; done"#;
    let mut screen = Screen::start(&sandbox, &sandbox.command("a", &["sh", "-c", script]));
    screen.shows("ready");
    screen.types("\x03");
    screen.shows("caught");
    assert_eq!(screen.ends_with_code(), 3);
    assert!(sandbox.is_free("a"));
}

#[test]
fn a_shell_gets_its_prompt_back_and_can_continue() {
    let sandbox = RunSandbox::new();
    let mut screen = Screen::shell(&sandbox);
    screen.types(&format!("{}; echo code=$?\n", typed("a", "read line; echo got=$line; exit 3")));
    screen.types("hello\n");
    screen.shows("got=hello");
    screen.shows("code=3");
    screen.types("echo and=on\n");
    screen.shows("and=on\r\n");
    screen.types("exit\n");
    screen.ends_with_code();
}

#[test]
fn ctrl_c_while_waiting_gives_the_prompt_back() {
    let sandbox = RunSandbox::new();
    let _holder = sandbox.start("a", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#);
    sandbox.wait_for_file("ready");
    let mut screen = Screen::shell(&sandbox);
    screen.types(&format!("{}; echo code=$?\n", typed("a --wait forever", "echo never")));
    screen.shows("for lock 'a' (1 of 1), held by ");
    screen.types("\x03");
    screen.types("echo still=here\n");
    screen.shows("still=here\r\n");
    screen.types("exit\n");
    screen.ends_with_code();
}

#[test]
fn ctrl_z_stops_the_job_and_fg_lets_it_go_on_under_the_same_lease() {
    let sandbox = RunSandbox::new();
    let mut screen = Screen::shell(&sandbox);
    let script = r#"echo $$ > "$SANDBOX/pid"; echo token=$LEASEHOLD_TOKEN; read line; echo got=$line"#;
    screen.types(&format!("{}\n", typed("a --ttl 3s", script)));
    screen.shows("token=");
    let command = read_pid(&sandbox.path("pid"));
    let token = sandbox.status("a").holders[0].token;
    screen.types("\x1a");
    screen.shows("prompt> ");
    let state = std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
    assert!(state.contains(") T "), "{state}");
    // The shell works, and the lease is renewed, for longer than its ttl.
    screen.types("echo shell=works\n");
    screen.shows("shell=works\r\n");
    wait_until("renewals", || (sandbox.status("a").holders[0].renewals >= 4).then_some(()));
    screen.types("fg\n");
    wait_until("the command", || {
        std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap().contains(") S ").then_some(())
    });
    assert_eq!(sandbox.status("a").holders[0].token, token);
    screen.types("hello\n");
    screen.shows("got=hello");
    screen.shows("prompt> ");
    screen.types("exit\n");
    screen.ends_with_code();
}

#[test]
fn in_the_background_a_read_stops_it_and_fg_resumes_it() {
    let sandbox = RunSandbox::new();
    let mut screen = Screen::shell(&sandbox);
    screen.types(&format!(
        "{} &\n",
        typed("a --ttl 2s", r#"echo $$ > "$SANDBOX/pid"; read line; echo got=$line"#)
    ));
    let command = read_pid(&sandbox.path("pid"));
    wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap().contains(") T ").then_some(())
    });
    screen.types("fg\n");
    screen.types("hello\n");
    screen.shows("got=hello");
    screen.types("exit\n");
    screen.ends_with_code();
}

/// No shell can resume a job whose shell has exited. If leasehold resumed the command, the system would stop it
/// again, without end.
#[test]
fn in_an_orphaned_job_a_read_stops_it_and_is_reported() {
    let sandbox = RunSandbox::new();
    let script = r#"echo $$ > "$SANDBOX/pid"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.01; done; read line"#;
    let job = format!("set -m; {} & echo $! > \"$SANDBOX/supervisor\"", typed("a", script));
    std::fs::write(sandbox.path("job"), job).unwrap();
    let outer = r#"sh "$SANDBOX/job"; echo 1 > "$SANDBOX/go"; exec sleep 1000"#;
    let mut screen = Screen::start(&sandbox, Command::new("sh").args(["-c", outer]));
    screen.shows("the command is stopped: it needs the terminal");
    let (command, supervisor) = (read_pid(&sandbox.path("pid")), read_pid(&sandbox.path("supervisor")));
    let state = std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap();
    assert!(state.contains(") T "), "{state}");
    for signal in [Signal::SIGTERM, Signal::SIGCONT] {
        kill(supervisor, signal).unwrap();
    }
    wait_until_dead(supervisor);
    assert!(sandbox.is_free("a"));
}

#[test]
fn in_a_pipeline_the_others_keep_the_terminal_until_the_command_asks_for_it() {
    let sandbox = RunSandbox::new();
    let mut screen = Screen::shell(&sandbox);
    screen.types(&format!("{} | cat\n", typed("a", "echo ready; read line; echo got=$line")));
    screen.shows("ready");
    screen.types("hello\n");
    screen.shows("got=hello");
    screen.types("echo and=on\n");
    screen.shows("and=on\r\n");
    screen.types("exit\n");
    screen.ends_with_code();
}

#[test]
fn an_interrupt_ends_the_loop_of_the_shell_that_runs_it() {
    let sandbox = RunSandbox::new();
    let mut screen = Screen::shell(&sandbox);
    let run = typed("a", "echo round; exec sleep 1000");
    screen.types(&format!("for i in 1 2 3; do {run}; echo next=$i; done\n"));
    screen.shows("round\r\n");
    screen.types("\x03");
    screen.types("echo out=$?\n");
    screen.shows("out=");
    assert!(!screen.shown.contains("round") && !screen.shown.contains("next=1"), "{:?}", screen.shown);
    screen.types("exit\n");
    screen.ends_with_code();
}

#[test]
fn when_the_terminal_is_closed_the_command_ends() {
    let sandbox = RunSandbox::new();
    let script = r#"echo $$ > "$SANDBOX/pid"; echo ready; sleep 1000"#;
    let mut screen = Screen::start(&sandbox, &sandbox.command("a", &["sh", "-c", script]));
    screen.shows("ready");
    let command = read_pid(&sandbox.path("pid"));
    screen.keyboard = File::open("/dev/null").unwrap();
    wait_until_dead(command);
    assert_eq!(screen.ends_with_code(), 129);
    assert!(sandbox.is_free("a"));
}
