//! The lease is lost, or the store cannot be reached: the tree is dead before the lease ends.

use super::support::{ORPHAN, RunSandbox, full_pipe, is_alive, read_pid, text, uptime, wait_until_dead};

#[test]
fn when_the_store_is_unreachable_everything_is_dead_before_the_lease_ends() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start("a --ttl 3s", &format!("trap '' TERM; {ORPHAN} while :; do sleep 1; done"));
    let orphan = read_pid(&sandbox.path("orphan"));
    let blocked = sandbox.block();
    let ends = sandbox.lease_ends("a");
    wait_until_dead(orphan);
    sandbox.assert_silent_before(ends);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("could not be renewed"), "{}", text(&out.stderr));
    drop(blocked);
    assert!(sandbox.is_free("a"));
}

#[test]
fn when_the_store_is_back_in_time_nothing_happens() {
    let sandbox = RunSandbox::new();
    let script = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.05; done; exit 4"#;
    let running = sandbox.start("a --ttl 5s", script);
    sandbox.wait_for_file("ready");
    let blocked = sandbox.block();
    let until = uptime() + 2.5; // After the first renewal, and well before the end.
    while uptime() < until {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(blocked);
    let renewals = sandbox.status("a").holders[0].renewals;
    super::support::wait_until("a renewal", || {
        (sandbox.status("a").holders[0].renewals > renewals).then_some(())
    });
    std::fs::write(sandbox.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4), "{}", text(&out.stderr));
}

