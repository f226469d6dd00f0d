//! A process of ours is stopped, which is what a suspend looks like from outside: the tree is dead before its lease can
//! end, and a command whose lease is alive is left alone.

use nix::sys::signal::{Signal, kill};

use super::lab::{GHOST, Lab, is_alive, read_pid, text, uptime, wait_until, wait_until_dead};

#[test]
fn when_keeper_is_stopped_everything_is_dead_before_the_lease_ends() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 3s", &format!("trap '' TERM; {GHOST} while :; do sleep 1; done"));
    let ghost = read_pid(&lab.path("ghost"));
    let keeper = running.keeper();
    kill(keeper, Signal::SIGSTOP).unwrap();
    let ends = lab.lease_ends("a");
    wait_until_dead(ghost);
    lab.assert_silent_before(ends);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("its keeper does not answer"), "{}", text(&out.stderr));
    assert!(!is_alive(keeper), "nothing is left behind");
    assert!(lab.is_free("a"));
}

#[test]
fn when_front_and_keeper_are_stopped_everything_is_dead_before_the_lease_ends() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 3s", &format!("trap '' TERM; {GHOST} while :; do sleep 1; done"));
    let ghost = read_pid(&lab.path("ghost"));
    let keeper = running.keeper();
    for pid in [running.front, keeper] {
        kill(pid, Signal::SIGSTOP).unwrap();
    }
    let ends = lab.lease_ends("a");
    wait_until_dead(ghost);
    lab.assert_silent_before(ends);
    // Whichever goes on first: it was the lease.
    for pid in [keeper, running.front] {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
}

#[test]
fn a_command_that_can_stop_gets_the_chance_although_keeper_is_stopped() {
    let lab = Lab::new();
    let script =
        r#"trap 'echo bye > "$LAB/bye"; exit 0' TERM; echo 1 > "$LAB/ready"; while :; do sleep 0.05; done"#;
    let running = lab.start("a --ttl 3s", script);
    lab.wait_for_file("ready");
    kill(running.keeper(), Signal::SIGSTOP).unwrap();
    assert_eq!(lab.wait_for_file("bye"), "bye\n");
    assert_eq!(running.output().status.code(), Some(79));
}

#[test]
fn when_keeper_is_stopped_for_a_short_while_nothing_happens() {
    let lab = Lab::new();
    let running = lab.start(
        "a --ttl 3s",
        r#"echo 1 > "$LAB/ready"; while ! [ -e "$LAB/go" ]; do sleep 0.05; done; exit 4"#,
    );
    lab.wait_for_file("ready");
    let keeper = running.keeper();
    kill(keeper, Signal::SIGSTOP).unwrap();
    wait_until("the stop", || {
        std::fs::read_to_string(format!("/proc/{keeper}/stat")).unwrap().contains(") T ").then_some(())
    });
    kill(keeper, Signal::SIGCONT).unwrap();
    // It goes on renewing: the lease outlives its first term.
    let renewals = lab.status("a").holders[0].renewals;
    wait_until("two renewals", || (lab.status("a").holders[0].renewals >= renewals + 2).then_some(()));
    std::fs::write(lab.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn when_front_is_stopped_the_lease_is_renewed_and_nothing_is_ended() {
    let lab = Lab::new();
    let running = lab.start(
        "a --ttl 3s",
        r#"echo 1 > "$LAB/ready"; while ! [ -e "$LAB/go" ]; do sleep 0.05; done; exit 4"#,
    );
    lab.wait_for_file("ready");
    running.signal(Signal::SIGSTOP);
    wait_until("renewals", || (lab.status("a").holders[0].renewals >= 4).then_some(()));
    running.signal(Signal::SIGCONT);
    std::fs::write(lab.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn when_front_is_stopped_and_the_lease_is_taken_everything_is_dead_in_time() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 3s", &format!("trap '' TERM; {GHOST} while :; do sleep 1; done"));
    let ghost = read_pid(&lab.path("ghost"));
    running.signal(Signal::SIGSTOP);
    lab.force("a");
    let ends = uptime() + 3.0; // No lease that it had then can last longer.
    wait_until_dead(ghost);
    lab.assert_silent_before(ends);
    running.signal(Signal::SIGCONT);
    assert_eq!(running.output().status.code(), Some(79));
}

#[test]
fn when_front_is_stopped_and_the_store_is_out_of_reach_everything_is_dead_in_time() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 3s", &format!("trap '' TERM; {GHOST} while :; do sleep 1; done"));
    let ghost = read_pid(&lab.path("ghost"));
    running.signal(Signal::SIGSTOP);
    let blocked = lab.block();
    let ends = lab.lease_ends("a");
    wait_until_dead(ghost);
    lab.assert_silent_before(ends);
    running.signal(Signal::SIGCONT);
    assert_eq!(running.output().status.code(), Some(79));
    drop(blocked);
}

#[test]
fn when_everything_was_stopped_past_the_lease_nothing_goes_on() {
    let lab = Lab::new();
    // As after a suspend: the command is stopped too, and would go on as if nothing had happened.
    let script = r#"echo $$ > "$LAB/command"; while :; do read up rest < /proc/uptime; echo $up >> "$LAB/beats"; sleep 0.02; done"#;
    let running = lab.start("a --ttl 1s", script);
    let command = read_pid(&lab.path("command"));
    lab.wait_for_file("beats");
    let keeper = running.keeper();
    for pid in [command, keeper, running.front] {
        kill(pid, Signal::SIGSTOP).unwrap();
    }
    let ends = lab.lease_ends("a");
    wait_until("the end of the lease", || (uptime() > ends + 0.1).then_some(()));
    for pid in [keeper, running.front] {
        kill(pid, Signal::SIGCONT).unwrap();
    }
    wait_until_dead(command);
    lab.assert_silent_before(ends);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
}

#[test]
fn the_command_itself_may_be_stopped_for_as_long_as_it_likes() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 3s", r#"echo $$ > "$LAB/command"; kill -STOP $$; exit 4"#);
    let command = read_pid(&lab.path("command"));
    wait_until("renewals", || (lab.status("a").holders.first()?.renewals >= 4).then_some(()));
    kill(command, Signal::SIGCONT).unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}
