//! One SQLite file, seen from several namespaces of one kernel, as containers see it: a live holder keeps its lock, and
//! what could not be safe is refused.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use super::support::{Bench, Ran, eventually, run};

/// How to get namespaces here: as root, or with a user namespace. A machine that gives none has to be named, so that
/// nothing is skipped silently.
static UNSHARE: LazyLock<Option<Vec<&'static str>>> = LazyLock::new(|| {
    for options in [vec![], vec!["--user", "--map-root-user"]] {
        let mut probe = Command::new("unshare");
        probe.args(&options).args(["--mount", "--pid", "--time", "--boottime", "7", "--fork", "true"]);
        if probe.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            return Some(options);
        }
    }
    let skipped = std::env::var("LEASEHOLD_TEST_SKIP").unwrap_or_default();
    assert!(
        skipped.split(',').any(|name| name.trim() == "namespaces"),
        "no namespaces: `unshare --mount --pid --time` needs root or user namespaces, and Linux 5.6; to go without: \
         LEASEHOLD_TEST_SKIP=namespaces"
    );
    None
});

/// A namespace to run commands in: which kinds are new, and a shell script that prepares it.
#[derive(Clone, Copy)]
struct Room<'a> {
    kinds: &'a [&'a str],
    script: &'a str,
}

/// As LXC and systemd-nspawn do it.
const OTHER_BOOT_ID: Room<'_> = Room {
    kinds: &["--mount"],
    script: "cat /proc/sys/kernel/random/uuid > $ROOM/boot_id && mount --bind $ROOM/boot_id /proc/sys/kernel/random/boot_id",
};
/// As `ProcSubset=pid` of systemd does it.
const NO_BOOT_ID: Room<'_> =
    Room { kinds: &["--mount", "--pid", "--fork"], script: "mount -t proc -o subset=pid proc /proc" };
const EMPTY_PROC: Room<'_> = Room { kinds: &["--mount"], script: "mount -t tmpfs none /proc" };
const PROC_OF_OTHERS: Room<'_> = Room { kinds: &["--pid", "--fork"], script: ":" };
const CONTAINER: Room<'_> = Room { kinds: &["--mount", "--pid", "--fork", "--mount-proc"], script: ":" };
const LATER: Room<'_> = Room { kinds: &["--time", "--boottime", "1000", "--fork"], script: ":" };
const EARLIER: Room<'_> = Room { kinds: &["--time", "--boottime", "-30", "--fork"], script: ":" };

impl Room<'_> {
    /// `leasehold` with these words, in the namespace. None if this machine has no namespaces and says so.
    fn command(&self, bench: &Bench, words: &str) -> Option<Command> {
        let options = UNSHARE.as_ref()?;
        let script = format!("{{ {}; }} >&2; exec \"$0\" \"$@\"", self.script);
        let outer = [&["unshare"], options.as_slice(), self.kinds, &["--", "sh", "-ec", &script]].concat();
        let mut command = bench.command_in(&outer, words);
        command.env("ROOM", bench.path());
        Some(command)
    }

    fn run(&self, bench: &Bench, words: &str) -> Option<Ran> {
        self.command(bench, words).map(|mut command| run(&mut command))
    }
}

/// A `run` that has the lock until it is told to end.
struct Holder {
    child: Option<Child>,
}

impl Holder {
    fn start(bench: &Bench, room: Option<Room<'_>>) -> Option<Self> {
        let script = bench.path().join("hold.sh");
        fs::write(&script, "while ! [ -e done ]; do sleep 0.02; done\n").unwrap();
        let words = format!("run deploy --ttl 30s -- sh {}", script.display());
        let mut command = match room {
            Some(room) => room.command(bench, &words)?,
            None => bench.command(words.split_whitespace()),
        };
        let child = command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        let holder = Self { child: Some(child) };
        bench.until("deploy", |status| status["isLocked"] == true);
        Some(holder)
    }