#[test]
fn failing_renewals_are_announced_and_so_is_their_end() {
    let sandbox = RunSandbox::new();
    let script = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.05; done"#;
    let words = format!("a --ttl 20s --store {}?busy=100ms", sandbox.store());
    let mut command = sandbox.command(&words, &["sh", "-c", script]);
    let log = sandbox.path("log");
    command.stdout(std::process::Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut running = super::support::Running::start(&mut command);
    sandbox.wait_for_file("ready");
    let said = |expected: &str| {
        super::support::wait_until(expected, || {
            std::fs::read_to_string(&log).unwrap().contains(expected).then_some(())
        });
    };
    let blocked = sandbox.block();
    said(
        "leasehold: the lease on lock 'a' could not be renewed; unless a renewal succeeds, the command is asked",
    );
    drop(blocked);
    said("leasehold: the lease on lock 'a' is renewed again");
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert_eq!(running.wait().code(), Some(0));
}

#[test]
fn a_finished_command_keeps_its_exit_code_without_the_store() {
    let sandbox = RunSandbox::new();
    let running = sandbox.start(
        "a --ttl 2s",
        r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.01; done; exit 4"#,
    );
    sandbox.wait_for_file("ready");
    let blocked = sandbox.block();
    std::fs::write(sandbox.path("go"), "").unwrap();
    let out = running.output();
    assert_eq!(out.status.code(), Some(4));
    assert!(text(&out.stderr).contains("could not be released"), "{}", text(&out.stderr));
    drop(blocked);
    assert!(sandbox.is_free("a"));
}

#[test]
fn when_the_lock_is_forced_away_the_command_is_asked_to_stop_and_then_killed() {
    let sandbox = RunSandbox::new();
    let script =
        format!(r#"trap 'echo asked >> "$SANDBOX/asked"' TERM; {ORPHAN} while :; do sleep 0.05; done"#);
    let running = sandbox.start("a --ttl 3s", &script);
    let orphan = read_pid(&sandbox.path("orphan"));
    sandbox.force("a");
    let ends = uptime() + 3.0; // No lease held at that time can last longer.
    let out = running.output();
    assert_eq!(out.status.code(), Some(79));
    sandbox.assert_silent_before(ends);
    assert!(text(&out.stderr).contains("the lease on lock 'a' was lost"), "{}", text(&out.stderr));
    assert!(!is_alive(orphan));
    // Once: many programs treat a second SIGTERM as "exit immediately".
    assert_eq!(sandbox.wait_for_file("asked"), "asked\n");
}

#[test]
fn a_command_that_stops_when_asked_is_not_killed() {
    let sandbox = RunSandbox::new();
    let script = r#"trap 'echo bye > "$SANDBOX/bye"; exit 0' TERM; echo 1 > "$SANDBOX/ready"; while :; do sleep 0.05; done"#;
    let running = sandbox.start("a --ttl 2s", script);
    sandbox.wait_for_file("ready");
    sandbox.force("a");
    assert_eq!(running.output().status.code(), Some(79));
    assert_eq!(sandbox.wait_for_file("bye"), "bye\n");
}

#[test]
fn a_holder_that_is_asked_to_release_asks_its_command_to_stop() {
    use leasehold::model::{Holder, LockName, Reason};
    let sandbox = RunSandbox::new();
    let script = r#"trap 'exit 5' TERM; echo 1 > "$SANDBOX/ready"; while :; do sleep 0.05; done"#;
    let running = sandbox.start("a --ttl 2s", script);
    sandbox.wait_for_file("ready");
    let lock = LockName::new("a").unwrap();
    let (by, why) = (Holder::new("ada").unwrap(), Reason::new("deploy").ok());
    sandbox.ask(async |leasehold| leasehold.locks().request_release(&lock, by, why).await.unwrap());
    let out = running.output();
    assert_eq!(out.status.code(), Some(5));
    assert!(text(&out.stderr).contains("ada asks for the lock (deploy)"), "{}", text(&out.stderr));
}

/// No message of leasehold waits for a reader.
#[test]
fn a_command_is_asked_to_stop_and_its_lock_is_released_although_stderr_is_not_read() {
    use leasehold::model::{Holder, LockName};
    let sandbox = RunSandbox::new();
    let (_unread, full) = full_pipe();
    let start = |words: &str, script: &str| {
        let mut command = sandbox.command(words, &["sh", "-c", script]);
        command.stdout(std::process::Stdio::null()).stderr(full.try_clone().unwrap());
        super::support::Running::start(&mut command)
    };
    // The shell itself would wait for a reader when it reports that `sleep` was terminated.
    let script =
        r#"exec 2> /dev/null; trap 'exit 5' TERM; echo 1 > "$SANDBOX/ready"; while :; do sleep 0.05; done"#;
    let mut asked = start("a --ttl 6s", script);
    sandbox.wait_for_file("ready");
    let (lock, by) = (LockName::new("a").unwrap(), Holder::new("ada").unwrap());
    sandbox.ask(async |leasehold| leasehold.locks().request_release(&lock, by, None).await.unwrap());
    assert_eq!(asked.wait().code(), Some(5));
    let mut leaves_one_behind = start("b --ttl 60s", "sleep 1000 & exit 0");
    assert_eq!(leaves_one_behind.wait().code(), Some(0));
    assert!(sandbox.is_free("a") && sandbox.is_free("b"));
}

#[test]
fn a_run_whose_lock_is_held_exits_although_stderr_is_not_read() {
    let sandbox = RunSandbox::new();
    let _holder = sandbox.start("a --ttl 60s", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#);
    sandbox.wait_for_file("ready");
    let (_unread, full) = full_pipe();
    let mut command = sandbox.command("a", &["true"]);
    command.stdout(std::process::Stdio::null()).stderr(full);
    assert_eq!(super::support::Running::start(&mut command).wait().code(), Some(75));
}

/// The lease was lost before the first renewal: only the release reveals it.
#[test]
fn a_loss_found_by_the_release_is_reported() {
    let sandbox = RunSandbox::new();
    let script = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.01; done; exit 0"#;
    let running = sandbox.start("a --ttl 60s", script);
    sandbox.wait_for_file("ready");
    sandbox.force("a");
    std::fs::write(sandbox.path("go"), "").unwrap();
    let out = running.output();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(79), "{said}");
    assert!(said.contains("the lease on lock 'a' was lost: "), "{said}");
    assert!(!said.contains("could not be released"), "{said}");
}

#[test]
fn a_command_that_released_its_lease_has_lost_it() {
    let sandbox = RunSandbox::new();
    let script = format!(
        r#"{} -q locks release a --lease-id "$LEASEHOLD_LEASE_ID" --token "$LEASEHOLD_TOKEN"; exit 0"#,
        env!("CARGO_BIN_EXE_leasehold")
    );
    let out = sandbox.start("a --ttl 60s", &script).output();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(79), "{said}");
    assert!(said.contains("the lease on lock 'a' was lost: "), "{said}");
}
