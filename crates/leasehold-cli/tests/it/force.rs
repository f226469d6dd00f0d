//! Taking a lock from its holder: never by accident, never from somebody else than was seen.

use std::fs::File;
use std::io::{Read, Write};
use std::process::Stdio;

use nix::pty::openpty;

use super::support::{Bench, Ran, shape};

/// Runs on a terminal, and types this once it is asked; gives what the terminal showed, and the exit code.
fn on_a_terminal(bench: &Bench, words: &str, typed: &str) -> (String, i32) {
    let terminal = openpty(None, None).unwrap();
    let side = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut command = bench.command(words.split_whitespace());
    let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().unwrap();
    drop((command, terminal.slave));
    let mut terminal = File::from(terminal.master);
    let (mut shown, mut buffer, mut answered) = (String::new(), [0; 4096], false);
    // The other side is gone when the command is: reading ends with an error then.
    while let Ok(read @ 1..) = terminal.read(&mut buffer) {
        shown += &String::from_utf8_lossy(&buffer[..read]);
        if shown.contains("type the lock's name: ") && !answered {
            answered = true;
            terminal.write_all(typed.as_bytes()).unwrap();
        }
    }
    (shown, child.wait().unwrap().code().unwrap_or(-1))
}

fn force(bench: &Bench, more: &str) -> Ran {
    bench.run(&format!("locks release a --force --reason stuck {more}"))
}

#[test]
fn it_takes_the_lock_and_the_old_token_is_stale() {
    let bench = Bench::new();
    let held = bench.hold("a --holder ada");
    let ran = force(&bench, "--yes");
    assert_eq!(ran.code, 0, "{ran:?}");
    insta::assert_snapshot!(bench.tidy(&format!("{}{}", ran.stdout, ran.stderr)), @"
    took 'a' from ada
    its holder may still be at work: token [TOKEN] is old from now on, for every resource that checks tokens
    ");
    let checked = bench.run(&format!("fence check a --token {}", held.token));
    assert_eq!(checked.code, 1);
    assert!(checked.stderr.contains("its lease was taken by force by "), "{}", checked.stderr);
    assert!(!checked.stderr.contains("granted this since"), "nobody was: {}", checked.stderr);
    assert_eq!(bench.run(&format!("locks renew a {}", held.with)).code, 1);
    let history = bench.ok("history a");
    assert!(history.contains("stuck"), "{history}");
}

#[test]
fn programs_get_the_lock_as_it_is_after() {
    let bench = Bench::new();
    bench.hold("a --holder ada");
    let after = bench.json("locks release a --force --reason stuck --yes");
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
fn nobody_to_ask_and_no_yes_is_a_usage_error() {
    let bench = Bench::new();
    bench.hold("a --holder ada");
    let ran = force(&bench, "");
    assert_eq!(ran.code, 64);
    insta::assert_snapshot!(bench.tidy(&ran.stderr), @"
    leasehold: a force-release without a terminal to ask on needs --yes
    hint: see who holds it first: leasehold locks why a
    ");
    assert_eq!(bench.json("locks status a")["isLocked"], true);
}

#[test]
fn a_lock_that_nobody_holds_cannot_be_taken() {
    let bench = Bench::new();
    let ran = force(&bench, "--yes");
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(ran.stderr, @"leasehold: nobody holds lock 'a': there is nothing to take");
}

#[test]
fn a_token_that_has_moved_on_takes_nothing() {
    let bench = Bench::new();
    let old = bench.hold("a --holder ada");
    bench.ok(&format!("locks release a {}", old.with));
    bench.hold("a --holder bob");
    let ran = force(&bench, &format!("--yes --token {}", old.token));
    assert_eq!(ran.code, 1);
    insta::assert_snapshot!(bench.tidy(&ran.stderr), @"
    leasehold: lock 'a' is not held with token [TOKEN] any more
    hint: --token [TOKEN] is bob, for [AGE]
    ");
    assert_eq!(bench.json("locks status a")["holder"], "bob");
}

#[test]
fn of_several_holders_one_has_to_be_named() {
    let bench = Bench::new();
    bench.hold("a --holder ada --shared");
    let bob = bench.hold("a --holder bob --shared");
    let ran = force(&bench, "--yes");
    assert_eq!(ran.code, 64);
    insta::assert_snapshot!(bench.tidy(&ran.stderr), @"
    leasehold: lock 'a' has 2 holders; say which with --token
    hint: --token [TOKEN] is ada, for [AGE]
    hint: --token [TOKEN] is bob, for [AGE]
    ");
    let ran = force(&bench, &format!("--yes --token {}", bob.token));
    assert_eq!(ran.stdout, "took 'a' from bob; ada has it now\n");
}

#[test]
fn a_person_sees_the_holder_and_types_the_name() {
    let bench = Bench::new();
    bench.hold("a --holder ada");
    let (shown, code) = on_a_terminal(&bench, "locks release a --force --reason stuck", "b\n");
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("ada"), "{shown}");
    assert!(shown.contains("that is not its name; nothing was changed"), "{shown}");
    assert_eq!(bench.json("locks status a")["isLocked"], true);
    let (shown, code) = on_a_terminal(&bench, "locks release a --force --reason stuck", "a\n");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("took 'a' from ada"), "{shown}");
    assert_eq!(bench.json("locks status a")["isLocked"], false);
}

#[test]
fn a_terminal_gets_colours_unless_it_does_not_want_them() {
    let bench = Bench::new();
    bench.hold("a --holder ada");
    let (shown, _) = on_a_terminal(&bench, "locks list", "");
    assert!(shown.contains("\u{1b}[1mNAME"), "{shown:?}");
    let (shown, _) = on_a_terminal(&bench, "locks acquire a", "");
    assert!(shown.contains("\u{1b}[1m\u{1b}[31mleasehold:"), "{shown:?}");
    let (shown, _) = on_a_terminal(&bench, "locks acquire b", "");
    let shown = bench.tidy(&shown);
    assert!(shown.contains("renew it with: leasehold locks renew b --lease-id "), "{shown:?}");
    assert!(!bench.ok("locks list").contains('\u{1b}'));
}
