//! Maps errors of SQLite and of the store's threads to store errors.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::error::{Error, StoreErrorKind, StoreRemedy};

/// Whether another connection is writing.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Returns the error of a connection that must not wait for another one.
pub(super) fn busy() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None)
}

/// Cause of the error of a process whose boot clock does not agree with the store.
#[derive(Debug)]
struct ClockMismatch;

impl std::fmt::Display for ClockMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the boot clocks differ")
    }
}

impl std::error::Error for ClockMismatch {}

/// Returns the error of a process whose boot clock does not agree with the store.
pub(super) fn clock_mismatch() -> rusqlite::Error {
    rusqlite::Error::ToSqlConversionFailure(Box::new(ClockMismatch))
}

fn is_clock_mismatch(error: &rusqlite::Error) -> bool {
    matches!(error, rusqlite::Error::ToSqlConversionFailure(cause) if cause.is::<ClockMismatch>())
}

/// Whether the process has reached its limit of open files. SQLite reports only that it could not
/// open a file.
fn is_out_of_files(path: &Path, error: &rusqlite::Error) -> bool {
    // The probe must open only what SQLite never locks: closing a second descriptor of the database
    // would release SQLite's locks.
    let probe = || path.parent().and_then(|folder| std::fs::File::open(folder).err());
    let codes = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    error.sqlite_error_code() == Some(ErrorCode::CannotOpen)
        && probe().is_some_and(|error| codes.contains(&error.raw_os_error()))
}

/// Whether a file is shorter than the index of the log says. The index outlives a removed file as long
/// as a process has it open.
fn is_short_read(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHORT_READ)
}

/// Converts an SQLite error into a store error that names the file, the problem and the remedy.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> Error {
    let at = path.display();
    let (kind, what, hint) = match error.sqlite_error_code() {
        _ if is_busy(&error) => (
            StoreErrorKind::Unavailable,
            "is busy: another process has been writing for too long",
            "retry; if this persists, find the process that has the file open",
        ),
        _ if is_clock_mismatch(&error) => (
            StoreErrorKind::Misconfigured,
            "has the time of a process whose boot clock does not agree with that of this one, and the offset of a \
             time namespace is unknown",
            "mount /proc, so that each process can read /proc/self/timens_offsets; the time is corrected once no \
             other process has the store open and no lease is held",
        ),
        _ if is_out_of_files(path, &error) => (
            StoreErrorKind::Unavailable,
            "cannot be opened: too many open files",
            "raise the limit of open files (ulimit -n)",
        ),
        Some(ErrorCode::DiskFull) => {
            (StoreErrorKind::Unavailable, "cannot be written: the disk is full", "free space on its disk")
        }
        Some(ErrorCode::ReadOnly) => (
            StoreErrorKind::NotPermitted,
            "is read-only",
            "grant this user write permission for the file and its folder",
        ),
        Some(
            ErrorCode::PermissionDenied | ErrorCode::CannotOpen | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            StoreErrorKind::NotPermitted,
            "cannot be opened",
            "grant this user read and write permission for the file and its folder",
        ),
        Some(ErrorCode::NotADatabase) => {
            (StoreErrorKind::Misconfigured, "is not a database", "name another file")
        }
        Some(ErrorCode::DatabaseCorrupt) => (
            StoreErrorKind::Broken,
            "is damaged",
            "restore it from a backup, or move it away and start with a new one",
        ),
        _ if is_short_read(&error) => (
            StoreErrorKind::Unavailable,
            "does not match its log: a process has another file open that was removed or replaced",
            "end every program that uses the store, then start them again",
        ),
        Some(ErrorCode::SystemIoFailure) => {
            (StoreErrorKind::Unavailable, "cannot be read or written", "check the disk and the system log")
        }
        _ => (
            StoreErrorKind::Broken,
            "returned an unexpected error",
            "please report this with the cause below",
        ),
    };
    let is_other = error.sqlite_error_code() == Some(ErrorCode::NotADatabase);
    let error = Error::store(kind, format!("the store {at} {what}"), hint).because(error);
    if is_other { error.with_remedy(StoreRemedy::OtherFile) } else { error }
}

pub(super) fn thread_error(error: std::io::Error) -> Error {
    let hint = "raise the limit of threads for this user (ulimit -u)";
    Error::store(StoreErrorKind::Unavailable, "the store's thread cannot be started", hint).because(error)
}

pub(super) fn thread_ended() -> Error {
    Error::store(StoreErrorKind::Broken, "the store's thread has ended", "please report this")
}
