//! One SQLite file, seen from several namespaces of one kernel, as containers see it: a live holder
//! keeps its lock, and what would be unsafe is refused.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use super::support::{Ran, Sandbox, eventually, run};

/// Options to create namespaces here: as root, or with a user namespace.
pub(crate) static UNSHARE: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    for options in [vec![], vec!["--user", "--map-root-user"]] {
        let mut probe = Command::new("unshare");
        probe.args(&options).args(["--mount", "--pid", "--time", "--boottime", "7", "--fork", "true"]);
        if probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return options;
        }
    }
    panic!(
        "no namespaces: `unshare --mount --pid --time` needs root or user namespaces, and Linux 5.6; to go without: \
         `cargo xtask test --skip namespaces`"
    )
});

/// Namespace to run commands in: its new kinds, and a shell script that prepares it.
#[derive(Clone, Copy)]
struct Room<'a> {
    kinds: &'a [&'a str],
    script: &'a str,
}

/// As in LXC and systemd-nspawn.
const OTHER_BOOT_ID: Room<'_> = Room {
    kinds: &["--mount"],
    script: "cat /proc/sys/kernel/random/uuid > $ROOM/boot_id && mount --bind $ROOM/boot_id /proc/sys/kernel/random/boot_id",
};
/// As with `ProcSubset=pid` of systemd.
const NO_BOOT_ID: Room<'_> =
    Room { kinds: &["--mount", "--pid", "--fork"], script: "mount -t proc -o subset=pid proc /proc" };
const EMPTY_PROC: Room<'_> = Room { kinds: &["--mount"], script: "mount -t tmpfs none /proc" };
const PROC_OF_OTHERS: Room<'_> = Room { kinds: &["--pid", "--fork"], script: ":" };
const CONTAINER: Room<'_> = Room { kinds: &["--mount", "--pid", "--fork", "--mount-proc"], script: ":" };
const LATER: Room<'_> = Room { kinds: &["--time", "--boottime", "1000", "--fork"], script: ":" };
const EARLIER: Room<'_> = Room { kinds: &["--time", "--boottime", "-30", "--fork"], script: ":" };

impl Room<'_> {
    /// Returns `leasehold` with these arguments, in the namespace.
    fn command(&self, sandbox: &Sandbox, words: &str) -> Command {
        let script = format!("{{ {}; }} >&2; exec \"$0\" \"$@\"", self.script);
        let outer = [&["unshare"], UNSHARE.as_slice(), self.kinds, &["--", "sh", "-ec", &script]].concat();
        let mut command = sandbox.command_in(&outer, words);
        command.env("ROOM", sandbox.path());
        command
    }

    fn run(&self, sandbox: &Sandbox, words: &str) -> Ran {
        run(&mut self.command(sandbox, words))
    }
}

/// A `run` that holds the lock until it is asked to stop.
struct Holder {
    child: Option<Child>,
}

impl Holder {
    fn start(sandbox: &Sandbox, room: Option<Room<'_>>) -> Self {
        let script = sandbox.path().join("hold.sh");
        fs::write(&script, "while ! [ -e done ]; do sleep 0.02; done\n").unwrap();
        let words = format!("run deploy --ttl 30s -- sh {}", script.display());
        let mut command = match room {
            Some(room) => room.command(sandbox, &words),
            None => sandbox.command(words.split_whitespace()),
        };
        let child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let holder = Self { child: Some(child) };
        sandbox.until("deploy", |status| status["isLocked"] == true);
        holder
    }

