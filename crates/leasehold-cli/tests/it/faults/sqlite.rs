//! Faults of the file of a SQLite store under load: a full disk, and a file that is removed or
//! replaced.

use leasehold_torture::FaultKind;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::load::{Load, Loss, worker_command};
use crate::support::{Sandbox, eventually};

/// Processes that have the file open fail from then on; those that start later use the new file.
#[test]
fn a_file_that_is_removed_or_replaced_is_not_used_any_more_and_tokens_rise() {
    let temp = tempfile::tempdir().unwrap();
    let [folder, backup] = ["store", "backup"].map(|name| temp.path().join(name));
    std::fs::create_dir(&backup).unwrap();
    let file = folder.join("store.db");
    // Workers are killed all the time: others take their places.
    let store = format!("sqlite:{}", file.display());
    let mut load = Load::start_with(&store, worker_command(), &[FaultKind::Kill]);
    load.disturb("removed files", Loss::Acknowledged, || {
        for suffix in ["", "-wal", "-shm"] {
            std::fs::remove_file(folder.join(format!("store.db{suffix}"))).unwrap();
        }
    });
    load.disturb("backup in the place of the files", Loss::Acknowledged, || {
        let copy = backup.join("store.db").display().to_string();
        rusqlite::Connection::open(&file).unwrap().execute("VACUUM INTO ?", [copy]).unwrap();
        let exchange = RenameFlags::RENAME_EXCHANGE;
        renameat2(AT_FDCWD, &folder, AT_FDCWD, &backup, exchange).unwrap();
    });
    let verdict = load.assert_fit();
    assert!(verdict.refused("STORE_BROKEN") > 0, "{}", verdict.report);
}

/// The index of the log outlives the database as long as a holder has it open: no process gets a lock
/// beside that holder.
#[test]
fn a_removed_file_whose_log_is_in_use_is_refused_until_its_users_have_ended() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.start("run deploy --ttl 60s -- sleep 60");
    sandbox.until("deploy", |status| status["isLocked"] == true);
    std::fs::remove_file(sandbox.path().join("store.db")).unwrap();
    for words in ["run deploy -- true", "locks list"] {
        let ran = sandbox.run(words);
        assert_eq!(ran.code, 69, "{words}: {ran:?}");
        assert!(ran.stderr.contains("does not match its log"), "{words}: {ran:?}");
        assert!(ran.stderr.contains("hint: end every program that uses the store"), "{words}: {ran:?}");
    }
    kill(Pid::from_raw(i32::try_from(holder.id()).unwrap()), Signal::SIGTERM).unwrap();
    holder.wait().unwrap();
    eventually("the new file is used", || sandbox.run("run deploy -- true").code == 0);
}

mod namespaces {
    //! A disk of its own needs a mount namespace.

    use std::fs::File;
    use std::io::{ErrorKind, Write};
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;

    use crate::faults::load::{Load, Loss};
    use crate::namespaces::UNSHARE;
    use crate::support::run;

    /// Folder with the small disk, if this process is in its namespace.
    const DISK: &str = "LEASEHOLD_TEST_SMALL_DISK";

    #[test]
    fn a_full_disk_loses_nothing() {
        let Some(disk) = std::env::var_os(DISK) else {
            return with_small_disk("faults::sqlite::namespaces::a_full_disk_loses_nothing");
        };
        let disk = Path::new(&disk);
        let mut load = Load::start(&format!("sqlite:{}", disk.join("store.db").display()));
        for _ in 0..2 {
            load.disturb("full disk", Loss::Nothing, || {
                let filler = disk.join("filler");
                fill(&filler);
                std::thread::sleep(Duration::from_secs(3));
                std::fs::remove_file(&filler).unwrap();
            });
        }
        let verdict = load.assert_fit();
        assert!(verdict.refused("STORE_UNAVAILABLE") > 0, "{}", verdict.report);
    }

    /// Runs this test again in a mount namespace with a disk of a few MiB.
    fn with_small_disk(test: &str) {
        let folder = tempfile::tempdir().unwrap();
        let script = format!("mount -t tmpfs -o size=16m none \"${DISK}\"; exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(UNSHARE.iter()).args(["--mount", "--", "sh", "-ec", &script]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", test, "--nocapture"]);
        let ran = run(command.env(DISK, folder.path()));
        eprintln!("{}", ran.stderr);
        assert!(ran.code == 0 && ran.stdout.contains("1 passed"), "{}", ran.stdout);
    }

    /// Writes until the disk is full.
    fn fill(path: &Path) {
        let mut file = File::create(path).unwrap();
        for size in [64 * 1024, 1] {
            let error = loop {
                if let Err(error) = file.write_all(&vec![0; size]) {
                    break error;
                }
            };
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        }
    }
}
