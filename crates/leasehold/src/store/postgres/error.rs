//! Errors of PostgreSQL and their conversion to [`Error`].

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use crate::error::{Error, StoreErrorKind};
use crate::model::LockOp;

/// Reason why an operation failed.
#[derive(Debug)]
pub(super) enum PgError {
    Driver(tokio_postgres::Error),
    InvalidRow(Box<dyn std::error::Error + Send + Sync>),
    Timeout,
    /// Error that already has a message and a hint for users.
    Store(Error),
}

impl PgError {
    /// Converts this to an error that names the database, the problem and a hint.
    pub(super) fn into_error(self, database: &str) -> Error {
        match self {
            Self::Driver(error) => {
                let (kind, problem, hint) = match error.code() {
                    Some(code) => server_error(code),
                    None => connection_error(&error),
                };
                Error::store(kind, format!("{database} {problem}"), hint).because(error)
            }
            Self::Timeout => {
                let hint = "check the network and the server; another session may have locked a row of leasehold's tables";
                Error::store(StoreErrorKind::Unavailable, format!("{database} did not answer in time"), hint)
            }
            Self::InvalidRow(cause) => {
                let hint = "restore leasehold's tables from a backup, or delete the invalid row";
                Error::store(StoreErrorKind::Broken, format!("{database} has an invalid row: {cause}"), hint)
            }
            Self::Store(error) => error,
        }
    }

    pub(super) fn retry(&self) -> Retry {
        match self {
            Self::Driver(error) => retry(error),
            Self::Timeout | Self::InvalidRow(_) | Self::Store(_) => Retry::Never,
        }
    }

    /// Whether another session has locked a row for longer than the timeout. Nothing was executed.
    pub(super) fn is_lock_timeout(&self) -> bool {
        self.code() == Some("55P03")
    }

    pub(super) fn is_deadlock(&self) -> bool {
        self.code() == Some("40P01")
    }

    /// Whether a batch failed because of some of its rows, and none of it was executed.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self.code(), Some("55P03" | "57014" | "40001" | "40P01"))
    }

    /// Whether a pooler has mixed up prepared statements.
    pub(super) fn lost_prepared_statements(&self) -> bool {
        matches!(self.code(), Some("26000" | "42P05"))
    }

    fn code(&self) -> Option<&str> {
        match self {
            Self::Driver(error) => error.code().map(SqlState::code),
            Self::Timeout | Self::InvalidRow(_) | Self::Store(_) => None,
        }
    }
}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<Error> for PgError {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// Kind, problem and hint of an error.
type ErrorText = (StoreErrorKind, &'static str, &'static str);

fn server_error(code: &SqlState) -> ErrorText {
    match code.code() {
        "28P01" | "28000" => (
            StoreErrorKind::NotPermitted,
            "rejects this user",
            "check the user and the password in the URL, and the server's pg_hba.conf",
        ),
        "42501" => (
            StoreErrorKind::NotPermitted,
            "does not permit this operation to this user",
            "docs/engines/postgres.md lists the GRANTs that leasehold needs",
        ),
        "3D000" => (
            StoreErrorKind::Misconfigured,
            "does not exist",
            "name another database in the URL, or create it: CREATE DATABASE …",
        ),
        "42P01" | "3F000" | "42703" => (
            StoreErrorKind::Misconfigured,
            "lacks tables or columns of leasehold",
            "they were removed or changed; restart this program to create the tables again",
        ),
        // A former primary accepts connections as a replica until its address leads to the new one.
        "25006" => (
            StoreErrorKind::Unavailable,
            "cannot be written: it is a replica, or read-only",
            "try again after a failover; otherwise connect to the primary, or with several hosts in the URL add \
             target_session_attrs=read-write",
        ),
        "53300" => (
            StoreErrorKind::Unavailable,
            "has no free connections",
            "raise max_connections, use a pooler, or limit leasehold's connections with pool=1",
        ),
        "55P03" | "57014" => (
            StoreErrorKind::Unavailable,
            "was too slow: another session has locked the row",
            "find the open transaction with: SELECT * FROM pg_stat_activity WHERE state LIKE 'idle in%'",
        ),
        "53100" | "53200" | "53400" => (
            StoreErrorKind::Unavailable,
            "is out of disk space or memory",
            "free disk space or memory on the server",
        ),
        code if code.starts_with("08") || code.starts_with("57P") || code.starts_with("53") => {
            (StoreErrorKind::Unavailable, "cannot be reached", "check that the server is running")
        }
        code if code.starts_with("40") => {
            (StoreErrorKind::Unavailable, "reports repeated conflicts with other transactions", "try again")
        }
        _ => (
            StoreErrorKind::Broken,
            "returned an unexpected error",
            "please report this with the cause below",
        ),
    }
}

fn connection_error(error: &tokio_postgres::Error) -> ErrorText {
    if is_tls(error) {
        return (
            StoreErrorKind::Misconfigured,
            "cannot be reached with encryption",
            "check sslmode and sslrootcert in the URL: the server's certificate must be issued by a CA in that file, \
             with verify-full for the host in the URL, and the server must have encryption enabled",
        );
    }
    (
        StoreErrorKind::Unavailable,
        "cannot be reached",
        "check that the server is running, and the host and the port in the URL",
    )
}

/// Whether the two sides could not agree on encryption. A connection that was lost during the handshake is
/// a lost connection.
fn is_tls(error: &tokio_postgres::Error) -> bool {
    match error.source().and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(io) => io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_some(),
        // The driver does not expose its error kinds, so the message prefix is matched.
        None => error.to_string().starts_with("error performing TLS handshake"),
    }
}

/// Retryability of a failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// Nothing was executed: retry.
    Always,
    /// The connection was lost, and with it the answer: retry idempotent operations only.
    IfIdempotent,
    /// A retry would fail in the same way.
    Never,
}

fn retry(error: &tokio_postgres::Error) -> Retry {
    match error.code().map(SqlState::code) {
        // A prepared statement of another connection, changed tables, conflicting transactions, or
        // a former primary: if the URL has several hosts, another one may be the primary by now.
        Some("26000" | "42P05" | "0A000" | "40001" | "40P01" | "25006") => Retry::Always,
        Some(code) if code.starts_with("57P") || code.starts_with("08") => Retry::IfIdempotent,
        Some(_) => Retry::Never,
        None if is_tls(error) => Retry::Never,
        None => Retry::IfIdempotent,
    }
}

/// Whether an operation can be sent again. If the answer was lost with the connection, the
/// operation may have been executed; then only an idempotent operation is sent again.
pub(super) fn may_retry(op: &LockOp, error: &PgError) -> bool {
    match error.retry() {
        Retry::Always => true,
        Retry::IfIdempotent => op.is_repeatable(),
        Retry::Never => false,
    }
}
