//! Waiting for the lock, conflicts, and requests for a lock of the enclosing run.

use nix::sys::signal::Signal;

use super::support::{RunSandbox, text, wait_until};

#[test]
fn a_held_lock_names_its_holder() {
    let sandbox = RunSandbox::new();
    let holder = sandbox.start("a", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#);
    sandbox.wait_for_file("ready");
    let out = sandbox.output("a", &["touch", sandbox.path("never").to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(75));
    let said = text(&out.stderr);
    assert!(said.starts_with("leasehold: Execution blocked: lock 'a' held by "), "{said}");
    assert!(said.contains(&format!(":{} until ", holder.supervisor)), "{said}");
    assert!(!sandbox.path("never").exists());
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_free_and_not_before() {
    let sandbox = RunSandbox::new();
    let script = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.02; done; echo first >> "$SANDBOX/order""#;
    let first = sandbox.start("a", script);
    sandbox.wait_for_file("ready");
    let second = sandbox.start("a --wait forever", r#"echo second >> "$SANDBOX/order""#);
    wait_until("the ticket", || (sandbox.status("a").waiters.len() == 1).then_some(()));
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert!(first.output().status.success());
    let out = second.output();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(sandbox.wait_for_file("order"), "first\nsecond\n");
}

/// Only a signal that asks a program to stop makes a waiter give up, also between the hand-over of the lock and the
/// start of the command: a lease that was handed over is too short for this `--kill-after` until its renewal.
#[test]
fn the_resize_of_a_terminal_ends_no_waiter() {
    let sandbox = RunSandbox::new();
    let script = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.02; done"#;
    let holder = sandbox.start("a", script);
    sandbox.wait_for_file("ready");
    let mut waiter =
        sandbox.start("a --wait forever --ttl 60s --kill-after 20s", r#"echo 1 > "$SANDBOX/second""#);
    wait_until("the ticket", || (sandbox.status("a").waiters.len() == 1).then_some(()));
    std::fs::write(sandbox.path("go"), "").unwrap();
    wait_until("the start of the command", || {
        let _ = nix::sys::signal::kill(waiter.supervisor, Signal::SIGWINCH);
        std::thread::sleep(std::time::Duration::from_millis(5));
        let has_ended = !super::support::is_alive(waiter.supervisor);
        (has_ended || sandbox.path("second").exists()).then_some(())
    });
    assert_eq!(waiter.wait().code(), Some(0));
    assert!(holder.output().status.success());
    assert_eq!(sandbox.wait_for_file("second"), "1\n");
}

#[test]
fn a_wait_for_the_lock_ends_in_time() {
    let sandbox = RunSandbox::new();
    let _holder = sandbox.start("a", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#);
    sandbox.wait_for_file("ready");
    let out = sandbox.output("a --wait 2s", &["true"]);
    assert_eq!(out.status.code(), Some(75));
    let said = text(&out.stderr);
    assert!(said.contains("waiting for lock 'a', held by "), "{said}");
    assert!(said.contains("Execution blocked: lock 'a' held by "), "{said}");
}

#[test]
fn an_interrupt_while_waiting_leaves_the_queue() {
    let sandbox = RunSandbox::new();
    let _holder = sandbox.start("a", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#);
    sandbox.wait_for_file("ready");
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let waiting = sandbox.start("a --wait forever", "true");
        wait_until("the ticket", || (sandbox.status("a").waiters.len() == 1).then_some(()));
        waiting.signal(signal);
        assert_eq!(waiting.output().status.code(), Some(code));
        assert_eq!(sandbox.status("a").waiters.len(), 0);
    }
}

#[test]
fn a_run_inside_a_run_of_the_same_lock_is_refused_with_a_hint() {
    let sandbox = RunSandbox::new();
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    let same =
        sandbox.output("a --wait forever", &[leasehold, "run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(same.status.code(), Some(75));
    assert!(text(&same.stderr).contains("lock 'a' is held by the enclosing leasehold run"));
    let other = sandbox.output("a", &[leasehold, "run", "b", "--", "sh", "-c", "echo $LEASEHOLD_LOCKS"]);
    assert_eq!(text(&other.stdout), "a b\n");
    let deep = sandbox.output("a", &[leasehold, "run", "b", "--", leasehold, "run", "a", "--", "true"]);
    assert_eq!(deep.status.code(), Some(75));
}

#[test]
fn a_run_inside_a_run_shares_its_lock_and_does_not_wait_for_it() {
    let sandbox = RunSandbox::new();
    let nested = |outer: &str, options: &[&str]| {
        let run = [env!("CARGO_BIN_EXE_leasehold"), "run", "a", "--wait", "forever"];
        sandbox.output(outer, &[&run[..], options, &["--", "true"]].concat())
    };
    for options in [&["--shared"][..], &["--slots", "2"]] {
        let out = nested(&format!("a {}", options.join(" ")), options);
        assert!(out.status.success(), "{options:?}: {}", text(&out.stderr));
    }
    assert_eq!(nested("a", &["--shared"]).status.code(), Some(75));
}

#[test]
fn durations_that_do_not_fit_are_a_usage_error() {
    let sandbox = RunSandbox::new();
    for words in ["a --ttl 10s --kill-after 5s", "a --ttl 500ms"] {
        let out = sandbox.output(words, &["true"]);
        assert_eq!(out.status.code(), Some(64), "{words}");
        assert!(text(&out.stderr).starts_with("leasehold: "), "{}", text(&out.stderr));
    }
    assert!(sandbox.output("a --ttl 1s", &["true"]).status.success());
}

#[test]
fn a_store_that_cannot_be_opened_has_its_own_error() {
    let sandbox = RunSandbox::new();
    let mut run = sandbox.command("a", &["true"]);
    run.env("LEASEHOLD_STORE", "nonsense:x").stderr(std::process::Stdio::piped());
    let out = super::support::Running::start(&mut run).output();
    assert_eq!(out.status.code(), Some(78), "{}", text(&out.stderr));
}
