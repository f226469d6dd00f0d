//! Errors of PostgreSQL and their conversion to [`Error`].

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use crate::error::{Error, StoreErrorKind};
use crate::model::LockOp;

/// Reason why an operation failed.
#[derive(Debug)]
pub(super) enum Fail {
    /// Error of the driver or the server.
    Said(tokio_postgres::Error),
    /// A row has an invalid value.
    Unreadable(Box<dyn std::error::Error + Send + Sync>),
    /// No answer in time.
    Late,
    /// Error that already has a message and a hint for users.
    Ours(Error),
}

impl Fail {
    /// Converts this to an error with the place, the problem and a hint.
    pub(super) fn explain(self, place: &str) -> Error {
        match self {
            Self::Said(error) => explain(place, error),
            Self::Late => {
                let hint =
                    "look at the network and the server; somebody may be holding a row of leasehold's tables";
                Error::store(StoreErrorKind::Unavailable, format!("{place} did not answer in time"), hint)
            }
            Self::Unreadable(why) => {
                let hint = "restore leasehold's tables from a backup, or remove the row that cannot be read";
                Error::store(
                    StoreErrorKind::Broken,
                    format!("{place} has a row that makes no sense: {why}"),
                    hint,
                )
            }
            Self::Ours(error) => error,
        }
    }

    /// Returns whether the operation can be retried.
    pub(super) fn again(&self) -> Again {
        match self {
            Self::Said(error) => again(error),
            Self::Late | Self::Unreadable(_) | Self::Ours(_) => Again::Never,
        }
    }
}

impl From<tokio_postgres::Error> for Fail {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Said(error)
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

/// Converts an error of PostgreSQL to [`Error`].
fn explain(place: &str, error: tokio_postgres::Error) -> Error {
    let (trouble, what, hint) = match error.code() {
        Some(code) => of_server(code),
        None => of_connection(&error),
    };
    Error::store(trouble, format!("{place} {what}"), hint).because(error)
}

type Words = (StoreErrorKind, &'static str, &'static str);

fn of_server(code: &SqlState) -> Words {
    match code.code() {
        "28P01" | "28000" => (
            StoreErrorKind::NotPermitted,
            "does not let this user in",
            "look at the user and the password in the URL, and at the server's pg_hba.conf",
        ),
        "42501" => (
            StoreErrorKind::NotPermitted,
            "does not let this user do that",
            "docs/engines/postgres.md has the GRANTs that leasehold needs",
        ),
        "3D000" => (
            StoreErrorKind::Misconfigured,
            "does not exist",
            "name another database in the URL, or create it: CREATE DATABASE …",
        ),
        "42P01" | "3F000" | "42703" => (
            StoreErrorKind::Misconfigured,
            "has not the tables that it had",
            "somebody removed or changed them: start anew to have them made again",
        ),
        "25006" => (
            StoreErrorKind::Misconfigured,
            "cannot be written: it is a replica, or read-only",
            "name the primary; with several hosts in the URL add target_session_attrs=read-write",
        ),
        "53300" => (
            StoreErrorKind::Unavailable,
            "has no connection left",
            "raise max_connections, use a pooler, or let leasehold use fewer with pool=1",
        ),
        "55P03" | "57014" => (
            StoreErrorKind::Unavailable,
            "was too slow: somebody has been holding the lock's row",
            "find the transaction that is open with: SELECT * FROM pg_stat_activity WHERE state LIKE 'idle in%'",
        ),
        "53100" | "53200" | "53400" => {
            (StoreErrorKind::Unavailable, "has no room left", "make room on the server, disk or memory")
        }
        code if code.starts_with("08") || code.starts_with("57P") || code.starts_with("53") => {
            (StoreErrorKind::Unavailable, "cannot be reached", "see whether the server is up")
        }
        code if code.starts_with("40") => {
            (StoreErrorKind::Unavailable, "had others in the way again and again", "try again")
        }
        _ => (StoreErrorKind::Broken, "did what it must not do", "please report this with the cause below"),
    }
}

fn of_connection(error: &tokio_postgres::Error) -> Words {
    if is_tls(error) {
        return (
            StoreErrorKind::Misconfigured,
            "cannot be reached with encryption",
            "look at sslmode and sslrootcert in the URL: the server's certificate must be made out to the host \
             (verify-full) by somebody in that file, and the server must have encryption on",
        );
    }
    (
        StoreErrorKind::Unavailable,
        "cannot be reached",
        "see whether the server is up, and at the host and the port in the URL",
    )
}

fn is_tls(error: &tokio_postgres::Error) -> bool {
    // The driver does not expose its error kinds, so the message prefix is matched.
    if error.to_string().starts_with("error performing TLS handshake") {
        return true;
    }
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    io.and_then(std::io::Error::get_ref).and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some()
}

/// Retryability of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Nothing was executed: retry.
    Surely,
    /// The connection was lost, and with it the answer: retry idempotent operations only.
    Perhaps,
    /// A retry would fail in the same way.
    Never,
}

fn again(error: &tokio_postgres::Error) -> Again {
    match error.code().map(SqlState::code) {
        // A prepared statement of another connection, changed tables, conflicting transactions, or
        // a former primary: if the URL has several hosts, another one may be the primary by now.
        Some("26000" | "42P05" | "0A000" | "40001" | "40P01" | "25006") => Again::Surely,
        Some(code) if code.starts_with("57P") || code.starts_with("08") => Again::Perhaps,
        Some(_) => Again::Never,
        None if is_tls(error) => Again::Never,
        None => Again::Perhaps,
    }
}

/// Whether a pooler has mixed up prepared statements.
pub(super) fn lost_its_statements(error: &tokio_postgres::Error) -> bool {
    matches!(error.code().map(SqlState::code), Some("26000" | "42P05"))
}

/// Whether another session has locked a row for longer than the timeout. Nothing was executed.
pub(super) fn is_stuck(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Whether a batch failed because of some of its rows, and none of it was executed.
pub(super) fn is_in_the_way(error: &tokio_postgres::Error) -> bool {
    matches!(error.code().map(SqlState::code), Some("55P03" | "57014" | "40001" | "40P01"))
}

/// Whether an operation can be sent again. If the answer was lost with the connection, the
/// operation may have been executed; then only an idempotent operation is sent again.
pub(super) fn may_try_again(op: &LockOp, fail: &Fail) -> bool {
    match fail.again() {
        Again::Surely => true,
        Again::Perhaps => op.is_repeatable(),
        Again::Never => false,
    }
}
