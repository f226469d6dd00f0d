//! Health checks of the database file for `leasehold doctor`.

use std::path::Path;

use super::boot::{BootEvidence, RecordedBoot};
use super::connection::Database;
use super::connection::wal_check::{self, Log};
use super::file::wal_path;
use crate::store::support::machine::namespaces::boottime_offset;
use crate::store::{Boot, HealthCheck};

pub(super) fn check_health(database: &mut Database, path: &Path) -> rusqlite::Result<Vec<HealthCheck>> {
    let mut found = check_permissions(path);
    found.extend(check_space(path));
    found.extend(check_wal(database, path)?);
    found.extend(check_boot(&RecordedBoot::load(&database.conn)?, &database.boot()));
    found.extend(check_time_namespace());
    Ok(found)
}

/// Checks the file mode: a user who can read the file sees all holders; a user who can write it can
/// take any lock.
#[cfg(unix)]
fn check_permissions(path: &Path) -> Vec<HealthCheck> {
    use std::os::unix::fs::PermissionsExt;

    const NAME: &str = "permissions";
    let Ok(found) = std::fs::metadata(path) else {
        return Vec::new();
    };
    let mode = found.permissions().mode() & 0o777;
    let others = mode & 0o077;
    if others == 0 {
        return vec![HealthCheck::ok(
            NAME,
            format!("only the owner can read or write the file (mode {mode:03o})"),
        )];
    }
    let what = if others & 0o022 == 0 { "read" } else { "change" };
    let detail = format!("users other than the owner can {what} the file (mode {mode:03o})");
    let file = path.display().to_string().replace('\'', "'\\''");
    let hint = format!("unless this is intended: chmod 600 '{file}'");
    vec![HealthCheck::issue(NAME, detail, "STORE_OPEN_TO_OTHERS", hint)]
}

#[cfg(not(unix))]
fn check_permissions(_path: &Path) -> Vec<HealthCheck> {
    Vec::new()
}

/// Free space below which writes may fail soon, in bytes: the log alone needs some megabytes.
#[cfg(unix)]
const MIN_FREE: u64 = 16 << 20;

/// Reports a disk that is nearly full: then locks can be read, but neither acquired nor released.
#[cfg(unix)]
fn check_space(path: &Path) -> Option<HealthCheck> {
    let disk = rustix::fs::statvfs(path).ok()?;
    // Some network file systems do not report their size.
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if disk.f_blocks == 0 || free >= MIN_FREE {
        return None;
    }
    let detail = format!("its disk is nearly full: {} KiB are free", free >> 10);
    Some(HealthCheck::issue("space", detail, "STORE_DISK_FULL", "free space on the disk of the file"))
}

#[cfg(not(unix))]
fn check_space(_path: &Path) -> Option<HealthCheck> {
    None
}

/// Checks for a log that ends too early: SQLite silently ignores everything after a damaged frame.
fn check_wal(database: &mut Database, path: &Path) -> rusqlite::Result<Option<HealthCheck>> {
    let found = database.with_write_lock(|| wal_check::read(&wal_path(path)))?;
    let detail = match found {
        Ok(Log::Empty | Log::Intact { .. }) => return Ok(None),
        Ok(Log::Damaged { frames, commits }) => format!(
            "the log can be read up to frame {frames}; {} after it {} ignored",
            counted(commits, "committed transaction"),
            if commits == 1 { "is" } else { "are" }
        ),
        Ok(Log::NoHeader) => "the log is not an SQLite log and is ignored".to_owned(),
        Err(error) => format!("the log cannot be read: {error}"),
    };
    let hint = "after a power cut, these writes had not reached the disk; otherwise check for a failing disk or for a \
                program that writes to the file";
    Ok(Some(HealthCheck::issue("log", detail, "STORE_LOG_DAMAGED", hint)))
}

/// Reports the boot unless it is identified by exactly one boot id.
fn check_boot(known: &RecordedBoot, now: &Boot) -> Option<HealthCheck> {
    const NAME: &str = "boot";
    let ids = known.ids.len();
    let detail = match known.evidence(now) {
        BootEvidence::FirstWrite => return None,
        BootEvidence::Restarted => {
            "the machine was restarted since the last write; the next write frees the leases of its processes".to_owned()
        }
        BootEvidence::RestartedIfAlone => "the machine may have been restarted since the last write; the next write determines this, and \
                                      the store's clock may be behind until then"
            .to_owned(),
        _ if now.id.is_none() => {
            "this process sees no boot id: only the boot clock proves a restart, and leases of an earlier boot may \
             be held until they expire"
                .to_owned()
        }
        BootEvidence::NewId(_) => format!(
            "{} seen since the machine started, and this process sees another: containers of one kernel",
            counted(ids, "boot id")
        ),
        _ if ids > 1 => format!("{} seen since the machine started: containers of one kernel", counted(ids, "boot id")),
        _ => return None,
    };
    Some(HealthCheck::ok(NAME, detail))
}

/// Reports a time namespace whose boot clock differs from that of the machine.
fn check_time_namespace() -> Option<HealthCheck> {
    let seconds = boottime_offset()? / 1_000_000_000;
    let side = if seconds < 0 { "behind" } else { "ahead of" };
    let detail = format!("its boot clock is {} s {side} the machine's; corrected", seconds.abs());
    (seconds != 0).then(|| HealthCheck::ok("time namespace", detail))
}

fn counted(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}
