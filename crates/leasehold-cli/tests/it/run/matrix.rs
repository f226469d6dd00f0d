//! The processes of leasehold are killed with SIGKILL, any two of the three, in any order and with any pause: nothing that
//! the command has started is alive when the next holder begins. In every containment that this machine has, as root and
//! as another user.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::contained::{Mode, Who, setups};
use super::lab::{Lab, Running, children, name_of, read_pid, read_pid_within, text, wait_until};

/// A command that nothing but SIGKILL ends, without a parent-death signal, with a child in its group, a daemon in a
/// session of its own, and one that forked twice. It leaves them alone when `$LAB/leave` is there.
pub(crate) const TREE: &str = r#"
    setsid sh -c 'trap "" INT HUP QUIT; trap "echo 1 > $LAB/asked" TERM; echo 1 > "$LAB/one"; while :; do sleep 0.1; done' &
    trap "" TERM INT HUP QUIT
    sleep 1000 &
    setsid sh -c '(setsid sh -c "trap \"\" TERM; echo 1 > \"\$LAB/two\"; while :; do sleep 1; done" &)' &
    while ! [ -s "$LAB/one" ] || ! [ -s "$LAB/two" ]; do sleep 0.01; done
    echo 1 > "$LAB/ready"
    while ! [ -e "$LAB/leave" ]; do sleep 0.05; done
"#;

/// Writes how many processes with the mark are alive: `environ` of a dead one is empty.
pub(crate) const COUNT: &str = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c ^MARK=$0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Front,
    Watchdog,
    Keeper,
    /// The first process of a PID namespace.
    Init,
}

use Victim::{Front, Init, Keeper, Watchdog};

/// The processes of a run.
pub(crate) struct Pids {
    pub(crate) front: Pid,
    watchdog: Pid,
    keeper: Pid,
    init: Option<Pid>,
}

impl Pids {
    pub(crate) fn find(front: Pid) -> Self {
        let named = |parent, name: &str| {
            wait_until(name, || {
                children(parent).into_iter().find(|pid| name_of(*pid).as_deref() == Some(name))
            })
        };
        let watchdog = named(front, "lease-watchdog");
        let keeper = named(watchdog, "lease-keeper");
        let init = children(keeper).into_iter().find(|pid| name_of(*pid).as_deref() == Some("lease-init"));
        Self { front, watchdog, keeper, init }
    }

    /// One after the other; those that are dead already by what came before are not killed again.
    pub(crate) fn kill(&self, victims: &[Victim], pause: Duration) {
        let pids: Vec<_> = victims.iter().filter_map(|victim| self.of(*victim)).collect();
        for (at, pid) in pids.iter().enumerate() {
            if at > 0 && !pause.is_zero() {
                std::thread::sleep(pause); // What is tested is this very pause.
            }
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }

    fn of(&self, victim: Victim) -> Option<Pid> {
        match victim {
            Front => Some(self.front),
            Watchdog => Some(self.watchdog),
            Keeper => Some(self.keeper),
            Init => self.init,
        }
    }
}

/// Every pair, in both orders.
pub(crate) const PAIRS: [[Victim; 2]; 6] = [
    [Front, Keeper],
    [Keeper, Front],
    [Front, Watchdog],
    [Watchdog, Front],
    [Watchdog, Keeper],
    [Keeper, Watchdog],
];

/// At what time of the command they are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    AtWork,
    /// It has ended, and what it left has been asked to stop.
    InGrace,
}

