//! Sweep, fence, store, doctor, completions, man.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::support::{Bench, shape};

#[test]
fn a_sweep_clears_what_has_ended() {
    let bench = Bench::new();
    assert_eq!(bench.ok("sweep"), "nothing to sweep\n");
    bench.hold("a --ttl 50ms");
    bench.ok("locks wait a --for free --timeout 30s");
    assert_eq!(bench.ok("sweep"), "swept 1 lease and 0 tickets; 0 waiters served\n");
    insta::assert_snapshot!(bench.ok("sweep --json"), @r#"
    {
      "success": true,
      "leases": 0,
      "tickets": 0,
      "served": 0
    }
    "#);
    assert!(bench.ok("history a").contains("expired"));
}

#[test]
fn a_token_is_good_as_long_as_its_lease_lives() {
    let bench = Bench::new();
    let held = bench.hold("a --holder ada");
    let check = format!("fence check a --token {}", held.token);
    insta::assert_snapshot!(bench.tidy(&bench.ok(&check)), @"token [TOKEN] is good: ada holds 'a' until [TIME]");
    insta::assert_snapshot!(shape(bench.json(&check)), @r#"
    {
      "expiresAt": "[TIME]",
      "holder": "ada",
      "lock": "a",
      "name": "a",
      "newest": "[TOKEN]",
      "success": true,
      "token": "[TOKEN]",
      "valid": true
    }
    "#);
    bench.ok(&format!("locks release a {}", held.with));
    let told = |words: &str| {
        let ran = bench.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{words}");
        bench.tidy(&ran.stderr)
    };
    insta::assert_snapshot!(told(&check), @"
    leasehold: token [TOKEN] of lock 'a' is stale: its lease was released at [TIME]
    hint: stop: another holder may be granted the lock at any time
    ");
    insta::assert_snapshot!(told("fence check a --token 7"), @"
    leasehold: token 7 of lock 'a' is stale: [TOKEN] is the newest
    hint: stop: another holder may be granted the lock at any time
    ");
    insta::assert_snapshot!(told("fence check a --token 9007199254740991"), @"
    leasehold: token [TOKEN] was never granted for lock 'a': [TOKEN] is the newest
    hint: look at where the token and the name come from, and at which store
    ");
    insta::assert_snapshot!(shape(serde_json::from_str(&told(&format!("{check} --json"))).unwrap()), @r#"
    {
      "code": "STALE_TOKEN",
      "error": "token [TOKEN] of lock 'a' is stale: its lease was released at [TIME]",
      "hint": "stop: another holder may be granted the lock at any time",
      "success": false
    }
    "#);
}

#[test]
fn a_store_is_made_ready_once_and_stays_so() {
    let bench = Bench::new();
    let told = bench.tidy(&bench.ok("store init"));
    assert_eq!(told, "sqlite:[TEMP]/store.db is ready\n");
    assert!(bench.path().join("store.db").exists());
    bench.hold("a");
    insta::assert_snapshot!(bench.tidy(&bench.ok("store init --json")), @r#"
    {
      "success": true,
      "store": "sqlite:[TEMP]/store.db",
      "engine": "sqlite"
    }
    "#);
    assert_eq!(bench.json("locks status a")["isLocked"], true);
    assert_eq!(bench.run("--store mysql: store init").code, 78);
}

#[test]
fn the_doctor_finds_a_healthy_store_healthy() {
    let bench = Bench::new();
    let told = bench.tidy(&bench.ok("doctor"));
    let lines: Vec<_> =
        told.lines().filter(|line| !line.contains("round trip") && !line.contains("containment")).collect();
    insta::assert_snapshot!(lines.join("\n").replace(std::env::consts::ARCH, "[ARCH]"), @"
    ✓ leasehold  0.1.0, linux [ARCH]
    ✓ store  sqlite:[TEMP]/store.db (from LEASEHOLD_STORE)
    ✓ reachable  opened sqlite:[TEMP]/store.db
    ✓ clock  the store's clock agrees with this machine's
    ✓ engine  sqlite, for every process of this machine; a ttl of [AGE] or more; waiters are woken, and look every [AGE]
    ✓ permissions  only its owner can use it (mode 600)
    ✓ processes  a lock whose process has died is free at once
    ");
    assert!(told.contains("✓ round trip  ") && told.contains("✓ containment  "), "{told}");
    let report = bench.json("doctor");
    assert_eq!(report["ok"], true);
    assert_eq!(report["checks"][1]["status"], "ok");
    assert_eq!(report["checks"][1]["name"], "containment");
}

#[test]
fn the_doctor_warns_of_a_store_that_others_can_read() {
    let bench = Bench::new();
    bench.ok("doctor");
    fs::set_permissions(bench.path().join("store.db"), fs::Permissions::from_mode(0o644)).unwrap();
    let told = bench.tidy(&bench.ok("doctor"));
    let lines: Vec<_> = told.lines().skip_while(|line| !line.starts_with('!')).take(2).collect();
    insta::assert_snapshot!(lines.join("\n"), @"
    ! permissions  others than its owner can read it (mode 644) [STORE_OPEN_TO_OTHERS]
      hint: unless that is wanted: chmod 600 '[TEMP]/store.db'
    ");
    let checks = bench.json("doctor")["checks"].clone();
    let warning = checks.as_array().unwrap().iter().find(|check| check["status"] == "warning").unwrap();
    assert_eq!(warning["code"], "STORE_OPEN_TO_OTHERS");
}

#[test]
fn the_doctor_says_what_is_wrong_with_a_store() {
    let bench = Bench::new();
    fs::write(bench.path().join("store.db"), "not a database".repeat(100)).unwrap();
    let ran = bench.run("doctor");
    assert_eq!(ran.code, 78);
    let lines: Vec<_> = ran.stdout.lines().skip(2).collect();
    insta::assert_snapshot!(bench.tidy(&lines.join("\n")), @"
    ✓ store  sqlite:[TEMP]/store.db (from LEASEHOLD_STORE)
    ✗ store  the store [TEMP]/store.db is no database
      hint: name another file with --store sqlite:PATH
      cause: Error code 26: file is not a database
    ");
    let ran = bench.run("doctor --json");
    assert_eq!(ran.code, 78);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["ok"], false);
    assert_eq!(bench.run("--store mysql: doctor").code, 78);
}

/// A lock per order: once it is idle nothing is left of it, and its tokens rise all the same.
#[test]
fn an_idle_lock_is_forgotten_when_that_is_asked_for() {
    let bench = Bench::new();
    let lease = bench.json("locks acquire order-1 --ttl 1m");
    assert_eq!(bench.ok("sweep --forget-after 1ms"), "nothing to sweep\n", "it is held");
    let (id, token) = (lease["leaseId"].as_str().unwrap(), lease["token"].as_u64().unwrap());
    bench.ok(&format!("locks release order-1 --lease-id {id} --token {token}"));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(bench.json("sweep --forget-after 1ms")["forgotten"], 1);
    assert_eq!(bench.json("locks list").as_array().unwrap().len(), 0);
    assert!(bench.ok("locks status order-1").contains("free"));
    let checked = bench.run(&format!("fence check order-1 --token {token}"));
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    assert!(checked.stderr.contains("its lease was released at "), "{}", checked.stderr);
    assert!(bench.ok("history order-1").contains("released"));
    assert!(bench.json("locks acquire order-1")["token"].as_u64().unwrap() > token);
}

#[test]
fn completions_are_written_for_every_shell() {
    let bench = Bench::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = bench.ok(&format!("completions {shell}"));
        assert!(script.contains("locks") && script.contains("doctor"), "{shell}");
    }
    assert!(!bench.path().join("store.db").exists());
}

#[test]
fn the_manual_has_a_section_for_every_command() {
    let bench = Bench::new();
    let page = bench.ok("man");
    assert!(page.contains(".TH leasehold 1"), "{page}");
    for command in ["RUN", "LOCKS LIST", "LOCKS ACQUIRE", "FENCE CHECK", "STORE INIT", "DOCTOR"] {
        assert!(page.contains(&format!(".SH \"LEASEHOLD {command}\"\n")), "{command}");
    }
    assert_eq!(page.matches(".SH NAME").count(), 1);
    assert_eq!(page.matches("GLOBAL OPTIONS").count(), 1);
    assert!(page.contains(".SH \"STORES AND EXIT CODES\"\n.nf\n"), "{page}");
}

/// What is behind a damaged frame of the log is ignored by SQLite, without a word.
#[test]
fn the_doctor_warns_of_a_log_that_ends_too_early() {
    let bench = Bench::new();
    bench.ok("run a -- true");
    // The last connection to end puts the log into the database, and so a new one begins.
    drop(
        rusqlite::Connection::open(bench.path().join("store.db"))
            .unwrap()
            .execute_batch("SELECT * FROM locks"),
    );
    for _ in 0..2 {
        bench.ok("run a -- true");
    }
    assert!(!bench.ok("doctor").contains("STORE_LOG_DAMAGED"));
    let log = bench.path().join("store.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    // In the second frame.
    bytes[5000..5064].fill(7);
    fs::write(&log, &bytes).unwrap();
    let told = bench.ok("doctor");
    assert!(told.contains("ignored [STORE_LOG_DAMAGED]"), "{told}");
    assert_eq!(fs::read(&log).unwrap(), bytes, "doctor only looks");
    fs::write(&log, [7; 9000]).unwrap();
    let told = bench.ok("doctor");
    assert!(told.contains("the log is not one of SQLite, and is ignored [STORE_LOG_DAMAGED]"), "{told}");
}

#[test]
fn too_low_a_limit_on_open_files_is_told() {
    let bench = Bench::new();
    for words in ["locks list", "run a -- true", "doctor", "tasks counts"] {
        let mut command = bench.command_in(&["sh", "-c", "ulimit -n 10; exec \"$0\" \"$@\""], words);
        let ran = crate::support::run(&mut command);
        assert_eq!(ran.code, 78, "{words}: {ran:?}");
        assert!(ran.stderr.contains("may open only"), "{words}: {ran:?}");
        assert!(
            ran.stderr.contains("hint: raise the limit, such as with: ulimit -n 256"),
            "{words}: {ran:?}"
        );
        assert!(!ran.stderr.contains("panicked"), "{words}: {ran:?}");
    }
}
