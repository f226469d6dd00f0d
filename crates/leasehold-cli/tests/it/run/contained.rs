//! Containments and users that can be tested here, and the effect of a containment on a command.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};

use super::support::{RunSandbox, Running, children, name_of, read_pid, text, wait_until, wait_until_dead};
use crate::support::{Sandbox, not_applicable};

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

/// User and containment of a test.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) mode: Mode,
    /// Whether it runs as `nobody`.
    nobody: bool,
    /// Cgroup in which the process starts.
    cgroup: Option<Arc<Delegated>>,
}

/// Cgroup owned by `nobody`, as a service manager would create it.
#[derive(Debug)]
struct Delegated(PathBuf);

const NOBODY: u32 = 65534;

impl Setup {
    /// Returns the same command, run as this user.
    pub(crate) fn as_user(&self, sandbox: &RunSandbox, command: &Command) -> Command {
        let mut command_as_user = Command::new("sh");
        let cgroup = self.cgroup.as_ref().map(|cgroup| cgroup.0.join("cgroup.procs").display().to_string());
        command_as_user.args([
            "-c",
            r#"[ -z "$0" ] || echo 0 > "$0"; exec "$@""#,
            &cgroup.unwrap_or_default(),
        ]);
        if self.nobody {
            command_as_user.args(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command_as_user.arg(command.get_program()).args(command.get_args());
        sandbox.configure(&mut command_as_user);
        command_as_user
    }

    fn works(&self) -> bool {
        let sandbox = RunSandbox::open_to_all();
        let run = sandbox.command(&format!("a --contain {}", self.mode.name()), &["true"]);
        self.as_user(&sandbox, &run).output().unwrap().status.success()
    }
}

/// Returns the variants that can be tested here, and reports those that cannot.
pub(crate) fn setups() -> Vec<Setup> {
    let root = nix::unistd::geteuid().is_root();
    let mut all = Vec::new();
    for nobody in if root { vec![false, true] } else { vec![false] } {
        for mode in [Mode::None, Mode::Cgroup, Mode::Pidns] {
            let cgroup = (nobody && mode == Mode::Cgroup).then(Delegated::new).flatten().map(Arc::new);
            let setup = Setup { mode, nobody, cgroup };
            if setup.works() {
                all.push(setup);
            } else {
                let user = if nobody { "nobody" } else { "this user" };
                not_applicable(&format!("run --contain {}", mode.name()), &format!("it for {user}"));
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
        // Processes of tests in it may still be exiting.
        let deadline = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns the variants that this process can use without another user.
pub(crate) fn modes() -> Vec<Mode> {
    setups().into_iter().filter(|setup| !setup.nobody).map(|setup| setup.mode).collect()
}

#[test]
fn exit_codes_and_signals_are_the_same_in_every_containment() {
    let sandbox = RunSandbox::new();
    for setup in setups() {
        let sandbox = if setup.nobody { &RunSandbox::open_to_all() } else { &sandbox };
        let words = format!("a --contain {}", setup.mode.name());
        let ends = |command: &[&str]| {
            let mut run = setup.as_user(sandbox, &sandbox.command(&words, command));
            let out = Running::start(run.stdout(Stdio::piped()).stderr(Stdio::piped())).output();
            (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
        };
        let none = String::new;
        let said = "leasehold: 1 process left behind by the command was ended\n";
        assert_eq!(ends(&["sh", "-c", "exit 7"]), (7, none(), none()), "{setup:?}");
        assert_eq!(ends(&["sh", "-c", "kill -SEGV $$"]), (139, none(), none()), "{setup:?}");
        assert_eq!(
            ends(&["sh", "-c", "setsid sleep 1000 & exit 3"]),
            (3, none(), said.to_owned()),
            "{setup:?}"
        );
        // The process id that a command knows of itself is the one that /proc shows.
        assert_eq!(
            ends(&["sh", "-c", "readlink /proc/self/exe >/dev/null && test -d /proc/$$ && id -u"]).0,
            0
        );
        let user = if setup.nobody { "65534\n" } else { "0\n" };
        if nix::unistd::geteuid().is_root() {
            assert_eq!(ends(&["id", "-u"]).1, user, "{setup:?}");
        }
        // A lock inside another lock.
        let inner =
            [env!("CARGO_BIN_EXE_leasehold"), "run", "b", "--", "sh", "-c", "setsid sleep 1000 & exit 5"];
        assert_eq!(ends(&inner).0, 5, "{setup:?}");
    }
}

#[test]
fn signals_reach_a_command_in_every_containment() {
    for mode in modes() {
        let sandbox = RunSandbox::new();
        let script = r#"trap 'exit 42' USR1; echo 1 > "$SANDBOX/ready"; while :; do sleep 0.05; done"#;
        let running = sandbox.start(&format!("a --contain {}", mode.name()), script);
        sandbox.wait_for_file("ready");
        running.signal(Signal::SIGUSR1);
        let out = running.output();
        assert_eq!(out.status.code(), Some(42), "{mode:?}: {}", text(&out.stderr));
        let running = sandbox
            .start(&format!("b --contain {}", mode.name()), r#"echo 1 > "$SANDBOX/again"; exec sleep 1000"#);
        sandbox.wait_for_file("again");
        running.signal(Signal::SIGTERM);
        assert_eq!(running.output().status.code(), Some(143), "{mode:?}: as of itself");
    }
}

#[test]
fn a_namespace_has_processes_of_its_own_and_an_outer_run_does_not_show() {
    if !modes().contains(&Mode::Pidns) {
        let case = "a_namespace_has_processes_of_its_own_and_an_outer_run_does_not_show";
        return not_applicable(case, "PID namespaces");
    }
    let sandbox = RunSandbox::new();
    let out = sandbox.output("a --contain pidns", &["sh", "-c", "echo $$; ls -d /proc/[0-9]* | wc -l"]);
    let numbers: Vec<u32> = text(&out.stdout).lines().map(|line| line.trim().parse().unwrap()).collect();
    assert_eq!(numbers[0], 2, "INIT is the first");
    assert!((3..6).contains(&numbers[1]), "{numbers:?}");
}

#[test]
fn no_cgroup_is_left_behind() {
    if !modes().contains(&Mode::Cgroup) {
        return not_applicable("no_cgroup_is_left_behind", "cgroups");
    }
    let sandbox = RunSandbox::new();
    let out = sandbox.output("a --contain cgroup", &["grep", "^0::", "/proc/self/cgroup"]);
    let inside = text(&out.stdout).trim().rsplit_once('/').unwrap().1.to_owned();
    assert!(inside.starts_with("leasehold-"), "{inside}");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" cgroup2 ")).unwrap().split(' ').nth(1).unwrap();
    let found = Command::new("find").args([mount, "-name", &inside]).output().unwrap();
    assert_eq!(text(&found.stdout), "");
}

/// A worker that is not root cannot signal a process that became another user. The cgroup reaches it.
#[test]
fn when_the_watchdog_of_a_task_is_killed_a_process_of_another_user_dies_too() {
    let case = "when_the_watchdog_of_a_task_is_killed_a_process_of_another_user_dies_too";
    let Some(setup) = setups().into_iter().find(|setup| setup.nobody && setup.mode == Mode::Cgroup) else {
        return not_applicable(case, "cgroups for another user");
    };
    let sandbox = RunSandbox::open_to_all();
    let run = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words);
        setup.as_user(&sandbox, &command)
    };
    // A copy that runs as root for every user that starts it.
    let setpriv = sandbox.path("setpriv").display().to_string();
    let copy = r#"cp "$(command -v setpriv)" "$0" && chmod 4755 "$0""#;
    assert!(Command::new("sh").args(["-c", copy, &setpriv]).status().unwrap().success());
    let third = ["--reuid=1", "--regid=1", "--clear-groups"];
    if run(&setpriv, &[&third[..], &["true"]].concat()).output().is_ok_and(|out| !out.status.success()) {
        return not_applicable(case, "setuid programs in its folder for temporary files");
    }
    let leasehold = env!("CARGO_BIN_EXE_leasehold");
    assert!(run(leasehold, &["tasks", "add", "a"]).output().unwrap().status.success());
    let script = r#"[ $LEASEHOLD_ATTEMPT = 1 ] || exit 0
        "$SANDBOX/setpriv" --reuid=1 --regid=1 --clear-groups sh -c 'echo $$ > "$SANDBOX/third"; exec sleep 1000'"#;
    let mut worker = run(leasehold, &["tasks", "work", "a", "--contain", "cgroup", "--", "sh", "-c", script]);
    let worker = Running::start(worker.stdout(Stdio::null()).stderr(Stdio::null()));
    let third = read_pid(&sandbox.path("third"));
    let watchdog = wait_until("lease-watchdog", || {
        children(worker.supervisor).into_iter().find(|pid| name_of(*pid).as_deref() == Some("lease-watchdog"))
    });
    kill(watchdog, Signal::SIGKILL).unwrap();
    wait_until_dead(third);
}

#[test]
fn an_unavailable_containment_is_reported_before_anything_is_locked() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("run a --contain jail -- true");
    assert_eq!(ran.code, 64, "{ran:?}");
    let mut wrong = sandbox.command(["run", "a", "--", "true"]);
    let ran = crate::support::run(wrong.env("LEASEHOLD_CONTAIN", "jail"));
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("hint: write one of: auto, cgroup, pidns, none"), "{ran:?}");
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let sandbox = RunSandbox::open_to_all();
    let nobody = Setup { mode: Mode::Cgroup, nobody: true, cgroup: None };
    let ran = nobody.as_user(&sandbox, &sandbox.command("a --contain cgroup", &["true"])).output().unwrap();
    assert_eq!(ran.status.code(), Some(78), "{}", text(&ran.stderr));
    assert!(text(&ran.stderr).contains("--contain cgroup is not available here"), "{}", text(&ran.stderr));
    assert!(!sandbox.path("store.db").exists());
    // Without the option it runs without a cgroup.
    assert!(nobody.as_user(&sandbox, &sandbox.command("a", &["true"])).output().unwrap().status.success());
}

impl RunSandbox {
    /// Folder that other users can use too.
    pub(crate) fn open_to_all() -> Self {
        let sandbox = Self::new();
        std::fs::set_permissions(sandbox.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
        sandbox
    }
}
