//! Any two of the three processes of leasehold are killed with SIGKILL, in any order and with any
//! delay: no process that the command has started is alive when the next holder starts. In every
//! available containment, as root and as another user.

use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::model::LockName;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::contained::{Mode, Setup, setups};
use super::support::{RunSandbox, Running, children, name_of, read_pid, read_pid_within, text, wait_until};
use crate::support::not_applicable;

/// Command that only SIGKILL ends, without a parent-death signal, with a child in its group, a
/// daemon in a session of its own, and one that forked twice. It exits and leaves them behind when
/// `$SANDBOX/leave` exists.
pub(crate) const TREE: &str = r#"
    setsid sh -c 'trap "" INT HUP QUIT; trap "echo 1 > $SANDBOX/asked" TERM; echo 1 > "$SANDBOX/one"; while :; do sleep 0.1; done' &
    trap "" TERM INT HUP QUIT
    sleep 1000 &
    setsid sh -c '(setsid sh -c "trap \"\" TERM; echo 1 > \"\$SANDBOX/two\"; while :; do sleep 1; done" &)' &
    while ! [ -s "$SANDBOX/one" ] || ! [ -s "$SANDBOX/two" ]; do sleep 0.01; done
    echo 1 > "$SANDBOX/ready"
    while ! [ -e "$SANDBOX/leave" ]; do sleep 0.05; done
"#;

/// Prints the number of live processes with the mark: `environ` of a dead process is empty.
pub(crate) const COUNT: &str = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -c ^MARK=$0";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Supervisor,
    Watchdog,
    Monitor,
    /// First process of a PID namespace.
    Init,
}

use Victim::{Init, Monitor, Supervisor, Watchdog};

/// Processes of a run.
pub(crate) struct Pids {
    pub(crate) supervisor: Pid,
    watchdog: Pid,
    monitor: Pid,
    init: Option<Pid>,
}

impl Pids {
    pub(crate) fn find(supervisor: Pid) -> Self {
        let named = |parent, name: &str| {
            wait_until(name, || {
                children(parent).into_iter().find(|pid| name_of(*pid).as_deref() == Some(name))
            })
        };
        let watchdog = named(supervisor, "lease-watchdog");
        let monitor = named(watchdog, "lease-monitor");
        let init = children(monitor).into_iter().find(|pid| name_of(*pid).as_deref() == Some("lease-init"));
        Self { supervisor, watchdog, monitor, init }
    }

    /// Kills one after the other; processes that have died already are skipped.
    pub(crate) fn kill(&self, victims: &[Victim], pause: Duration) {
        let pids: Vec<_> = victims.iter().filter_map(|victim| self.of(*victim)).collect();
        for (at, pid) in pids.iter().enumerate() {
            if at > 0 && !pause.is_zero() {
                std::thread::sleep(pause); // This delay is what is tested.
            }
            let _ = kill(*pid, Signal::SIGKILL);
        }
    }

    fn of(&self, victim: Victim) -> Option<Pid> {
        match victim {
            Supervisor => Some(self.supervisor),
            Watchdog => Some(self.watchdog),
            Monitor => Some(self.monitor),
            Init => self.init,
        }
    }
}

/// Returns every pair, in both orders.
pub(crate) const PAIRS: [[Victim; 2]; 6] = [
    [Supervisor, Monitor],
    [Monitor, Supervisor],
    [Supervisor, Watchdog],
    [Watchdog, Supervisor],
    [Watchdog, Monitor],
    [Monitor, Watchdog],
];

/// State of the command when the processes are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    AtWork,
    /// It has ended, and the processes it left behind have been asked to stop.
    InGrace,
}

/// Starts a command, kills the processes, and starts the next holder.
fn check(setup: &Setup, victims: &[Victim], pause: Duration, when: When) {
    let sandbox = RunSandbox::open_to_all();
    let mark = sandbox.path("mark").display().to_string();
    let mode = setup.mode.name();
    let words = format!("a --ttl 3s --kill-after 1400ms --contain {mode}");
    let tree = ["env", &format!("MARK={mark}"), "setpriv", "--pdeathsig", "clear", "sh", "-c", TREE];
    let mut run = setup.as_user(&sandbox, &sandbox.command(&words, &tree));
    let mut running = Running::start(run.stdout(Stdio::null()).stderr(Stdio::null()));
    sandbox.wait_for_file("ready");
    let pids = Pids::find(running.supervisor);
    if when == When::InGrace {
        std::fs::write(sandbox.path("leave"), "").unwrap();
        sandbox.wait_for_file("asked");
    }
    pids.kill(victims, pause);
    let next = sandbox.command(&format!("a --wait 20s --contain {mode}"), &["sh", "-c", COUNT, &mark]);
    let mut next = if setup.mode == Mode::Pidns {
        // Inside its own namespace it would not see the other processes.
        setup.as_user(&sandbox, &sandbox.command("a --wait 20s --contain none", &["sh", "-c", COUNT, &mark]))
    } else {
        setup.as_user(&sandbox, &next)
    };
    let out = Running::start(next.stdout(Stdio::piped()).stderr(Stdio::piped())).output();
    assert_eq!(text(&out.stdout), "0\n", "{setup:?} {victims:?} {pause:?} {when:?}: {}", text(&out.stderr));
    if !victims.contains(&Supervisor) {
        running.wait();
    }
}

