//! The supervising processes of a task's command are killed with SIGKILL, in any order: no process
//! of the command is alive when the next attempt begins.

use std::time::Duration;

use nix::unistd::Pid;

use crate::run::contained::{Mode, modes};
use crate::run::matrix::{COUNT, PAIRS, Pids, TREE, Victim};
use crate::support::{Sandbox, eventually};

/// The first attempt starts the tree; every other one counts the processes that are left.
const SCRIPT: &str = r#"
    [ $LEASEHOLD_ATTEMPT = 1 ] || { sh -c "$COUNT" "$SANDBOX/mark"; exit 0; }
    exec env MARK="$SANDBOX/mark" SANDBOX="$SANDBOX" setpriv --pdeathsig clear sh -c "$TREE"
"#;

fn check(mode: Mode, victims: &[Victim], pause: Duration) {
    let sandbox = Sandbox::new();
    let id = sandbox.add(&["a", "--backoff", "1ms"]);
    let start = |contain: &str| {
        let mut worker =
            sandbox.worker(&format!("a --ttl 2s --kill-after 300ms --contain {contain}"), SCRIPT);
        super::support::Working(worker.env("TREE", TREE).env("COUNT", COUNT).spawn().unwrap())
    };
    let first = start(mode.name());
    sandbox.written("ready");
    Pids::find(Pid::from_raw(first.0.id().try_into().unwrap())).kill(victims, pause);
    if !victims.contains(&Victim::Supervisor) {
        // The next attempt may run in a namespace that does not show the other processes.
        let seen = sandbox.until_task(&id, "succeeded")["result"].clone();
        return assert!(seen == 0 || mode == Mode::Pidns, "{mode:?} {victims:?} {pause:?}: {seen}");
    }
    // Inside its own namespace it would not see the other processes.
    let _other = start(if mode == Mode::Pidns { "none" } else { mode.name() });
    assert_eq!(sandbox.until_task(&id, "succeeded")["result"], 0, "{mode:?} {victims:?} {pause:?}");
}

#[test]
fn any_two_are_killed_and_nothing_is_left() {
    for mode in modes() {
        for victims in &PAIRS {
            check(mode, victims, Duration::ZERO);
        }
        check(mode, &[Victim::Supervisor, Victim::Monitor], Duration::from_millis(200));
    }
}

#[test]
fn one_is_killed_and_nothing_is_left() {
    for mode in modes() {
        for victim in [Victim::Supervisor, Victim::Watchdog, Victim::Monitor] {
            check(mode, &[victim], Duration::ZERO);
        }
    }
}

#[test]
fn all_are_killed_at_once_and_containment_leaves_nothing() {
    for mode in modes().into_iter().filter(|mode| *mode != Mode::None) {
        check(mode, &[Victim::Supervisor, Victim::Watchdog, Victim::Monitor], Duration::ZERO);
    }
}

#[test]
fn the_payload_has_an_end_in_every_containment() {
    for mode in modes() {
        let sandbox = Sandbox::new();
        let id = sandbox.add(&["a", "--payload", r#"{"to":"ada"}"#]);
        let _worker = sandbox.start_worker(&format!("a --contain {}", mode.name()), "cat");
        assert_eq!(sandbox.until_task(&id, "succeeded")["result"]["to"], "ada", "{mode:?}");
    }
}

#[test]
fn progress_is_reported_from_every_containment() {
    for mode in modes() {
        let sandbox = Sandbox::new();
        let id = sandbox.add(&["a"]);
        let binary = env!("CARGO_BIN_EXE_leasehold");
        let report =
            format!("'{binary}' tasks progress --done 40 --of 100 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-");
        let script = format!("{report} || exit 65; while ! [ -e $SANDBOX/go ]; do sleep 0.05; done");
        let _worker = sandbox.start_worker(&format!("a --contain {}", mode.name()), &script);
        eventually("progress", || sandbox.task(&id)["progress"]["done"] == 40);
        std::fs::write(sandbox.path().join("go"), "").unwrap();
        sandbox.until_task(&id, "succeeded");
    }
}