    /// Its command ends, and it has had its lock to the end.
    fn ends_well(mut self, bench: &Bench) {
        fs::write(bench.path().join("done"), "").unwrap();
        let status = self.child.take().unwrap().wait().unwrap();
        assert_eq!(status.code(), Some(0), "{status}");
        let told = bench.ok("history deploy");
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

/// Everything that a process can do from the room, beside a holder that is at work outside.
fn a_live_holder_keeps_its_lock(room: Room<'_>) {
    let bench = Bench::new();
    let Some(holder) = Holder::start(&bench, None) else { return };
    let Some(refused) = room.run(&bench, "run deploy -- true") else { return };
    assert_eq!(refused.code, 75, "{refused:?}");
    for words in ["locks status deploy", "locks list", "history", "doctor", "sweep", "run other -- true"] {
        let ran = room.run(&bench, words).unwrap();
        assert_eq!(ran.code, 0, "{words}: {ran:?}");
    }
    assert_eq!(bench.run("run deploy -- true").code, 75);
    holder.ends_well(&bench);
    let taken = room.run(&bench, "run deploy -- true").unwrap();
    assert_eq!(taken.code, 0, "{taken:?}");
}

/// The other way round: the holder is in the room.
fn a_holder_inside_keeps_its_lock(room: Room<'_>) {
    let bench = Bench::new();
    let Some(holder) = Holder::start(&bench, Some(room)) else { return };
    for _ in 0..2 {
        assert_eq!(bench.run("run deploy -- true").code, 75);
        assert_eq!(room.run(&bench, "run deploy -- true").unwrap().code, 75);
        bench.ok("sweep");
    }
    holder.ends_well(&bench);
    assert_eq!(bench.run("run deploy -- true").code, 0);
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
    // Numbers of processes inside, and a `/proc` that has them for others.
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

/// A lease without a process, such as one that was taken by hand, has its time and no more.
#[test]
fn boot_ids_in_turns_neither_extend_a_lease_nor_move_the_clock() {
    let bench = Bench::new();
    bench.hold("deploy --ttl 4s");
    let ends = || bench.json("locks status deploy")["holders"][0]["expiresAt"].clone();
    let before = ends();
    for _ in 0..3 {
        for room in [OTHER_BOOT_ID, NO_BOOT_ID] {
            let Some(ran) = room.run(&bench, "run other -- true") else { return };
            assert_eq!(ran.code, 0, "{ran:?}");
            assert_eq!(room.run(&bench, "locks status deploy").unwrap().code, 0);
            bench.ok("run other -- true");
        }
        assert!([&before, &serde_json::Value::Null].contains(&&ends()), "{before} became {}", ends());
    }
    eventually("the lease ends", || bench.run("run deploy -- true").code == 0);
    let told = bench.ok("doctor");
    assert!(told.contains("4 boot ids seen since the machine started"), "{told}");
    assert!(told.contains("the store's clock agrees with this machine's"), "{told}");
}

#[test]
fn a_time_namespace_is_told_and_one_that_cannot_be_known_is_refused() {
    let bench = Bench::new();
    bench.ok("run deploy -- true");
    let Some(ran) = LATER.run(&bench, "doctor") else { return };
    assert!(ran.stdout.contains("its boot clock is 1000 s ahead of the machine's; corrected"), "{ran:?}");
    assert!(ran.stdout.contains("the store's clock agrees with this machine's"), "{ran:?}");
    let hidden =
        Room { kinds: &["--mount", "--time", "--boottime", "1000", "--fork"], script: EMPTY_PROC.script };
    let ran = hidden.run(&bench, "run deploy -- true").unwrap();
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("the offset of its time namespace is unknown"), "{ran:?}");
    assert!(ran.stderr.contains("hint: mount /proc"), "{ran:?}");
}

#[test]
fn a_bind_mount_of_the_file_alone_is_refused_and_one_of_its_folder_is_not() {
    let bench = Bench::new();
    let Some(holder) = Holder::start(&bench, None) else { return };
    fs::create_dir(bench.path().join("inside")).unwrap();
    let file = Room {
        kinds: &["--mount"],
        script: "touch inside/leases.db && mount --bind store.db inside/leases.db",
    };
    let ran = file.run(&bench, "--store sqlite:inside/leases.db run deploy -- true").unwrap();
    assert_eq!(ran.code, 78, "{ran:?}");
    assert!(ran.stderr.contains("leases.db is a mount of the file alone"), "{ran:?}");
    assert!(ran.stderr.contains("hint: mount the folder that it is in, not the file"), "{ran:?}");
    let folder = Room { kinds: &["--mount"], script: "mount --bind . inside" };
    let ran = folder.run(&bench, "--store sqlite:inside/store.db run deploy -- true").unwrap();
    assert_eq!(ran.code, 75, "{ran:?}");
    holder.ends_well(&bench);
}

#[test]
fn a_hard_link_to_the_file_is_refused() {
    let bench = Bench::new();
    let holder = Holder::start(&bench, None).unwrap();
    fs::hard_link(bench.path().join("store.db"), bench.path().join("other.db")).unwrap();
    for name in ["other.db", "store.db"] {
        let ran = bench.run(&format!("--store sqlite:{name} run deploy -- true"));
        assert_eq!(ran.code, 78, "{ran:?}");
        assert!(ran.stderr.contains("has 2 hard links"), "{ran:?}");
    }
    fs::remove_file(bench.path().join("other.db")).unwrap();
    assert_eq!(bench.run("run deploy -- true").code, 75);
    holder.ends_well(&bench);
}
