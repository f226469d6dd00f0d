//! Waiting in the queue for a lock, and `locks wait` and `locks ask`.

use std::process::Stdio;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::support::{Ran, Sandbox, run, shape};

#[test]
fn a_waiter_gets_the_lock_when_it_is_released() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let waiter = sandbox.start("locks acquire a --holder bob --wait forever --priority -3");
    let queued = sandbox.until("a", |status| status["waiters"][0]["holder"] == "bob");
    assert_eq!(queued["waiters"][0]["priority"], -3);
    let listed = sandbox.tidy(&sandbox.ok("locks list"));
    assert!(listed.contains("a  ada  [TOKEN]  [AGE]  in [AGE]  1  exclusive  active"), "{listed}");
    let why = sandbox.tidy(&sandbox.ok("locks why a"));
    assert!(
        why.contains("bob is next in the queue (exclusive, priority -3, for [AGE]): it waits for ada."),
        "{why}"
    );
    sandbox.ok(&format!("locks release a {}", held.with));
    let ran = Ran::from(waiter.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("a  held by bob until "), "{}", ran.stdout);
}

#[test]
fn a_lease_that_was_waited_for_lasts_for_its_ttl() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let waiter = sandbox.start("locks acquire a --holder bob --wait forever --ttl 1h");
    sandbox.until("a", |status| status["waiters"][0]["holder"] == "bob");
    sandbox.ok(&format!("locks release a {}", held.with));
    let ran = Ran::from(waiter.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    let status = sandbox.json("locks status a");
    let times = ["renewedAt", "expiresAt"].map(|key| status["holders"][0][key].as_str().unwrap());
    let [renewed, expires] = times.map(|time| time.parse::<jiff::Timestamp>().unwrap());
    assert!(expires.duration_since(renewed).as_secs() == 3600, "{status:#}");
}

#[test]
fn a_waiter_under_nohup_ignores_a_hangup() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let nohup = ["sh", "-c", r#"trap "" HUP; exec "$@""#, "sh"];
    let mut waiter = sandbox.command_in(&nohup, "locks acquire a --holder bob --wait forever");
    let waiter = waiter.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sandbox.until("a", |status| status["waiters"][0]["holder"] == "bob");
    kill(Pid::from_raw(i32::try_from(waiter.id()).unwrap()), Signal::SIGHUP).unwrap();
    sandbox.ok(&format!("locks release a {}", held.with));
    let ran = Ran::from(waiter.wait_with_output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn a_wait_ends_after_its_timeout() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    let ran = sandbox.run("locks acquire a --holder bob --wait 200ms");
    assert_eq!(ran.code, 75);
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: Execution blocked: lock 'a' held by ada until [TIME] (in [AGE]) (waited [AGE])
    hint: wait for it with --wait 10m, or see why with: leasehold locks why a
    ");
    assert_eq!(sandbox.json("locks status a")["waiters"], serde_json::json!([]));
}

#[test]
fn a_caller_does_not_wait_for_itself() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let inside = |words: &str| {
        let mut command = sandbox.command(words.split_whitespace());
        command.env("LEASEHOLD_HOLDER", "ada").env("LEASEHOLD_LOCK", "a");
        command.env("LEASEHOLD_TOKEN", &held.token);
        command
    };
    let ran = run(&mut inside("locks acquire a --wait forever --json"));
    assert_eq!((ran.code, ran.stdout.as_str()), (75, ""));
    let told: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert!(told["error"].as_str().unwrap().contains("held by yourself (ada)"), "{told}");
    assert_eq!(told["details"]["holders"][0]["holder"], "ada");
    // It may wait for other holders.
    sandbox.hold("b --holder bob --ttl 200ms");
    assert_eq!(run(&mut inside("locks acquire b --wait forever")).code, 0);
    sandbox.ok(&format!("locks release a {}", held.with));
    assert_eq!(run(&mut inside("locks acquire a --wait forever")).code, 0);
}

#[test]
fn a_waiter_that_is_interrupted_leaves_the_queue() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let waiter = sandbox.start("locks acquire a --holder bob --wait forever");
        sandbox.until("a", |status| status["waiters"][0]["holder"] == "bob");
        kill(Pid::from_raw(i32::try_from(waiter.id()).unwrap()), signal).unwrap();
        let ran = Ran::from(waiter.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.stdout.as_str()), (code, ""), "{ran:?}");
        assert_eq!(sandbox.json("locks status a")["waiters"], serde_json::json!([]));
    }
}

#[test]
fn waiting_for_a_state_takes_nothing() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok("locks wait a --for free"), "'a' is free\n");
    let held_waiter = sandbox.start("locks wait a --for held --json");
    let held = sandbox.hold("a --holder ada");
    let ran = Ran::from(held_waiter.wait_with_output().unwrap());
    assert_eq!(ran.code, 0);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["holder"], "ada");
    let free_waiter = sandbox.start("locks wait a --for free --timeout 30s");
    sandbox.ok(&format!("locks release a {}", held.with));
    let ran = Ran::from(free_waiter.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "'a' is free\n"));
    assert_eq!(sandbox.json("locks status a")["isLocked"], false);
}

#[test]
fn waiting_for_a_state_ends_in_time() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("locks wait a --for held --timeout 50ms");
    assert_eq!((ran.code, ran.stdout.as_str()), (75, ""));
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: lock 'a' is still free (waited [AGE])
    hint: give it longer with --timeout
    ");
    sandbox.hold("a --holder ada");
    let ran = sandbox.run("--json locks wait a --for free --timeout 0");
    assert_eq!(ran.code, 75);
    insta::assert_snapshot!(shape(serde_json::from_str(&ran.stderr).unwrap()), @r#"
    {
      "code": "TIMEOUT",
      "error": "lock 'a' is still held by ada until [TIME] (waited [AGE])",
      "hint": "give it longer with --timeout",
      "success": false
    }
    "#);
}

#[test]
fn a_release_request_reaches_the_holder_at_its_renewal() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("locks ask a");
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.stderr, @"leasehold: lock 'a' is not held");
    let held = sandbox.hold("a --holder ada");
    let ran = sandbox.run("locks ask a --reason hotfix");
    assert_eq!(ran.code, 0);
    insta::assert_snapshot!(format!("{}{}", ran.stdout, ran.stderr), @"
    asked 1 holder of 'a' to stop
    each holder is notified now, or at its next renewal at the latest, and may then release the lock
    ");
    let renewed = sandbox.run(&format!("locks renew a {}", held.with));
    assert!(renewed.stderr.ends_with(" asks you to stop: hotfix\n"), "{renewed:?}");
    insta::assert_snapshot!(shape(sandbox.json("locks ask a --reason again")), @r#"
    {
      "by": "[WHO]",
      "holders": 1,
      "lock": "a",
      "name": "a",
      "reason": "again",
      "success": true
    }
    "#);
}
