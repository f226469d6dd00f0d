//! The end of a command: nothing of it is left when the lock is free.

use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use super::lab::{GHOST, Lab, is_alive, read_pid, text};

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_lock_is_free() {
    let lab = Lab::new();
    let script = r#"sleep 1000 & echo $! > "$LAB/one"; setsid sleep 1000 & echo $! > "$LAB/two"; exit 3"#;
    let out = lab.start("a", script).output();
    assert_eq!(out.status.code(), Some(3));
    assert!(!is_alive(read_pid(&lab.path("one"))) && !is_alive(read_pid(&lab.path("two"))));
    assert_eq!(text(&out.stderr), "leasehold: 2 processes left behind by the command were ended\n");
    assert!(lab.is_free("a"));
}

#[test]
fn even_a_ghost_is_ended_and_the_lock_is_held_until_then() {
    let lab = Lab::new();
    let mut running = lab.start("a --kill-after 1s", &format!("{GHOST} echo 1 > \"$LAB/done\"; exit 0"));
    let ghost = read_pid(&lab.path("ghost"));
    lab.wait_for_file("done");
    // It ignores SIGTERM, so it lives for as long as --kill-after says, and so long the lock is taken.
    while is_alive(ghost) {
        if !lab.is_free("a") {
            continue;
        }
        assert!(!is_alive(ghost), "the lock was free while the ghost lived");
        break;
    }
    assert!(running.wait().success());
    assert!(!is_alive(ghost));
    assert!(lab.is_free("a"));
}

#[test]
fn processes_that_fork_and_exit_all_the_time_are_caught() {
    let lab = Lab::new();
    let comet = lab.path("comet");
    let script =
        "#!/bin/sh\ntrap '' TERM\nread up rest < /proc/uptime; echo $up >> \"$LAB/beats\"\nsetsid \"$0\" &\n";
    std::fs::write(&comet, script).unwrap();
    std::fs::set_permissions(&comet, std::fs::Permissions::from_mode(0o755)).unwrap();
    let command = r#""$LAB/comet" & while ! [ -s "$LAB/beats" ]; do sleep 0.01; done; exit 9"#;
    let out = lab.start("a --kill-after 100ms", command).output();
    assert_eq!(out.status.code(), Some(9), "{}", text(&out.stderr));
    let last = std::fs::read(lab.path("beats")).unwrap().len();
    assert!(lab.is_free("a"));
    assert_eq!(std::fs::read(lab.path("beats")).unwrap().len(), last, "it flew on");
}

#[test]
fn a_command_that_stops_itself_does_not_stop_us_without_a_terminal() {
    let lab = Lab::new();
    let running = lab.start("a", r#"echo $$ > "$LAB/pid"; kill -STOP $$; exit 8"#);
    let command = read_pid(&lab.path("pid"));
    super::lab::wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{command}/stat")).unwrap().contains(") T ").then_some(())
    });
    nix::sys::signal::kill(command, Signal::SIGCONT).unwrap();
    assert_eq!(running.output().status.code(), Some(8));
}
