//! Parses the store URL into a path and settings.

use std::path::PathBuf;
use std::time::Duration;

use super::connection::MAX_LOG;
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::support::machine::local_token::state_folder;
use crate::store::support::url::url_options::UrlOptions;
use crate::store::ticket_rows::LONG_QUEUE;
use crate::store::{Boot, Clock, StoreUrl};

/// Path and settings of the database.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Path of the database file.
    pub path: PathBuf,
    /// Guarantee about synced data when a call returns.
    pub durability: Durability,
    /// Maximum wait for other writers.
    pub busy_timeout: Duration,
    /// Clock of the engine; the boot clock by default.
    pub clock: Option<Clock>,
    /// Boot to assume; by default the one that the system reports.
    pub boot: Option<Boot>,
    /// Maximum number of events in the history.
    pub max_events: u32,
    /// Maximum number of tickets that are stored inside the lock's record; longer queues are stored
    /// as rows.
    #[doc(hidden)]
    pub long_queue: usize,
    /// Size of the log, in bytes, above which it is emptied.
    #[doc(hidden)]
    pub max_log: u64,
}

/// Guarantee about synced data when a call returns. With either setting a crash of the program
/// loses nothing, and no token is ever issued twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Durability {
    /// Grants to holders that can outlive this machine are synced, and so are renewals that make
    /// their leases longer. Leases of processes on this machine are not: a power cut ends these
    /// processes together with their leases.
    Holders,
    /// Every write is synced.
    Full,
}

/// Settings of a URL.
const SETTINGS: [&str; 2] = ["sync=full|holders", "busy=5s"];

impl SqliteOptions {
    /// Returns options for `path` with the default settings.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            durability: Durability::Holders,
            busy_timeout: Duration::from_secs(5),
            clock: None,
            boot: None,
            max_events: 100_000,
            long_queue: LONG_QUEUE,
            max_log: MAX_LOG,
        }
    }

    /// Parses `sqlite:PATH`, `sqlite://PATH` or `sqlite:` for the default path, then
    /// `?sync=full&busy=5s`.
    pub(crate) fn from_url(url: &StoreUrl) -> Result<Self> {
        let path = match url.location() {
            ":memory:" => {
                return Err(invalid(
                    "invalid path ':memory:': such a database has a single connection",
                    "use memory: instead",
                ));
            }
            "" => default_path()?,
            path => PathBuf::from(path),
        };
        let mut options = Self::new(path);
        let given = UrlOptions::parse(url, "a SQLite store", &SETTINGS)?;
        let sync = [("full", Durability::Full), ("holders", Durability::Holders)];
        options.durability = given.choice("sync", &sync)?.unwrap_or(options.durability);
        options.busy_timeout = given.duration("busy", Duration::ZERO)?.unwrap_or(options.busy_timeout);
        Ok(options)
    }
}

fn invalid(message: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, message, hint)
}

/// Returns `$XDG_STATE_HOME/leasehold/leasehold.db`, or the same under `~/.local/state`.
fn default_path() -> Result<PathBuf> {
    match state_folder() {
        Some(folder) => Ok(folder.join("leasehold.db")),
        None => Err(invalid(
            "the store has no default path: neither XDG_STATE_HOME nor HOME is an absolute path",
            "name a file, such as sqlite:/var/lib/leasehold/leasehold.db",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<SqliteOptions> {
        SqliteOptions::from_url(&StoreUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_names_a_path_and_its_settings() {
        let given = options("sqlite:/var/lib/x.db?sync=full&busy=250ms").unwrap();
        assert_eq!(given.path, PathBuf::from("/var/lib/x.db"));
        assert_eq!(given.durability, Durability::Full);
        assert_eq!(given.busy_timeout, Duration::from_millis(250));
        assert_eq!(options("sqlite:///a/b.db").unwrap().path, PathBuf::from("/a/b.db"));
        assert_eq!(options("sqlite:b.db").unwrap().path, PathBuf::from("b.db"));
    }

    #[test]
    fn unknown_settings_and_values_are_rejected() {
        for url in ["x.db?sync=off", "x.db?busy=never", "x.db?mode=ro", "x.db?busy=1s&busy=2s", ":memory:"] {
            assert_eq!(options(&format!("sqlite:{url}")).unwrap_err().code(), "STORE_MISCONFIGURED", "{url}");
        }
    }
}
