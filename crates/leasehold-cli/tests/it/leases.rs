//! Leases without a process: acquire, renew, release, by id and token.

use super::support::{Sandbox, shape};

#[test]
fn a_lease_is_taken_renewed_and_released() {
    let sandbox = Sandbox::new();
    let taken = sandbox.run("locks acquire a --holder ada --ttl 1h");
    assert_eq!(taken.code, 0);
    insta::assert_snapshot!(sandbox.tidy(&taken.stdout), @"
    a  held by ada until [TIME] (in [AGE])
      lease id  [ID]
      token  [TOKEN]
    ");
    assert_eq!(taken.stderr, "");
    let status = sandbox.json("locks status a");
    let held = &status["holders"][0];
    let with = format!("--lease-id {} --token {}", held["leaseId"].as_str().unwrap(), held["token"]);
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok(&format!("locks renew a {with} --ttl 2h"))), @"renewed 'a' until [TIME] (in [AGE])");
    assert_eq!(sandbox.json("locks status a")["holders"][0]["ttlSeconds"], 7200.0);
    insta::assert_snapshot!(sandbox.ok(&format!("locks release a {with}")), @"released 'a'");
    assert_eq!(sandbox.json("locks status a")["isLocked"], false);
}

#[test]
fn programs_get_json() {
    let sandbox = Sandbox::new();
    insta::assert_snapshot!(
        "json-acquire",
        shape(sandbox.json("locks acquire b --with a --holder ada --ttl 1h"))
    );
    let held = sandbox.hold("c --holder ada --shared");
    insta::assert_snapshot!("json-renew", shape(sandbox.json(&format!("locks renew c {}", held.with))));
    insta::assert_snapshot!("json-release", shape(sandbox.json(&format!("locks release c {}", held.with))));
}

#[test]
fn quiet_is_only_the_result() {
    let sandbox = Sandbox::new();
    assert_ne!(sandbox.run("locks list").stderr, "");
    assert_eq!(sandbox.run("-q locks list").stderr, "");
}

#[test]
fn a_conflict_names_the_holder_and_the_next_step() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    let ran = sandbox.run("locks acquire a --holder bob");
    assert_eq!((ran.code, ran.stdout.as_str()), (75, ""));
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: Execution blocked: lock 'a' held by ada until [TIME] (in [AGE])
    hint: wait for it with --wait 10m, or see why with: leasehold locks why a
    ");
    let ran = sandbox.run("locks acquire a --holder bob -E 7 --json");
    assert_eq!((ran.code, ran.stdout.as_str()), (7, ""));
    insta::assert_snapshot!("json-conflict", shape(serde_json::from_str(&ran.stderr).unwrap()));
}

#[test]
fn a_conflict_with_the_callers_own_lease_says_so() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let ran = sandbox.run("locks acquire a --holder ada");
    assert_eq!(ran.code, 75);
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: Execution blocked: lock 'a' held by yourself (ada) until [TIME] (in [AGE])
    hint: you already hold the lock: do the work under that lease, or release it first
    ");
    let mut inside = sandbox.command(["locks", "acquire", "a"]);
    inside.env("LEASEHOLD_HOLDER", "ada").env("LEASEHOLD_LOCK", "a");
    let ran = super::support::run(inside.env("LEASEHOLD_TOKEN", &held.token));
    assert!(ran.stderr.contains("held by yourself (ada) until"), "{}", ran.stderr);
    // The first processes of two containers on one host have the same holder name, but different
    // leases.
    let ran = super::support::run(inside.env("LEASEHOLD_TOKEN", "1"));
    assert!(ran.stderr.contains("held by ada until"), "{}", ran.stderr);
}

#[test]
fn several_locks_are_all_or_none() {
    let sandbox = Sandbox::new();
    sandbox.hold("b --holder ada");
    let ran = sandbox.run("locks acquire c --with a --with b");
    assert_eq!(ran.code, 75);
    for free in ["a", "c"] {
        assert_eq!(sandbox.json(&format!("locks status {free}"))["isLocked"], false, "{free}");
    }
}

#[test]
fn another_lease_is_not_renewed_or_released() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let other = sandbox.hold("b");
    for words in ["renew", "release"] {
        let ran = sandbox.run(&format!("locks {words} a {}", other.with));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        assert!(
            ran.stderr.contains("lock 'a' is not held by that lease; ada has it until"),
            "{}",
            ran.stderr
        );
        let said = sandbox.tidy(&ran.stderr);
        assert!(said.contains("hint: see what happened with: leasehold history a"), "{said}");
    }
    sandbox.ok(&format!("locks release a {}", held.with));
    assert_eq!(sandbox.run(&format!("locks release a {}", held.with)).code, 1);
}

#[test]
fn a_stale_lease_is_stolen_only_if_asked() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada --ttl 1h");
    assert_eq!(sandbox.run("locks acquire a --steal-stale 1h").code, 75);
    super::support::eventually("it is old enough", || {
        sandbox.run("locks acquire a --steal-stale 50ms").code == 0
    });
    assert!(sandbox.ok("history a").contains("stolen"));
}

#[test]
fn metadata_and_a_reason_are_stored() {
    let sandbox = Sandbox::new();
    let words = ["locks", "acquire", "a", "--meta", "ticket=42", "--meta", "user=me", "--reason", "to see"];
    assert_eq!(sandbox.run_words(&words).code, 0);
    let metadata = &sandbox.json("locks status a")["holders"][0]["metadata"];
    assert_eq!(metadata["ticket"], "42");
    assert_eq!(metadata["user"], "me");
    assert_eq!(metadata["reason"], "to see");
    assert_eq!(metadata["command"], "leasehold", "arguments may hold secrets");
    assert!(metadata["host"].is_string());
}

#[test]
fn the_default_holder_is_user_host_and_process() {
    let sandbox = Sandbox::new();
    sandbox.hold("a");
    let status = sandbox.json("locks status a");
    let (holder, metadata) = (status["holder"].as_str().unwrap(), &status["holders"][0]["metadata"]);
    let whom = format!("{}@{}:", metadata["user"].as_str().unwrap(), metadata["host"].as_str().unwrap());
    let process = holder.strip_prefix(&whom).unwrap();
    assert!(process.parse::<u32>().is_ok(), "{holder}");
}
