//! Parses the store URL into a path and settings.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::parse_duration;
use crate::store::local_token::state_folder;
use crate::store::ticket_rows::LONG_QUEUE;
use crate::store::{Boot, Clock};

/// Path and settings of the database.
#[derive(Debug, Clone)]
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
}

/// Guarantee about synced data when a call returns. With either setting a crash of the program
/// loses nothing, and no token is ever issued twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Grants to holders that can outlive this machine are synced. Leases of processes on this
    /// machine are not: a power cut ends these processes together with their leases.
    Holders,
    /// Every write is synced.
    Full,
}

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
        }
    }

    /// Parses the part after `sqlite:`: `PATH`, `//PATH` or nothing for the default path, then
    /// `?sync=full&busy=5s`.
    pub(crate) fn from_url(rest: &str) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix("//").unwrap_or(path);
        if path == ":memory:" {
            return Err(invalid(
                "invalid path ':memory:': such a database has a single connection",
                "use memory: instead",
            ));
        }
        let path = if path.is_empty() { default_path()? } else { PathBuf::from(path) };
        let mut options = Self::new(path);
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            options.set(setting)?;
        }
        Ok(options)
    }

    fn set(&mut self, setting: &str) -> Result<()> {
        let known = "valid settings: sync=full, sync=holders and busy=5s";
        match setting.split_once('=') {
            Some(("sync", "full")) => self.durability = Durability::Full,
            Some(("sync", "holders")) => self.durability = Durability::Holders,
            Some(("busy", text)) => {
                self.busy_timeout =
                    parse_duration(text).map_err(|error| invalid(&error.to_string(), known))?;
            }
            _ => {
                return Err(invalid(&format!("invalid setting '{setting}' of a SQLite store"), known));
            }
        }
        Ok(())
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
            "the store has no default path: neither XDG_STATE_HOME nor HOME is set",
            "name a file: --store sqlite:/var/lib/leasehold/leasehold.db",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_path_and_its_settings() {
        let options = SqliteOptions::from_url("/var/lib/x.db?sync=full&busy=250ms").unwrap();
        assert_eq!(options.path, PathBuf::from("/var/lib/x.db"));
        assert_eq!(options.durability, Durability::Full);
        assert_eq!(options.busy_timeout, Duration::from_millis(250));
        assert_eq!(SqliteOptions::from_url("///a/b.db").unwrap().path, PathBuf::from("/a/b.db"));
        assert_eq!(SqliteOptions::from_url("b.db").unwrap().path, PathBuf::from("b.db"));
    }

    #[test]
    fn unknown_settings_and_values_are_rejected() {
        for url in ["x.db?sync=off", "x.db?busy=never", "x.db?mode=ro", ":memory:"] {
            assert_eq!(SqliteOptions::from_url(url).unwrap_err().code(), "STORE_MISCONFIGURED", "{url}");
        }
    }
}
