//! One of our processes is killed with SIGKILL: every process of the command dies, and the lock is
//! free soon.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use super::support::{ORPHAN, RunSandbox, TIMEOUT, read_pid, text, wait_until, wait_until_dead};

/// Command with a child in its group and an orphan outside of it.
fn family() -> String {
    format!(
        r#"trap "" TERM; sleep 1000 & {ORPHAN} echo $! > "$SANDBOX/child"; echo $$ > "$SANDBOX/command"; wait"#
    )
}

#[test]
fn when_the_supervisor_is_killed_everything_dies_and_the_lock_is_free() {
    let sandbox = RunSandbox::new();
    let mut running = sandbox.start("a --kill-after 500ms", &family());
    let monitor = running.monitor();
    let command = read_pid(&sandbox.path("command"));
    let orphan = read_pid(&sandbox.path("orphan"));
    running.signal(Signal::SIGKILL);
    running.wait();
    for pid in [command, orphan, monitor] {
        wait_until_dead(pid);
    }
    assert!(sandbox.is_free("a"));
}

#[test]
fn when_the_monitor_is_killed_everything_dies_before_the_supervisor_exits() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a", &family());
    let monitor = running.monitor();
    let command = read_pid(&sandbox.path("command"));
    let orphan = read_pid(&sandbox.path("orphan"));
    kill(monitor, Signal::SIGKILL).unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(79));
    assert!(text(&out.stderr).contains("was killed; the command was ended"), "{}", text(&out.stderr));
    for pid in [command, orphan, monitor] {
        assert!(!super::support::is_alive(pid));
    }
    assert!(sandbox.is_free("a"));
}

#[test]
fn when_all_processes_called_leasehold_are_killed_one_is_left_that_ends_the_command() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#);
    sandbox.wait_for_file("ready");
    let monitor = running.monitor();
    // By name, as killall does, and by command line, as pkill -f does.
    let line = |pid| text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap());
    assert_eq!(super::support::name_of(running.supervisor).unwrap(), "leasehold");
    assert_eq!(super::support::name_of(monitor).unwrap(), "lease-monitor");
    assert!(line(running.supervisor).contains("leasehold"));
    wait_until("another command line", || line(monitor).starts_with("lease-monitor a\0").then_some(()));
    assert!(!line(monitor).contains("leasehold"), "{}", line(monitor));
}

#[test]
fn the_lock_is_held_while_a_survivor_is_still_killing() {
    let sandbox = RunSandbox::new();
    let mut running = sandbox.start("a --ttl 5s --kill-after 2s", &family());
    let orphan = read_pid(&sandbox.path("orphan"));
    let monitor = running.monitor();
    running.signal(Signal::SIGKILL);
    running.wait();
    // For two seconds the command ignores the request to stop.
    wait_until("the lock", || {
        let free = sandbox.is_free("a");
        assert!(!free || !super::support::is_alive(orphan), "the lock was free while the orphan lived");
        free.then_some(())
    });
    wait_until_dead(monitor);
}

#[test]
fn when_the_supervisor_is_killed_while_waiting_the_ticket_is_withdrawn() {
    let sandbox = RunSandbox::new();
    let holder = sandbox.start("a", "sleep 1000");
    wait_until("the lock", || sandbox.status("a").holders.first().map(|_| ()));
    let mut waiting = sandbox.start("a --wait forever", "echo never > \"$SANDBOX/never\"");
    wait_until("the ticket", || (sandbox.status("a").waiters.len() == 1).then_some(()));
    let monitor = waiting.monitor();
    waiting.signal(Signal::SIGKILL);
    waiting.wait();
    wait_until_dead(monitor);
    assert_eq!(sandbox.status("a").waiters.len(), 0);
    drop(holder);
    assert!(!sandbox.path("never").exists());
}

#[test]
fn when_the_monitor_is_killed_while_waiting_the_command_does_not_start() {
    let sandbox = RunSandbox::new();
    let holder = sandbox.start("a", "sleep 1000");
    wait_until("the lock", || sandbox.status("a").holders.first().map(|_| ()));
    let waiting = sandbox.start("a --wait forever", "echo never > \"$SANDBOX/never\"");
    wait_until("the ticket", || (sandbox.status("a").waiters.len() == 1).then_some(()));
    kill(waiting.monitor(), Signal::SIGKILL).unwrap();
    let out = waiting.output();
    assert_eq!(out.status.code(), Some(70));
    assert!(text(&out.stderr).contains("the command was not started"), "{}", text(&out.stderr));
    drop(holder);
    assert!(!sandbox.path("never").exists());
}

#[test]
fn sigterm_to_every_process_ends_the_run_in_order() {
    let sandbox = RunSandbox::new();
    let script = r#"trap 'echo bye > "$SANDBOX/bye"; exit 6' TERM; echo $$ > "$SANDBOX/command"; while :; do sleep 0.05; done"#;
    let running = sandbox.start("a", script);
    let command = read_pid(&sandbox.path("command"));
    for pid in [running.monitor(), running.supervisor, command] {
        let _ = kill(pid, Signal::SIGTERM); // It may have exited already.
    }
    assert_eq!(running.output().status.code(), Some(6));
    assert_eq!(sandbox.wait_for_file("bye"), "bye\n");
    assert!(sandbox.is_free("a"));
}

#[test]
fn inherited_children_are_not_signalled() {
    let sandbox = RunSandbox::new();
    // A shell that starts a background process and then becomes leasehold: the process is our
    // child, but must not be signalled.
    let run = sandbox.command("a", &["sh", "-c", "setsid sleep 1000 & sleep 1000"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"sleep 60 & echo $! > "$SANDBOX/before"; exec "$@""#, "sh"]);
    shell.arg(run.get_program()).args(run.get_args());
    sandbox.configure(&mut shell);
    let running = super::support::Running::start(&mut shell);
    let before = read_pid(&sandbox.path("before"));
    let monitor = running.monitor();
    wait_until("the command", || (super::support::children(monitor).len() == 1).then_some(()));
    wait_until("the lock", || sandbox.status("a").holders.first().map(|_| ()));
    kill(monitor, Signal::SIGKILL).unwrap();
    assert!(running.output().status.code().is_some());
    assert!(super::support::is_alive(before));
    kill(before, Signal::SIGKILL).unwrap();
}

#[test]
fn a_killed_command_frees_the_lock_at_once() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 60s", r#"echo $$ > "$SANDBOX/command"; sleep 1000"#);
    let command = read_pid(&sandbox.path("command"));
    let before = std::time::Instant::now();
    kill(command, Signal::SIGKILL).unwrap();
    assert_eq!(running.output().status.code(), Some(137));
    assert!(sandbox.is_free("a"));
    assert!(before.elapsed() < TIMEOUT.min(Duration::from_secs(10)));
}
