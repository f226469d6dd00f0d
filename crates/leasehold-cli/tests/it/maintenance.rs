//! Sweep, fence, store, doctor, completions, man.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::support::{Sandbox, shape};

#[test]
fn a_sweep_removes_expired_leases() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.ok("sweep"), "nothing to sweep\n");
    sandbox.hold("a --ttl 50ms");
    sandbox.ok("locks wait a --for free --timeout 30s");
    assert_eq!(sandbox.ok("sweep"), "swept 1 lease and 0 tickets; granted to 0 waiters\n");
    insta::assert_snapshot!(sandbox.ok("sweep --json"), @r#"
    {
      "success": true,
      "leases": 0,
      "tickets": 0,
      "granted": 0
    }
    "#);
    assert!(sandbox.ok("history a").contains("expired"));
}

#[test]
fn a_token_is_valid_as_long_as_its_lease() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let check = format!("fence check a --token {}", held.token);
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok(&check)), @"token [TOKEN] is valid: ada holds 'a' until [TIME]");
    insta::assert_snapshot!(shape(sandbox.json(&check)), @r#"
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
    sandbox.ok(&format!("locks release a {}", held.with));
    let told = |words: &str| {
        let ran = sandbox.run(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{words}");
        sandbox.tidy(&ran.stderr)
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
    hint: check where the token and the lock name come from, and which store is used
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
    let sandbox = Sandbox::new();
    let told = sandbox.tidy(&sandbox.ok("store init"));
    assert_eq!(told, "sqlite:[TEMP]/store.db is ready\n");
    assert!(sandbox.path().join("store.db").exists());
    sandbox.hold("a");
    insta::assert_snapshot!(sandbox.tidy(&sandbox.ok("store init --json")), @r#"
    {
      "success": true,
      "store": "sqlite:[TEMP]/store.db",
      "engine": "sqlite"
    }
    "#);
    assert_eq!(sandbox.json("locks status a")["isLocked"], true);
    assert_eq!(sandbox.run("--store mysql: store init").code, 78);
}

#[test]
fn the_doctor_finds_a_healthy_store_healthy() {
    let sandbox = Sandbox::new();
    let told = sandbox.tidy(&sandbox.ok("doctor"));
    let lines: Vec<_> =
        told.lines().filter(|line| !line.contains("round trip") && !line.contains("containment")).collect();
    insta::assert_snapshot!(lines.join("\n").replace(std::env::consts::ARCH, "[ARCH]"), @"
    ✓ leasehold  0.1.0, linux [ARCH]
    ✓ store  sqlite:[TEMP]/store.db (from LEASEHOLD_STORE)
    ✓ reachable  opened sqlite:[TEMP]/store.db
    ✓ clock  the store's clock agrees with this machine's
    ✓ engine  sqlite, for every process of this machine; a ttl of [AGE] or more; waiters are notified, and poll every [AGE]
    ✓ permissions  only the owner can read or write the file (mode 600)
    ✓ processes  a lock whose process has died is free at once
    ");
    assert!(told.contains("✓ round trip  ") && told.contains("✓ containment  "), "{told}");
    let report = sandbox.json("doctor");
    assert_eq!(report["ok"], true);
    assert_eq!(report["checks"][1]["status"], "ok");
    assert_eq!(report["checks"][1]["name"], "containment");
}

#[test]
fn the_doctor_warns_of_a_store_that_others_can_read() {
    let sandbox = Sandbox::new();
    sandbox.ok("doctor");
    fs::set_permissions(sandbox.path().join("store.db"), fs::Permissions::from_mode(0o644)).unwrap();
    let told = sandbox.tidy(&sandbox.ok("doctor"));
    let lines: Vec<_> = told.lines().skip_while(|line| !line.starts_with('!')).take(2).collect();
    insta::assert_snapshot!(lines.join("\n"), @"
    ! permissions  users other than the owner can read the file (mode 644) [STORE_OPEN_TO_OTHERS]
      hint: unless this is intended: chmod 600 '[TEMP]/store.db'
    ");
    let checks = sandbox.json("doctor")["checks"].clone();
    let warning = checks.as_array().unwrap().iter().find(|check| check["status"] == "warning").unwrap();
    assert_eq!(warning["code"], "STORE_OPEN_TO_OTHERS");
}

#[test]
fn the_doctor_explains_a_broken_store() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path().join("store.db"), "not a database".repeat(100)).unwrap();
    let ran = sandbox.run("doctor");
    assert_eq!(ran.code, 78);
    let lines: Vec<_> = ran.stdout.lines().skip(2).collect();
    insta::assert_snapshot!(sandbox.tidy(&lines.join("\n")), @"
    ✓ store  sqlite:[TEMP]/store.db (from LEASEHOLD_STORE)
    ✗ store  the store [TEMP]/store.db is not a database
      hint: name another file with --store sqlite:PATH
      cause: Error code 26: file is not a database
    ");
    let ran = sandbox.run("doctor --json");
    assert_eq!(ran.code, 78);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap()["ok"], false);
    assert_eq!(sandbox.run("--store mysql: doctor").code, 78);
}

/// An idle lock is deleted from the store, and its tokens still increase afterwards.
#[test]
fn an_idle_lock_is_deleted_on_request() {
    let sandbox = Sandbox::new();
    let lease = sandbox.json("locks acquire order-1 --ttl 1m");
    assert_eq!(sandbox.ok("sweep --forget-after 1ms"), "nothing to sweep\n", "it is held");
    let (id, token) = (lease["leaseId"].as_str().unwrap(), lease["token"].as_u64().unwrap());
    sandbox.ok(&format!("locks release order-1 --lease-id {id} --token {token}"));
    std::thread::sleep(std::time::Duration::from_millis(5));
    assert_eq!(sandbox.json("sweep --forget-after 1ms")["forgotten"], 1);
    assert_eq!(sandbox.json("locks list").as_array().unwrap().len(), 0);
    assert!(sandbox.ok("locks status order-1").contains("free"));
    let checked = sandbox.run(&format!("fence check order-1 --token {token}"));
    assert_eq!(checked.code, 1, "{}", checked.stderr);
    assert!(checked.stderr.contains("its lease was released at "), "{}", checked.stderr);
    assert!(sandbox.ok("history order-1").contains("released"));
    assert!(sandbox.json("locks acquire order-1")["token"].as_u64().unwrap() > token);
}

#[test]
fn completions_are_written_for_every_shell() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = sandbox.ok(&format!("completions {shell}"));
        assert!(script.contains("LEASEHOLD_COMPLETE"), "{shell}: {script}");
    }
    assert!(!sandbox.path().join("store.db").exists());
}

#[test]
fn the_manual_has_a_section_for_every_command() {
    let sandbox = Sandbox::new();
    let page = sandbox.ok("man");
    assert!(page.contains(".TH leasehold 1"), "{page}");
    for command in ["RUN", "LOCKS LIST", "LOCKS ACQUIRE", "FENCE CHECK", "STORE INIT", "DOCTOR"] {
        assert!(page.contains(&format!(".SH \"LEASEHOLD {command}\"\n")), "{command}");
    }
    assert_eq!(page.matches(".SH NAME").count(), 1);
    assert_eq!(page.matches("GLOBAL OPTIONS").count(), 1);
    assert!(page.contains(".SH \"STORES AND EXIT CODES\"\n.nf\n"), "{page}");
}

/// SQLite silently ignores everything after a damaged frame of the log.
#[test]
fn the_doctor_warns_of_a_damaged_log() {
    let sandbox = Sandbox::new();
    sandbox.ok("run a -- true");
    // The last connection to close moves the log into the database, and a new log begins.
    drop(
        rusqlite::Connection::open(sandbox.path().join("store.db"))
            .unwrap()
            .execute_batch("SELECT * FROM leasehold_locks"),
    );
    for _ in 0..2 {
        sandbox.ok("run a -- true");
    }
    assert!(!sandbox.ok("doctor").contains("STORE_LOG_DAMAGED"));
    let log = sandbox.path().join("store.db-wal");
    let mut bytes = fs::read(&log).unwrap();
    // In the second frame.
    bytes[5000..5064].fill(7);
    fs::write(&log, &bytes).unwrap();
    let told = sandbox.ok("doctor");
    assert!(told.contains("ignored [STORE_LOG_DAMAGED]"), "{told}");
    assert_eq!(fs::read(&log).unwrap(), bytes, "doctor only looks");
    fs::write(&log, [7; 9000]).unwrap();
    let told = sandbox.ok("doctor");
    assert!(told.contains("the log is not an SQLite log and is ignored [STORE_LOG_DAMAGED]"), "{told}");
}

#[test]
fn too_low_a_limit_on_open_files_is_reported() {
    let sandbox = Sandbox::new();
    for words in ["locks list", "run a -- true", "doctor", "tasks counts"] {
        let mut command = sandbox.command_in(&["sh", "-c", "ulimit -n 10; exec \"$0\" \"$@\""], words);
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