#[test]
fn any_two_are_killed_and_nothing_is_left() {
    for setup in setups() {
        for victims in &PAIRS {
            check(&setup, victims, Duration::ZERO, When::AtWork);
        }
        for victims in [[Supervisor, Monitor], [Monitor, Watchdog], [Watchdog, Supervisor]] {
            check(&setup, &victims, Duration::from_millis(200), When::AtWork);
        }
    }
}

#[test]
fn any_two_are_killed_while_what_is_left_behind_has_its_grace() {
    for setup in setups() {
        for victims in [[Supervisor, Monitor], [Monitor, Supervisor], [Watchdog, Monitor]] {
            check(&setup, &victims, Duration::ZERO, When::InGrace);
        }
        check(&setup, &[Supervisor, Monitor], Duration::from_millis(200), When::InGrace);
    }
}

#[test]
fn one_is_killed_and_nothing_is_left() {
    for setup in setups() {
        for victim in [Supervisor, Watchdog, Monitor, Init] {
            if victim != Init || setup.mode == Mode::Pidns {
                check(&setup, &[victim], Duration::ZERO, When::AtWork);
            }
        }
    }
}

#[test]
fn all_are_killed_at_once_and_containment_leaves_nothing() {
    for setup in setups().into_iter().filter(|setup| setup.mode != Mode::None) {
        for victims in [[Supervisor, Watchdog, Monitor], [Monitor, Watchdog, Supervisor]] {
            check(&setup, &victims, Duration::ZERO, When::AtWork);
            check(&setup, &victims, Duration::ZERO, When::InGrace);
        }
    }
}

/// It dies a moment after the lease monitor, when the kernel has killed all others of its namespace.
#[test]
fn the_first_process_of_a_namespace_holds_the_lease_too() {
    for setup in setups().into_iter().filter(|setup| setup.mode == Mode::Pidns) {
        let sandbox = RunSandbox::open_to_all();
        let words = ["sh", "-c", r#"echo 1 > "$SANDBOX/ready"; sleep 1000"#];
        let mut run = setup.as_user(&sandbox, &sandbox.command("a --contain pidns", &words));
        let running = Running::start(run.stdout(Stdio::null()).stderr(Stdio::null()));
        sandbox.wait_for_file("ready");
        let pids = Pids::find(running.supervisor);
        let init = u32::try_from(pids.init.expect("a namespace").as_raw()).unwrap();
        let lock = LockName::new("a").unwrap();
        let record =
            sandbox.ask(async |leasehold| leasehold.store().locks().get(&lock).await.unwrap().unwrap());
        let process = record.holders[0].request.process.clone().expect("its processes are known");
        assert!(process.members.iter().any(|member| member.pid == init), "{setup:?}: {process:?}");
        pids.kill(&[Supervisor, Watchdog, Monitor], Duration::ZERO);
    }
}

#[test]
fn when_the_watchdog_is_killed_the_command_is_ended_and_the_lock_released() {
    let sandbox = RunSandbox::new();
    let running =
        sandbox.start("a", r#"trap "" TERM; echo $$ > "$SANDBOX/command"; while :; do sleep 0.1; done"#);
    let command = read_pid(&sandbox.path("command"));
    Pids::find(running.supervisor).kill(&[Watchdog], Duration::ZERO);
    let out = running.output();
    assert_eq!(out.status.code(), Some(79), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("the watchdog of lock 'a' was killed"), "{}", text(&out.stderr));
    assert!(!super::support::is_alive(command));
    assert_eq!(
        sandbox.status("a").holders.len(),
        0,
        "released, not only free because its processes are dead"
    );
}

#[test]
fn the_command_keeps_a_low_priority_and_its_supervisors_do_not() {
    if !nix::unistd::geteuid().is_root() {
        let case = "the_command_keeps_a_low_priority_and_its_supervisors_do_not";
        return not_applicable(case, "root, who alone may raise a priority again");
    }
    let sandbox = RunSandbox::new();
    let run = sandbox.command("a", &["sh", "-c", r#"echo $$ > "$SANDBOX/command"; sleep 1000"#]);
    let mut idle = Command::new("chrt");
    idle.args(["-i", "0", "nice", "-n", "7"]).arg(run.get_program()).args(run.get_args());
    sandbox.configure(&mut idle);
    let running = Running::start(&mut idle);
    // On a busy machine an idle-priority process runs for less than a millisecond in each second.
    let command = read_pid_within(Duration::from_mins(5), &sandbox.path("command"));
    let pids = Pids::find(running.supervisor);
    assert_eq!(priority(command), (7, 5), "SCHED_IDLE");
    for pid in [pids.supervisor, pids.watchdog, pids.monitor] {
        wait_until("its priority", || (priority(pid) == (0, 0)).then_some(()));
    }
}

/// Returns nice value and scheduling policy.
fn priority(pid: Pid) -> (i64, i64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[16].parse().unwrap(), fields[38].parse().unwrap())
}
