//! One of our processes is stopped, which looks like a suspend from outside: the tree is dead
//! before its lease can end, and a command with a live lease is not ended.

use nix::sys::signal::{Signal, kill};

use super::support::{
    ORPHAN, RunSandbox, children, is_alive, name_of, read_pid, text, uptime, wait_until, wait_until_dead,
};

#[test]
fn when_the_monitor_is_stopped_everything_is_dead_before_the_lease_ends() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 3s", &format!("trap '' TERM; {ORPHAN} while :; do sleep 1; done"));
    let orphan = read_pid(&sandbox.path("orphan"));
    let monitor = running.monitor();
    kill(monitor, Signal::SIGSTOP).unwrap();
    let ends = sandbox.lease_ends("a");
    wait_until_dead(orphan);
    sandbox.assert_silent_before(ends);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("its monitor does not respond"), "{}", text(&out.stderr));
    assert!(!is_alive(monitor), "nothing is left behind");
    assert!(sandbox.is_free("a"));
}

#[test]
fn when_supervisor_and_monitor_are_stopped_everything_is_dead_before_the_lease_ends() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 3s", &format!("trap '' TERM; {ORPHAN} while :; do sleep 1; done"));
    let orphan = read_pid(&sandbox.path("orphan"));
    let monitor = running.monitor();
    for pid in [running.supervisor, monitor] {
        kill(pid, Signal::SIGSTOP).unwrap();
    }
    let ends = sandbox.lease_ends("a");
    wait_until_dead(orphan);
    sandbox.assert_silent_before(ends);
    // Whichever resumes first: the reason is the lease.
    for pid in [monitor, running.supervisor] {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
}

/// As when a machine is suspended: no process of leasehold could end the command at the end of its lease.
#[test]
fn a_command_that_ends_by_itself_after_its_lease_is_reported_as_a_loss() {
    let sandbox = RunSandbox::new();
    let script = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.05; done"#;
    let running = sandbox.start("a --ttl 3s", script);
    sandbox.wait_for_file("ready");
    let monitor = running.monitor();
    let watchdogs = children(running.supervisor).into_iter();
    let watchdog = watchdogs.filter(|pid| name_of(*pid).as_deref() == Some("lease-watchdog"));
    let stopped: Vec<_> = [running.supervisor].into_iter().chain(watchdog).chain([monitor]).collect();
    for pid in &stopped {
        kill(*pid, Signal::SIGSTOP).unwrap();
    }
    let ends = sandbox.lease_ends("a");
    wait_until("the end of the lease", || (uptime() > ends).then_some(()));
    std::fs::write(sandbox.path("go"), "").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    for pid in stopped.iter().rev() {
        kill(*pid, Signal::SIGCONT).unwrap();
    }
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
}

#[test]
fn a_command_gets_sigterm_while_the_monitor_is_stopped() {
    let sandbox = RunSandbox::new();
    let script = r#"trap 'echo bye > "$SANDBOX/bye"; exit 0' TERM; echo 1 > "$SANDBOX/ready"; while :; do sleep 0.05; done"#;
    let running = sandbox.start("a --ttl 3s", script);
    sandbox.wait_for_file("ready");
    kill(running.monitor(), Signal::SIGSTOP).unwrap();
    assert_eq!(sandbox.wait_for_file("bye"), "bye\n");
    assert_eq!(running.output().status.code(), Some(79));
}

#[test]
fn when_the_monitor_is_stopped_briefly_nothing_happens() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start(
        "a --ttl 3s",
        r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.05; done; exit 4"#,
    );
    sandbox.wait_for_file("ready");
    let monitor = running.monitor();
    kill(monitor, Signal::SIGSTOP).unwrap();
    wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{monitor}/stat")).unwrap().contains(") T ").then_some(())
    });
    kill(monitor, Signal::SIGCONT).unwrap();
    // Renewals continue: the lease outlives its first ttl.
    let renewals = sandbox.status("a").holders[0].renewals;
    wait_until("two renewals", || (sandbox.status("a").holders[0].renewals >= renewals + 2).then_some(()));
    std::fs::write(sandbox.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn when_the_supervisor_is_stopped_the_lease_is_renewed_and_nothing_is_ended() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start(
        "a --ttl 3s",
        r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.05; done; exit 4"#,
    );
    sandbox.wait_for_file("ready");
    running.signal(Signal::SIGSTOP);
    wait_until("renewals", || (sandbox.status("a").holders[0].renewals >= 4).then_some(()));
    running.signal(Signal::SIGCONT);
    std::fs::write(sandbox.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn when_the_supervisor_is_stopped_and_the_lease_is_taken_everything_is_dead_in_time() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 3s", &format!("trap '' TERM; {ORPHAN} while :; do sleep 1; done"));
    let orphan = read_pid(&sandbox.path("orphan"));
    running.signal(Signal::SIGSTOP);
    sandbox.force("a");
    let ends = uptime() + 3.0; // No lease held at that time can last longer.
    wait_until_dead(orphan);
    sandbox.assert_silent_before(ends);
    running.signal(Signal::SIGCONT);
    assert_eq!(running.output().status.code(), Some(79));
}

#[test]
fn when_the_supervisor_is_stopped_and_the_store_is_unreachable_everything_is_dead_in_time() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 3s", &format!("trap '' TERM; {ORPHAN} while :; do sleep 1; done"));
    let orphan = read_pid(&sandbox.path("orphan"));
    running.signal(Signal::SIGSTOP);
    let blocked = sandbox.block();
    let ends = sandbox.lease_ends("a");
    wait_until_dead(orphan);
    sandbox.assert_silent_before(ends);
    running.signal(Signal::SIGCONT);
    assert_eq!(running.output().status.code(), Some(79));
    drop(blocked);
}

#[test]
fn when_everything_was_stopped_past_the_lease_nothing_continues() {
    let sandbox = RunSandbox::new();
    // As after a suspend: the command is stopped too, and would continue.
    let script = r#"echo $$ > "$SANDBOX/command"; while :; do read up rest < /proc/uptime; echo $up >> "$SANDBOX/heartbeats"; sleep 0.02; done"#;
    let running = sandbox.start("a --ttl 1s", script);
    let command = read_pid(&sandbox.path("command"));
    sandbox.wait_for_file("heartbeats");
    let monitor = running.monitor();
    for pid in [command, monitor, running.supervisor] {
        kill(pid, Signal::SIGSTOP).unwrap();
    }
    let ends = sandbox.lease_ends("a");
    wait_until("the end of the lease", || (uptime() > ends + 0.1).then_some(()));
    for pid in [monitor, running.supervisor] {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    wait_until_dead(command);
    sandbox.assert_silent_before(ends);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
}

#[test]
fn the_command_itself_may_be_stopped_for_as_long_as_it_likes() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 3s", r#"echo $$ > "$SANDBOX/command"; kill -STOP $$; exit 4"#);
    let command = read_pid(&sandbox.path("command"));
    wait_until("renewals", || (sandbox.status("a").holders.first()?.renewals >= 4).then_some(()));
    kill(command, Signal::SIGCONT).unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}
