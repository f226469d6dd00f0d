//! The lease is lost, or the store cannot be reached: the tree is dead before the lease ends.

use super::lab::{GHOST, Lab, is_alive, read_pid, text, uptime, wait_until_dead};

#[test]
fn when_the_store_is_out_of_reach_everything_is_dead_before_the_lease_ends() {
    let lab = Lab::new();
    let running = lab.start("a --ttl 3s", &format!("trap '' TERM; {GHOST} while :; do sleep 1; done"));
    let ghost = read_pid(&lab.path("ghost"));
    let blocked = lab.block();
    let ends = lab.lease_ends("a");
    wait_until_dead(ghost);
    lab.assert_silent_before(ends);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("could not be renewed"), "{}", text(&out.stderr));
    drop(blocked);
    assert!(lab.is_free("a"));
}

#[test]
fn when_the_store_is_back_in_time_nothing_happens() {
    let lab = Lab::new();
    let script = r#"echo 1 > "$LAB/ready"; while ! [ -e "$LAB/go" ]; do sleep 0.05; done; exit 4"#;
    let running = lab.start("a --ttl 5s", script);
    lab.wait_for_file("ready");
    let blocked = lab.block();
    let until = uptime() + 2.5; // Beyond the first renewal, and well before the end.
    while uptime() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(blocked);
    let renewals = lab.status("a").holders[0].renewals;
    super::lab::wait_until("a renewal", || (lab.status("a").holders[0].renewals > renewals).then_some(()));
    std::fs::write(lab.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn a_command_that_is_done_ends_with_its_own_code_although_nobody_can_be_told() {
    let lab = Lab::new();
    let running = lab.start(
        "a --ttl 2s",
        r#"echo 1 > "$LAB/ready"; while ! [ -e "$LAB/go" ]; do sleep 0.01; done; exit 4"#,
    );
    lab.wait_for_file("ready");
    let blocked = lab.block();
    std::fs::write(lab.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4));
    assert!(text(&out.stderr).contains("could not be released"), "{}", text(&out.stderr));
    drop(blocked);
    assert!(lab.is_free("a"));
}

#[test]
fn when_the_lock_is_forced_away_the_command_is_asked_to_stop_and_then_killed() {
    let lab = Lab::new();
    let script = format!(r#"trap 'echo asked >> "$LAB/asked"' TERM; {GHOST} while :; do sleep 0.05; done"#);
    let running = lab.start("a --ttl 3s", &script);
    let ghost = read_pid(&lab.path("ghost"));
    lab.force("a");
    let ends = uptime() + 3.0; // No lease that it had then can last longer.
    let out = running.output();
    assert_eq!(out.status.code(), Some(79));
    lab.assert_silent_before(ends);
    assert!(text(&out.stderr).contains("the lease on lock 'a' was lost"), "{}", text(&out.stderr));
    assert!(!is_alive(ghost));
    // Once: many programs take a second SIGTERM for "at once".
    assert_eq!(lab.wait_for_file("asked"), "asked\n");
}

#[test]
fn a_command_that_stops_when_asked_is_not_killed() {
    let lab = Lab::new();
    let script =
        r#"trap 'echo bye > "$LAB/bye"; exit 0' TERM; echo 1 > "$LAB/ready"; while :; do sleep 0.05; done"#;
    let running = lab.start("a --ttl 2s", script);
    lab.wait_for_file("ready");
    lab.force("a");
    assert_eq!(running.output().status.code(), Some(79));
    assert_eq!(lab.wait_for_file("bye"), "bye\n");
}

#[test]
fn a_holder_that_is_asked_to_release_asks_its_command_to_stop() {
    use leasehold::model::{Holder, LockName, Reason};
    let lab = Lab::new();
    let script = r#"trap 'exit 5' TERM; echo 1 > "$LAB/ready"; while :; do sleep 0.05; done"#;
    let running = lab.start("a --ttl 2s", script);
    lab.wait_for_file("ready");
    let lock = LockName::new("a").unwrap();
    let (by, why) = (Holder::new("ada").unwrap(), Reason::new("deploy").ok());
    lab.ask(async |leasehold| leasehold.ask_release(&lock, by, why).await.unwrap());
    let out = running.output();
    assert_eq!(out.status.code(), Some(5));
    assert!(text(&out.stderr).contains("ada asks for the lock (deploy)"), "{}", text(&out.stderr));
}

/// The lease was lost before the first renewal: only the release shows it, if nothing else did before.
#[test]
fn a_loss_that_the_release_reveals_is_told() {
    let lab = Lab::new();
    let script = r#"echo 1 > "$LAB/ready"; while ! [ -e "$LAB/go" ]; do sleep 0.01; done; exit 0"#;
    let running = lab.start("a --ttl 60s", script);
    lab.wait_for_file("ready");
    lab.force("a");
    std::fs::write(lab.path("go"), "").unwrap();
    let out = running.output();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(79), "{said}");
    assert!(said.contains("the lease on lock 'a' was lost: "), "{said}");
    assert!(!said.contains("frees itself"), "{said}");
}

#[test]
fn a_command_that_released_its_own_lease_has_lost_it() {
    let lab = Lab::new();
    let script = format!(
        r#"{} -q locks release a --lease-id "$LEASEHOLD_LEASE_ID" --token "$LEASEHOLD_TOKEN"; exit 0"#,
        env!("CARGO_BIN_EXE_leasehold")
    );
    let out = lab.start("a --ttl 60s", &script).output();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(79), "{said}");
    assert!(said.contains("the lease on lock 'a' was lost: "), "{said}");
}
