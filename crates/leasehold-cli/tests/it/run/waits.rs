//! Waiting for the lock, not getting it, and asking for one's own.

use nix::sys::signal::Signal;

use super::lab::{Lab, text, wait_until};

#[test]
fn a_lock_that_is_taken_says_who_has_it() {
    let lab = Lab::new();
    let holder = lab.start("a", r#"echo 1 > "$LAB/ready"; sleep 1000"#);
    lab.wait_for_file("ready");
    let out = lab.output("a", &["touch", lab.path("never").to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(75));
    let said = text(&out.stderr);
    assert!(said.starts_with("leasehold: Execution blocked: lock 'a' held by "), "{said}");
    assert!(said.contains(&format!(":{} until ", holder.front)), "{said}");
    assert!(!lab.path("never").exists());
}

#[test]
fn who_waits_gets_the_lock_when_it_is_free_and_not_before() {
    let lab = Lab::new();
    let script =
        r#"echo 1 > "$LAB/ready"; while ! [ -e "$LAB/go" ]; do sleep 0.02; done; echo first >> "$LAB/order""#;
    let first = lab.start("a", script);
    lab.wait_for_file("ready");
    let second = lab.start("a --wait forever", r#"echo second >> "$LAB/order""#);
    wait_until("the ticket", || (lab.status("a").waiters.len() == 1).then_some(()));
    std::fs::write(lab.path("go"), "").unwrap();
    assert!(first.output().status.success());
    let out = second.output();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(lab.wait_for_file("order"), "first\nsecond\n");
}

#[test]
fn patience_ends() {
    let lab = Lab::new();
    let _holder = lab.start("a", r#"echo 1 > "$LAB/ready"; sleep 1000"#);
    lab.wait_for_file("ready");
    let out = lab.output("a --wait 2s", &["true"]);
    assert_eq!(out.status.code(), Some(75));
    let said = text(&out.stderr);
    assert!(said.contains("waiting for lock 'a', held by "), "{said}");
    assert!(said.contains("Execution blocked: lock 'a' held by "), "{said}");
}

#[test]
fn an_interrupt_while_waiting_leaves_the_queue() {
    let lab = Lab::new();
    let _holder = lab.start("a", r#"echo 1 > "$LAB/ready"; sleep 1000"#);
    lab.wait_for_file("ready");
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let waiting = lab.start("a --wait forever", "true");
        wait_until("the ticket", || (lab.status("a").waiters.len() == 1).then_some(()));
        waiting.signal(signal);
        assert_eq!(waiting.output().status.code(), Some(code));
        assert_eq!(lab.status("a").waiters.len(), 0);
    }
}

#[test]
fn a_run_inside_a_run_of_the_same_lock_is_refused_with_a_hint() {
    let lab = Lab::new();
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    let same = lab.output("a --wait forever", &[leasehold, "run", "a", "--wait", "forever", "--", "true"]);
    assert_eq!(same.status.code(), Some(75));
    assert!(text(&same.stderr).contains("lock 'a' is held by the leasehold run around this one"));
    let other = lab.output("a", &[leasehold, "run", "b", "--", "sh", "-c", "echo $LEASEHOLD_LOCKS"]);
    assert_eq!(text(&other.stdout), "a b\n");
    let deep = lab.output("a", &[leasehold, "run", "b", "--", leasehold, "run", "a", "--", "true"]);
    assert_eq!(deep.status.code(), Some(75));
}

#[test]
fn durations_that_do_not_fit_are_a_usage_error() {
    let lab = Lab::new();
    for words in ["a --ttl 10s --kill-after 5s", "a --ttl 500ms"] {
        let out = lab.output(words, &["true"]);
        assert_eq!(out.status.code(), Some(64), "{words}");
        assert!(text(&out.stderr).starts_with("leasehold: "), "{}", text(&out.stderr));
    }
    assert!(lab.output("a --ttl 1s", &["true"]).status.success());
}

#[test]
fn a_store_that_cannot_be_opened_is_told_apart() {
    let lab = Lab::new();
    let mut run = lab.command("a", &["true"]);
    run.env("LEASEHOLD_STORE", "nonsense:x").stderr(std::process::Stdio::piped());
    let out = super::lab::Running::start(&mut run).output();
    assert_eq!(out.status.code(), Some(78), "{}", text(&out.stderr));
}
