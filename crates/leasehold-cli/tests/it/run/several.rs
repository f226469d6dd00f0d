//! Several locks: held from the grant on, and released when the command is dead.

use std::time::{Duration, Instant};

use super::support::{RunSandbox, text, wait_until};

/// The second lock is held for three times the ttl of the first.
#[test]
fn the_first_lock_is_held_while_the_second_is_awaited() {
    let sandbox = RunSandbox::new();
    let hold = r#"echo 1 > "$SANDBOX/ready"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.02; done"#;
    let other = sandbox.start("b", hold);
    sandbox.wait_for_file("ready");
    let both = sandbox.start("a --with b --ttl 2s --wait 60s", r#"echo done > "$SANDBOX/done""#);
    let first = wait_until("the first lock", || Some(sandbox.status("a")).filter(|status| status.is_locked));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        let now = sandbox.status("a");
        assert!(now.is_locked && now.token == first.token, "after {:?}: {now:?}", start.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    std::fs::write(sandbox.path("go"), "").unwrap();
    assert!(other.output().status.success());
    let out = both.output();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(said.contains("waiting for lock 'b', held by "), "{said}");
    assert!(!said.contains("waiting for lock 'a'"), "it does not wait for itself: {said}");
    assert_eq!(sandbox.wait_for_file("done"), "done\n");
}

#[test]
fn losing_one_releases_the_others_when_the_command_is_dead_and_not_before() {
    let sandbox = RunSandbox::new();
    let script = r#"
        trap 'echo 1 > "$SANDBOX/asked"; while ! [ -e "$SANDBOX/go" ]; do sleep 0.02; done; exit 0' TERM
        echo 1 > "$SANDBOX/ready"; while :; do sleep 0.02; done"#;
    let running = sandbox.start("a --with b --ttl 30s --kill-after 10s --renew-at 0.05", script);
    sandbox.wait_for_file("ready");
    sandbox.force("a");
    sandbox.wait_for_file("asked");
    assert!(sandbox.status("b").is_locked, "the command still runs");
    std::fs::write(sandbox.path("go"), "").unwrap();
    let out = running.output();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(79), "{said}");
    assert!(said.contains("the lease on lock 'a' was lost"), "{said}");
    // Released, not only known to be dead.
    assert!(sandbox.status("b").holders.is_empty(), "{:?}", sandbox.status("b"));
}
