//! One process of ours is killed with SIGKILL: everything of the command dies, and the lock is free soon.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};

use super::lab::{GHOST, Lab, PATIENCE, read_pid, text, wait_until, wait_until_dead};

/// A command with a child in its group and a ghost outside of it.
fn family() -> String {
    format!(r#"trap "" TERM; sleep 1000 & {GHOST} echo $! > "$LAB/child"; echo $$ > "$LAB/command"; wait"#)
}

#[test]
fn when_front_is_killed_everything_dies_and_the_lock_is_free() {
    let lab = Lab::new();
    let mut running = lab.start("a --kill-after 500ms", &family());
    let keeper = running.keeper();
    let command = read_pid(&lab.path("command"));
    let ghost = read_pid(&lab.path("ghost"));
    running.signal(Signal::SIGKILL);
    running.wait();
    for pid in [command, ghost, keeper] {
        wait_until_dead(pid);
    }
    assert!(lab.is_free("a"));
}

#[test]
fn when_keeper_is_killed_everything_dies_before_front_says_so() {
    let lab = Lab::new();
    let running = lab.start("a", &family());
    let keeper = running.keeper();
    let command = read_pid(&lab.path("command"));
    let ghost = read_pid(&lab.path("ghost"));
    kill(keeper, Signal::SIGKILL).unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(79));
    assert!(text(&out.stderr).contains("was killed; the command was ended"), "{}", text(&out.stderr));
    for pid in [command, ghost, keeper] {
        assert!(!super::lab::is_alive(pid));
    }
    assert!(lab.is_free("a"));
}

#[test]
fn when_all_processes_called_leasehold_are_killed_one_is_left_that_ends_the_command() {
    let lab = Lab::new();
    let running = lab.start("a", r#"echo 1 > "$LAB/ready"; sleep 1000"#);
    lab.wait_for_file("ready");
    let keeper = running.keeper();
    // By name, as killall does it, and by command line, as pkill -f does it.
    let line = |pid| text(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap());
    assert_eq!(super::lab::name_of(running.front).unwrap(), "leasehold");
    assert_eq!(super::lab::name_of(keeper).unwrap(), "lease-keeper");
    assert!(line(running.front).contains("leasehold"));
    wait_until("another command line", || line(keeper).starts_with("lease-keeper a\0").then_some(()));
    assert!(!line(keeper).contains("leasehold"), "{}", line(keeper));
}

#[test]
fn nobody_gets_the_lock_while_a_survivor_is_still_killing() {
    let lab = Lab::new();
    let mut running = lab.start("a --ttl 5s --kill-after 2s", &family());
    let ghost = read_pid(&lab.path("ghost"));
    let keeper = running.keeper();
    running.signal(Signal::SIGKILL);
    running.wait();
    // For two seconds the command is asked to stop, and does not.
    wait_until("the lock", || {
        let free = lab.is_free("a");
        assert!(!free || !super::lab::is_alive(ghost), "the lock was free while the ghost lived");
        free.then_some(())
    });
    wait_until_dead(keeper);
}

#[test]
fn when_front_is_killed_while_waiting_the_queue_is_left() {
    let lab = Lab::new();
    let holder = lab.start("a", "sleep 1000");
    wait_until("the lock", || lab.status("a").holders.first().map(|_| ()));
    let mut waiting = lab.start("a --wait forever", "echo never > \"$LAB/never\"");
    wait_until("the ticket", || (lab.status("a").waiters.len() == 1).then_some(()));
    let keeper = waiting.keeper();
    waiting.signal(Signal::SIGKILL);
    waiting.wait();
    wait_until_dead(keeper);
    assert_eq!(lab.status("a").waiters.len(), 0);
    drop(holder);
    assert!(!lab.path("never").exists());
}

#[test]
fn when_keeper_is_killed_while_waiting_the_command_does_not_start() {
    let lab = Lab::new();
    let holder = lab.start("a", "sleep 1000");
    wait_until("the lock", || lab.status("a").holders.first().map(|_| ()));
    let waiting = lab.start("a --wait forever", "echo never > \"$LAB/never\"");
    wait_until("the ticket", || (lab.status("a").waiters.len() == 1).then_some(()));
    kill(waiting.keeper(), Signal::SIGKILL).unwrap();
    let out = waiting.output();
    assert_eq!(out.status.code(), Some(70));
    assert!(text(&out.stderr).contains("the command was not started"), "{}", text(&out.stderr));
    drop(holder);
    assert!(!lab.path("never").exists());
}

#[test]
fn a_service_manager_that_asks_every_process_to_stop_gets_an_orderly_end() {
    let lab = Lab::new();
    let script = r#"trap 'echo bye > "$LAB/bye"; exit 6' TERM; echo $$ > "$LAB/command"; while :; do sleep 0.05; done"#;
    let running = lab.start("a", script);
    let command = read_pid(&lab.path("command"));
    for pid in [running.keeper(), running.front, command] {
        let _ = kill(pid, Signal::SIGTERM); // It may be gone already.
    }
    assert_eq!(running.output().status.code(), Some(6));
    assert_eq!(lab.wait_for_file("bye"), "bye\n");
    assert!(lab.is_free("a"));
}

#[test]
fn children_from_before_are_left_alone() {
    let lab = Lab::new();
    // A shell that starts something in the background and then becomes leasehold: it is our child, but not our business.
    let run = lab.command("a", &["sh", "-c", "setsid sleep 1000 & sleep 1000"]);
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", r#"sleep 60 & echo $! > "$LAB/before"; exec "$@""#, "sh"]);
    shell.arg(run.get_program()).args(run.get_args());
    lab.settle(&mut shell);
    let running = super::lab::Running::start(&mut shell);
    let before = read_pid(&lab.path("before"));
    let keeper = running.keeper();
    wait_until("the command", || (super::lab::children(keeper).len() == 1).then_some(()));
    wait_until("the lock", || lab.status("a").holders.first().map(|_| ()));
    kill(keeper, Signal::SIGKILL).unwrap();
    assert!(running.output().status.code().is_some());
    assert!(super::lab::is_alive(before));
    kill(before, Signal::SIGKILL).unwrap();
}

#[test]
fn a_command_that_is_killed_by_others_frees_the_lock_at_once() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 60s", r#"echo $$ > "$LAB/command"; sleep 1000"#);
    let command = read_pid(&lab.path("command"));
    let before = std::time::Instant::now();
    kill(command, Signal::SIGKILL).unwrap();
    assert_eq!(running.output().status.code(), Some(137));
    assert!(lab.is_free("a"));
    assert!(before.elapsed() < PATIENCE.min(Duration::from_secs(10)));
}