/// Starts a command, kills, and starts the next holder.
fn check(who: &Who, victims: &[Victim], pause: Duration, when: When) {
    let lab = Lab::open_to_all();
    let mark = lab.path("mark").display().to_string();
    let mode = who.mode.name();
    let words = format!("a --ttl 3s --kill-after 1400ms --contain {mode}");
    let tree = ["env", &format!("MARK={mark}"), "setpriv", "--pdeathsig", "clear", "sh", "-c", TREE];
    let mut run = who.dress(&lab, &lab.command(&words, &tree));
    let mut running = Running::start(run.stdout(Stdio::null()).stderr(Stdio::null()));
    lab.wait_for_file("ready");
    let pids = Pids::find(running.front);
    if when == When::InGrace {
        std::fs::write(lab.path("leave"), "").unwrap();
        lab.wait_for_file("asked");
    }
    pids.kill(victims, pause);
    let next = lab.command(&format!("a --wait 20s --contain {mode}"), &["sh", "-c", COUNT, &mark]);
    let mut next = if who.mode == Mode::Pidns {
        // From inside a namespace of its own it would not see the others.
        who.dress(&lab, &lab.command("a --wait 20s --contain none", &["sh", "-c", COUNT, &mark]))
    } else {
        who.dress(&lab, &next)
    };
    let out = Running::start(next.stdout(Stdio::piped()).stderr(Stdio::piped())).output();
    assert_eq!(text(&out.stdout), "0\n", "{who:?} {victims:?} {pause:?} {when:?}: {}", text(&out.stderr));
    if !victims.contains(&Front) {
        running.wait();
    }
}

#[test]
fn any_two_are_killed_and_nothing_is_left() {
    for who in setups() {
        for victims in &PAIRS {
            check(&who, victims, Duration::ZERO, When::AtWork);
        }
        for victims in [[Front, Keeper], [Keeper, Watchdog], [Watchdog, Front]] {
            check(&who, &victims, Duration::from_millis(200), When::AtWork);
        }
    }
}

#[test]
fn any_two_are_killed_while_what_is_left_behind_has_its_grace() {
    for who in setups() {
        for victims in [[Front, Keeper], [Keeper, Front], [Watchdog, Keeper]] {
            check(&who, &victims, Duration::ZERO, When::InGrace);
        }
        check(&who, &[Front, Keeper], Duration::from_millis(200), When::InGrace);
    }
}

#[test]
fn one_is_killed_and_nothing_is_left() {
    for who in setups() {
        for victim in [Front, Watchdog, Keeper, Init] {
            if victim != Init || who.mode == Mode::Pidns {
                check(&who, &[victim], Duration::ZERO, When::AtWork);
            }
        }
    }
}

#[test]
fn all_are_killed_at_once_and_containment_leaves_nothing() {
    for who in setups().into_iter().filter(|who| who.mode != Mode::None) {
        for victims in [[Front, Watchdog, Keeper], [Keeper, Watchdog, Front]] {
            check(&who, &victims, Duration::ZERO, When::AtWork);
            check(&who, &victims, Duration::ZERO, When::InGrace);
        }
    }
}

#[test]
fn when_the_watchdog_is_killed_the_command_is_ended_and_the_lock_released() {
    let lab = Lab::new();
    let running = lab.start("a", r#"trap "" TERM; echo $$ > "$LAB/command"; while :; do sleep 0.1; done"#);
    let command = read_pid(&lab.path("command"));
    Pids::find(running.front).kill(&[Watchdog], Duration::ZERO);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
    assert!(
        text(&out.stderr).contains("the process that watched over lock 'a' was killed"),
        "{}",
        text(&out.stderr)
    );
    assert!(!super::lab::is_alive(command));
    assert_eq!(lab.status("a").holders.len(), 0, "released, not only free because its processes are dead");
}

#[test]
fn the_command_keeps_a_low_priority_and_those_who_end_it_do_not() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("only root may raise its priority again: not tested");
    }
    let lab = Lab::new();
    let run = lab.command("a", &["sh", "-c", r#"echo $$ > "$LAB/command"; sleep 1000"#]);
    let mut idle = Command::new("chrt");
    idle.args(["-i", "0", "nice", "-n", "7"]).arg(run.get_program()).args(run.get_args());
    lab.settle(&mut idle);
    let running = Running::start(&mut idle);
    // On a busy machine an idle process runs for less than a millisecond in each second.
    let command = read_pid_within(Duration::from_mins(5), &lab.path("command"));
    let pids = Pids::find(running.front);
    assert_eq!(priority(command), (7, 5), "SCHED_IDLE");
    for pid in [pids.front, pids.watchdog, pids.keeper] {
        wait_until("its priority", || (priority(pid) == (0, 0)).then_some(()));
    }
}

/// Nice value and scheduling policy.
fn priority(pid: Pid) -> (i64, i64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[16].parse().unwrap(), fields[38].parse().unwrap())
}
