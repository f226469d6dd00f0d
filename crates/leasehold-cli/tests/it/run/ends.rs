//! The end of a command: no process of it is left when the lock is free.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use super::support::{ORPHAN, RunSandbox, is_alive, read_pid, text};

#[test]
fn processes_left_behind_are_ended_before_the_lock_is_free() {
    let sandbox = RunSandbox::new();
    let script =
        r#"sleep 1000 & echo $! > "$SANDBOX/one"; setsid sleep 1000 & echo $! > "$SANDBOX/two"; exit 3"#;
    let out = sandbox.start("a", script).output();
    assert_eq!(out.status.code(), Some(3));
    assert!(!is_alive(read_pid(&sandbox.path("one"))) && !is_alive(read_pid(&sandbox.path("two"))));
    assert_eq!(text(&out.stderr), "leasehold: 2 processes left behind by the command were ended\n");
    assert!(sandbox.is_free("a"));
}

#[test]
fn even_a_daemonized_orphan_is_ended_and_the_lock_is_held_until_then() {
    let sandbox = RunSandbox::new();
    let mut running =
        sandbox.start("a --kill-after 1s", &format!("{ORPHAN} echo 1 > \"$SANDBOX/done\"; exit 0"));
    let orphan = read_pid(&sandbox.path("orphan"));
    sandbox.wait_for_file("done");
    // It ignores SIGTERM, so it lives for --kill-after, and the lock is held until then.
    while is_alive(orphan) {
        if !sandbox.is_free("a") {
            continue;
        }
        assert!(!is_alive(orphan), "the lock was free while the orphan lived");
        break;
    }
    assert!(running.wait().success());
    assert!(!is_alive(orphan));
    assert!(sandbox.is_free("a"));
}

#[test]
fn processes_that_fork_and_exit_all_the_time_are_caught() {
    let sandbox = RunSandbox::new();
    let comet = sandbox.path("comet");
    let script = "#!/bin/sh\ntrap '' TERM\nread up rest < /proc/uptime; echo $up >> \"$SANDBOX/heartbeats\"\nsetsid \"$0\" &\n";
    std::fs::write(&comet, script).unwrap();
    std::fs::set_permissions(&comet, std::fs::Permissions::from_mode(0o755)).unwrap();
    let command = r#""$SANDBOX/comet" & while ! [ -s "$SANDBOX/heartbeats" ]; do sleep 0.01; done; exit 9"#;
    let out = sandbox.start("a --kill-after 100ms", command).output();
    assert_eq!(out.status.code(), Some(9), "{}", text(&out.stderr));
    let last = std::fs::read(sandbox.path("heartbeats")).unwrap().len();
    assert!(sandbox.is_free("a"));
    assert_eq!(std::fs::read(sandbox.path("heartbeats")).unwrap().len(), last, "it flew on");
}

#[test]
fn a_command_that_stops_itself_does_not_stop_the_supervisor_without_a_terminal() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a", r#"echo $$ > "$SANDBOX/pid"; kill -STOP $$; exit 8"#);
    let command = read_pid(&sandbox.path("pid"));
    super::support::wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap().contains(") T ").then_some(())
    });
    nix::sys::signal::kill(command, Signal::SIGCONT).unwrap();
    assert_eq!(running.output().status.code(), Some(8));
}
