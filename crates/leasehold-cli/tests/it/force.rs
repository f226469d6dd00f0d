//! Forced release: only with confirmation, and only from the holder that was shown.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use nix::pty::openpty;

use super::support::{Ran, Sandbox, shape};

/// Runs on a terminal and types this when prompted. Returns the terminal output and the exit code.
fn on_a_terminal(sandbox: &Sandbox, words: &str, typed: &str) -> (String, i32) {
    let terminal = openpty(None, None).unwrap();
    let side = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = sandbox.command(words.split_whitespace());
    let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    drop((command, terminal.slave));
    let mut terminal = File::from(terminal.master);
    let (mut shown, mut buffer, mut answered) = (String::new(), [0; 4096], false);
    // When the command has exited, reading ends with an error.
    while let Ok(read @ 1..) = terminal.read(&mut buffer) {
        shown += &String::from_utf8_lossy(&buffer[..read]);
        if shown.contains("type the lock's name: ") && !answered {
            answered = true;
            terminal.write_all(typed.as_bytes()).unwrap();
        }
    }
    (shown, child.wait().unwrap().code().unwrap_or(-1))
}

fn force(sandbox: &Sandbox, more: &str) -> Ran {
    sandbox.run(&format!("locks release a --force --reason stuck {more}"))
}

#[test]
fn a_forced_release_makes_the_old_token_stale() {
    let sandbox = Sandbox::new();
    let held = sandbox.hold("a --holder ada");
    let ran = force(&sandbox, "--yes");
    assert_eq!(ran.code, 0, "{ran:?}");
    insta::assert_snapshot!(sandbox.tidy(&format!("{}{}", ran.stdout, ran.stderr)), @"
    took 'a' from ada
    the holder may still be working: token [TOKEN] is stale from now on for every resource that checks tokens
    ");
    let checked = sandbox.run(&format!("fence check a --token {}", held.token));
    assert_eq!(checked.code, 1);
    assert!(checked.stderr.contains("its lease was taken by force by "), "{}", checked.stderr);
    assert!(
        !checked.stderr.contains("granted this since"),
        "no other holder was granted the lock: {}",
        checked.stderr
    );
    assert_eq!(sandbox.run(&format!("locks renew a {}", held.with)).code, 1);
    let history = sandbox.ok("history a");
    assert!(history.contains("stuck"), "{history}");
}

#[test]
fn programs_get_the_lock_as_it_is_after() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    let after = sandbox.json("locks release a --force --reason stuck --yes");
    insta::assert_snapshot!(shape(after), @r#"
    {
      "holders": [],
      "isLocked": false,
      "isStale": false,
      "last": {
        "at": "[TIME]",
        "by": "[WHO]",
        "holder": "ada",
        "status": "forced",
        "token": "[TOKEN]"
      },
      "name": "a",
      "now": "[TIME]",
      "success": true,
      "token": "[TOKEN]",
      "waiters": []
    }
    "#);
}

#[test]
fn without_a_terminal_and_without_yes_is_a_usage_error() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    let ran = force(&sandbox, "");
    assert_eq!(ran.code, 64);
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: a force-release without a terminal to ask on needs --yes
    hint: see who holds it first: leasehold locks why a
    ");
    assert_eq!(sandbox.json("locks status a")["isLocked"], true);
}

#[test]
fn a_free_lock_cannot_be_forced() {
    let sandbox = Sandbox::new();
    let ran = force(&sandbox, "--yes");
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.stderr, @"leasehold: lock 'a' is not held");
}

#[test]
fn a_stale_token_takes_nothing() {
    let sandbox = Sandbox::new();
    let old = sandbox.hold("a --holder ada");
    sandbox.ok(&format!("locks release a {}", old.with));
    sandbox.hold("a --holder bob");
    let ran = force(&sandbox, &format!("--yes --token {}", old.token));
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: lock 'a' is no longer held with token [TOKEN]
    hint: --token [TOKEN] is bob, for [AGE]
    ");
    assert_eq!(sandbox.json("locks status a")["holder"], "bob");
}

#[test]
fn of_several_holders_one_has_to_be_named() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada --shared");
    let bob = sandbox.hold("a --holder bob --shared");
    let ran = force(&sandbox, "--yes");
    assert_eq!(ran.code, 64);
    insta::assert_snapshot!(sandbox.tidy(&ran.stderr), @"
    leasehold: lock 'a' has 2 holders; select one with --token
    hint: --token [TOKEN] is ada, for [AGE]
    hint: --token [TOKEN] is bob, for [AGE]
    ");
    let ran = force(&sandbox, &format!("--yes --token {}", bob.token));
    assert_eq!(ran.stdout, "took 'a' from bob; ada has it now\n");
}

#[test]
fn an_operator_sees_the_holder_and_types_the_name() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    let (shown, code) = on_a_terminal(&sandbox, "locks release a --force --reason stuck", "b\n");
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("ada"), "{shown}");
    assert!(shown.contains("the name does not match; nothing was changed"), "{shown}");
    assert_eq!(sandbox.json("locks status a")["isLocked"], true);
    let (shown, code) = on_a_terminal(&sandbox, "locks release a --force --reason stuck", "a\n");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("took 'a' from ada"), "{shown}");
    assert_eq!(sandbox.json("locks status a")["isLocked"], false);
}

#[test]
fn a_terminal_gets_colours_unless_it_does_not_want_them() {
    let sandbox = Sandbox::new();
    sandbox.hold("a --holder ada");
    let (shown, _) = on_a_terminal(&sandbox, "locks list", "");
    assert!(shown.contains("\u{1b}[1mNAME"), "{shown:?}");
    let (shown, _) = on_a_terminal(&sandbox, "locks acquire a", "");
    assert!(shown.contains("\u{1b}[1m\u{1b}[31mleasehold:"), "{shown:?}");
    let (shown, _) = on_a_terminal(&sandbox, "locks acquire b", "");
    let shown = sandbox.tidy(&shown);
    assert!(shown.contains("renew it with: leasehold locks renew b --lease-id "), "{shown:?}");
    assert!(!sandbox.ok("locks list").contains('\u{1b}'));
}
