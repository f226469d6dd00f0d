//! In which containments and as which users tests can run here, and what a command notices of its containment.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::lab::{Lab, Running, text};
use crate::support::Bench;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    None,
    Cgroup,
    Pidns,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Cgroup => "cgroup",
            Self::Pidns => "pidns",
        }
    }
}

/// A user, in a containment.
#[derive(Debug, Clone)]
pub(crate) struct Who {
    pub(crate) mode: Mode,
    /// Whether it runs as `nobody`.
    nobody: bool,
    /// The cgroup to begin in.
    cgroup: Option<Arc<Delegated>>,
}

/// A cgroup that belongs to `nobody`, as a service manager would make it.
#[derive(Debug)]
struct Delegated(PathBuf);

const NOBODY: u32 = 65534;

impl Who {
    /// The same command as this user.
    pub(crate) fn dress(&self, lab: &Lab, command: &Command) -> Command {
        let mut dressed = Command::new("sh");
        let cgroup = self.cgroup.as_ref().map(|cgroup| cgroup.0.join("cgroup.procs").display().to_string());
        dressed.args(["-c", r#"[ -z "$0" ] || echo 0 > "$0"; exec "$@""#, &cgroup.unwrap_or_default()]);
        if self.nobody {
            dressed.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        dressed.arg(command.get_program()).args(command.get_args());
        lab.settle(&mut dressed);
        dressed
    }

    fn works(&self) -> bool {
        let lab = Lab::open_to_all();
        let run = lab.command(&format!("a --contain {}", self.mode.name()), &["true"]);
        self.dress(&lab, &run).output().unwrap().status.success()
    }
}

/// What can be tested here. What cannot is said.
pub(crate) fn setups() -> Vec<Who> {
    let root = nix::unistd::geteuid().is_root();
    let mut all = Vec::new();
    for nobody in if root { vec![false, true] } else { vec![false] } {
        for mode in [Mode::None, Mode::Cgroup, Mode::Pidns] {
            let cgroup = (nobody && mode == Mode::Cgroup).then(Delegated::new).flatten().map(Arc::new);
            let who = Who { mode, nobody, cgroup };
            if who.works() {
                all.push(who);
            } else {
                eprintln!("not tested, because it is not possible here: {who:?}");
            }
        }
    }
    assert!(!all.is_empty(), "not even without containment");
    all
}

impl Delegated {
    fn new() -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let ours = groups.lines().find_map(|line| line.strip_prefix("0::/"))?.to_owned();
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" cgroup2 "))?.split(' ').nth(1)?;
        let name = format!("tests-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let path = PathBuf::from(mount).join(ours).join(name);
        std::fs::create_dir(&path).ok()?;
        let made = Self(path);
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            chown(made.0.join(file), Some(NOBODY), Some(NOBODY)).ok()?;
        }
        Some(made)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // What tests have started in it may still be dying.
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Those that this process may use as it is.
pub(crate) fn modes() -> Vec<Mode> {
    setups().into_iter().filter(|who| !who.nobody).map(|who| who.mode).collect()
}

#[test]
fn exit_codes_and_signals_are_the_same_in_every_containment() {
    let lab = Lab::new();
    for who in setups() {
        let lab = if who.nobody { &Lab::open_to_all() } else { &lab };
        let words = format!("a --contain {}", who.mode.name());
        let ends = |command: &[&str]| {
            let mut run = who.dress(lab, &lab.command(&words, command));
            let out = Running::start(run.stdout(Stdio::piped()).stderr(Stdio::piped())).output();
            (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
        };
        let none = String::new;
        let said = "leasehold: 1 process left behind by the command was ended\n";
        assert_eq!(ends(&["sh", "-c", "exit 7"]), (7, none(), none()), "{who:?}");
        assert_eq!(ends(&["sh", "-c", "kill -SEGV $$"]), (139, none(), none()), "{who:?}");
        assert_eq!(
            ends(&["sh", "-c", "setsid sleep 1000 & exit 3"]),
            (3, none(), said.to_owned()),
            "{who:?}"
        );
        // The process id that a command knows of itself is the one that /proc shows.
        assert_eq!(
            ends(&["sh", "-c", "readlink /proc/self/exe >/dev/null && test -d /proc/$$ && id -u"]).0,
            0
        );
        let user = if who.nobody { "65534\n" } else { "0\n" };
        if nix::unistd::geteuid().is_root() {
            assert_eq!(ends(&["id", "-u"]).1, user, "{who:?}");
        }
        // A lock inside of a lock.
        let inner =
            [env!("CARGO_BIN_EXE_leasehold"), "run", "b", "--", "sh", "-c", "setsid sleep 1000 & exit 5"];
        assert_eq!(ends(&inner).0, 5, "{who:?}");
    }
}

#[test]
fn signals_reach_a_command_in_every_containment() {
    for mode in modes() {
        let lab = Lab::new();
        let script = r#"trap 'exit 42' USR1; echo 1 > "$LAB/ready"; while :; do sleep 0.05; done"#;
        let running = lab.start(&format!("a --contain {}", mode.name()), script);
        lab.wait_for_file("ready");
        running.signal(Signal::SIGUSR1);
        let out = running.output();
        assert_eq!(out.status.code(), Some(42), "{mode:?}: {}", text(&out.stderr));
        let running =
            lab.start(&format!("b --contain {}", mode.name()), r#"echo 1 > "$LAB/again"; exec sleep 1000"#);
        lab.wait_for_file("again");
        running.signal(Signal::SIGTERM);
        assert_eq!(running.output().status.code(), Some(143), "{mode:?}: as of itself");
    }
}

#[test]
fn a_namespace_has_processes_of_its_own_and_an_outer_run_does_not_show() {
    if !modes().contains(&Mode::Pidns) {
        return eprintln!("no PID namespace can be made here: not tested");
    }
    let lab = Lab::new();
    let out = lab.output("a --contain pidns", &["sh", "-c", "echo $$; ls -d /proc/[0-9]* | wc -l"]);
    let numbers: Vec<u32> = text(&out.stdout).lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(numbers[0], 2, "INIT is the first");
    assert!((3..6).contains(&numbers[1]), "{numbers:?}");
}

#[test]
fn no_cgroup_is_left_behind() {
    if !modes().contains(&Mode::Cgroup) {
        return eprintln!("no cgroup can be made here: not tested");
    }
    let lab = Lab::new();
    let out = lab.output("a --contain cgroup", &["grep", "^0::", "/proc/self/cgroup"]);
    let inside = text(&out.stdout).trim().rsplit_once('/').unwrap().1.to_owned();
    assert!(inside.starts_with("leasehold-"), "{inside}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" cgroup2 ")).unwrap().split(' ').nth(1).unwrap();
    let found = Command::new("find").args([mount, "-name", &inside]).output().unwrap();
    assert_eq!(text(&found.stdout), "");
}

#[test]
fn what_cannot_be_had_is_said_before_anything_is_locked() {
    let bench = Bench::new();
    let ran = bench.run("run a --contain jail -- true");
    assert_eq!(ran.code, 64, "{ran:?}");
    let mut wrong = bench.command(["run", "a", "--", "true"]);
    let ran = crate::support::run(wrong.env("LEASEHOLD_CONTAIN", "jail"));
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("hint: write one of: auto, cgroup, pidns, none"), "{ran:?}");
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let lab = Lab::open_to_all();
    let nobody = Who { mode: Mode::Cgroup, nobody: true, cgroup: None };
    let ran = nobody.dress(&lab, &lab.command("a --contain cgroup", &["true"])).output().unwrap();
    assert_eq!(ran.status.code(), Some(78), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("--contain cgroup is not possible here"), "{}", text(&ran.stderr));
    assert!(!lab.path("store.db").exists());
    // Without a word about it, it goes without.
    assert!(nobody.dress(&lab, &lab.command("a", &["true"])).output().unwrap().status.success());
}

impl Lab {
    /// A place that other users can use too.
    pub(crate) fn open_to_all() -> Self {
        let lab = Self::new();
        std::fs::set_permissions(lab.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
        lab
    }
}
