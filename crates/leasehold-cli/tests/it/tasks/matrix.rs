//! The processes around a task's command are killed with SIGKILL, in any order: nothing that it has started is alive when
//! the next attempt begins.

use std::time::Duration;

use nix::unistd::Pid;

use crate::run::contained::{Mode, modes};
use crate::run::matrix::{COUNT, PAIRS, Pids, TREE, Victim};
use crate::support::{Bench, eventually};

/// The first attempt is the tree; every other counts what it has left.
const SCRIPT: &str = r#"
    [ $LEASEHOLD_ATTEMPT = 1 ] || { sh -c "$COUNT" "$BENCH/mark"; exit 0; }
    exec env MARK="$BENCH/mark" LAB="$BENCH" setpriv --pdeathsig clear sh -c "$TREE"
"#;

fn check(mode: Mode, victims: &[Victim], pause: Duration) {
    let bench = Bench::new();
    let id = bench.add(&["a", "--backoff", "1ms"]);
    let start = |contain: &str| {
        let mut worker = bench.worker(&format!("a --ttl 2s --kill-after 300ms --contain {contain}"), SCRIPT);
        super::shop::Working(worker.env("TREE", TREE).env("COUNT", COUNT).spawn().unwrap())
    };
    let first = start(mode.name());
    bench.written("ready");
    Pids::find(Pid::from_raw(first.0.id().try_into().unwrap())).kill(victims, pause);
    if !victims.contains(&Victim::Front) {
        // Its own next attempt may be in a namespace, from which it does not see the others.
        let seen = bench.until_task(&id, "succeeded")["result"].clone();
        return assert!(seen == 0 || mode == Mode::Pidns, "{mode:?} {victims:?} {pause:?}: {seen}");
    }
    // From inside a namespace of its own it would not see the others.
    let _other = start(if mode == Mode::Pidns { "none" } else { mode.name() });
    assert_eq!(bench.until_task(&id, "succeeded")["result"], 0, "{mode:?} {victims:?} {pause:?}");
}

#[test]
fn any_two_are_killed_and_nothing_is_left() {
    for mode in modes() {
        for victims in &PAIRS {
            check(mode, victims, Duration::ZERO);
        }
        check(mode, &[Victim::Front, Victim::Keeper], Duration::from_millis(200));
    }
}

#[test]
fn one_is_killed_and_nothing_is_left() {
    for mode in modes() {
        for victim in [Victim::Front, Victim::Watchdog, Victim::Keeper] {
            check(mode, &[victim], Duration::ZERO);
        }
    }
}

#[test]
fn all_are_killed_at_once_and_containment_leaves_nothing() {
    for mode in modes().into_iter().filter(|mode| *mode != Mode::None) {
        check(mode, &[Victim::Front, Victim::Watchdog, Victim::Keeper], Duration::ZERO);
    }
}

#[test]
fn progress_is_told_from_every_containment() {
    for mode in modes() {
        let bench = Bench::new();
        let id = bench.add(&["a"]);
        let binary = env!("CARGO_BIN_EXE_leasehold");
        let report =
            format!("'{binary}' tasks progress --done 40 --of 100 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-");
        let script = format!("{report} || exit 65; while ! [ -e $BENCH/go ]; do sleep 0.05; done");
        let _worker = bench.start_worker(&format!("a --contain {}", mode.name()), &script);
        eventually("progress", || bench.task(&id)["progress"]["done"] == 40);
        std::fs::write(bench.path().join("go"), "").unwrap();
        bench.until_task(&id, "succeeded");
    }
}