    /// Ends its command, and checks that it has held its lock to the end.
    fn ends_well(mut self, sandbox: &Sandbox) {
        fs::write(sandbox.path().join("done"), "").unwrap();
        let status = self.child.take().unwrap().wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
        let told = sandbox.ok("history deploy");
        assert!(told.contains("released") && !told.contains("gone"), "{told}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs every operation inside the namespace while a holder works outside.
fn a_live_holder_keeps_its_lock(room: Room<'_>) {
    let sandbox = Sandbox::new();
    let holder = Holder::start(&sandbox, None);
    let refused = room.run(&sandbox, "run deploy -- true");
    assert_eq!(refused.code, 75, "{refused:?}");
    for words in ["locks status deploy", "locks list", "history", "doctor", "sweep", "run other -- true"] {
        let ran = room.run(&sandbox, words);
        assert_eq!(ran.code, 0, "{words}: {ran:?}");
    }
    assert_eq!(sandbox.run("run deploy -- true").code, 75);
    holder.ends_well(&sandbox);
    let taken = room.run(&sandbox, "run deploy -- true");
    assert_eq!(taken.code, 0, "{taken:?}");
}

/// The reverse: the holder is inside the namespace.
fn a_holder_inside_keeps_its_lock(room: Room<'_>) {
    let sandbox = Sandbox::new();
    let holder = Holder::start(&sandbox, Some(room));
    for _ in 0..2 {
        assert_eq!(sandbox.run("run deploy -- true").code, 75);
        assert_eq!(room.run(&sandbox, "run deploy -- true").code, 75);
        sandbox.ok("sweep");
    }
    holder.ends_well(&sandbox);
    assert_eq!(sandbox.run("run deploy -- true").code, 0);
}

#[test]
fn another_boot_id_ends_no_lease() {
    a_live_holder_keeps_its_lock(OTHER_BOOT_ID);
    a_holder_inside_keeps_its_lock(OTHER_BOOT_ID);
}

#[test]
fn a_proc_without_a_boot_id_ends_no_lease() {
    a_live_holder_keeps_its_lock(NO_BOOT_ID);
    a_holder_inside_keeps_its_lock(NO_BOOT_ID);
}

#[test]
fn an_empty_proc_ends_no_lease() {
    a_live_holder_keeps_its_lock(EMPTY_PROC);
}

#[test]
fn a_pid_namespace_ends_no_lease() {
    a_live_holder_keeps_its_lock(CONTAINER);
    a_holder_inside_keeps_its_lock(CONTAINER);
    // Pids of the namespace, and a `/proc` that shows other processes under them.
    a_live_holder_keeps_its_lock(PROC_OF_OTHERS);
    a_holder_inside_keeps_its_lock(PROC_OF_OTHERS);
}

#[test]
fn a_time_namespace_ends_no_lease() {
    for room in [LATER, EARLIER] {
        a_live_holder_keeps_its_lock(room);
        a_holder_inside_keeps_its_lock(room);
    }
}

/// A lease without a process, such as one of `locks acquire`, lasts for its ttl only.
#[test]
fn boot_ids_in_turns_neither_extend_a_lease_nor_move_the_clock() {
    let sandbox = Sandbox::new();
    sandbox.hold("deploy --ttl 4s");
    let ends = || sandbox.json("locks status deploy")["holders"][0]["expiresAt"].clone();
    let before = ends();
    for _ in 0..3 {
        for room in [OTHER_BOOT_ID, NO_BOOT_ID] {
            let ran = room.run(&sandbox, "run other -- true");
            assert_eq!(ran.code, 0, "{ran:?}");
            assert_eq!(room.run(&sandbox, "locks status deploy").code, 0);
            sandbox.ok("run other -- true");
        }
        assert!([&before, &serde_json::Value::Null].contains(&&ends()), "{before} became {}", ends());
    }
    eventually("the lease ends", || sandbox.run("run deploy -- true").code == 0);
    let told = sandbox.ok("doctor");
    assert!(told.contains("4 boot ids seen since the machine started"), "{told}");
    assert!(told.contains("the store's clock agrees with this machine's"), "{told}");
}

#[test]
fn a_time_namespace_is_detected_and_an_unknown_one_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.ok("run deploy -- true");
    let ran = LATER.run(&sandbox, "doctor");
    assert!(ran.stdout.contains("its boot clock is 1000 s ahead of the machine's; corrected"), "{ran:?}");
    assert!(ran.stdout.contains("the store's clock agrees with this machine's"), "{ran:?}");
    let hidden =
        Room { kinds: &["--mount", "--time", "--boottime", "1000", "--fork"], script: EMPTY_PROC.script };
    let ran = hidden.run(&sandbox, "run deploy -- true");
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("the offset of its time namespace is unknown"), "{ran:?}");
    assert!(ran.stderr.contains("hint: mount /proc"), "{ran:?}");
}

#[test]
fn a_bind_mount_of_the_file_alone_is_refused_and_one_of_its_folder_is_not() {
    let sandbox = Sandbox::new();
    let holder = Holder::start(&sandbox, None);
    fs::create_dir(sandbox.path().join("inside")).unwrap();
    let file = Room {
        kinds: &["--mount"],
        script: "touch inside/leases.db && mount --bind store.db inside/leases.db",
    };
    let ran = file.run(&sandbox, "--store sqlite:inside/leases.db run deploy -- true");
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("leases.db is a mount of the file alone"), "{ran:?}");
    assert!(ran.stderr.contains("hint: mount the folder of the file, not the file"), "{ran:?}");
    let folder = Room { kinds: &["--mount"], script: "mount --bind . inside" };
    let ran = folder.run(&sandbox, "--store sqlite:inside/store.db run deploy -- true");
    assert_eq!(ran.code, 75, "{ran:?}");
    holder.ends_well(&sandbox);
}

#[test]
fn a_hard_link_to_the_file_is_refused() {
    let sandbox = Sandbox::new();
    let holder = Holder::start(&sandbox, None);
    fs::hard_link(sandbox.path().join("store.db"), sandbox.path().join("other.db")).unwrap();
    for name in ["other.db", "store.db"] {
        let ran = sandbox.run(&format!("--store sqlite:{name} run deploy -- true"));
        assert_eq!(ran.code, 78, "{ran:?}");
        assert!(ran.stderr.contains("has 2 hard links"), "{ran:?}");
    }
    fs::remove_file(sandbox.path().join("other.db")).unwrap();
    assert_eq!(sandbox.run("run deploy -- true").code, 75);
    holder.ends_well(&sandbox);
}

#[test]
fn doctor_reports_a_disk_that_is_nearly_full() {
    let sandbox = Sandbox::new();
    let small = Room {
        kinds: &["--mount"],
        script: "mkdir $ROOM/small && mount -t tmpfs -o size=8m none $ROOM/small",
    };
    let ran = small.run(&sandbox, &format!("--store sqlite:{}/small/a.db doctor", sandbox.path().display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("nearly full") && ran.stdout.contains("[STORE_DISK_FULL]"), "{}", ran.stdout);
}
