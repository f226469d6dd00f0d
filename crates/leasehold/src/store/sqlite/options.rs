//! From the URL to a path and its settings.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result, Trouble};
use crate::model::parse_duration;
use crate::store::local_token::state_folder;
use crate::store::ticket_rows::LONG_QUEUE;
use crate::store::{Boot, Clock};

/// Where the database is, and how it is used.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// The file.
    pub path: PathBuf,
    /// What is on the disk before a call returns.
    pub durability: Durability,
    /// How long to wait for other writers before giving up.
    pub busy: Duration,
    /// The time to go by; else the boot clock.
    pub clock: Option<Clock>,
    /// The boot to believe in; else what the system says.
    pub boot: Option<Boot>,
    /// How many events of history to keep.
    pub max_events: u32,
    /// Queues of more tickets than this are stored as rows.
    #[doc(hidden)]
    pub long_queue: usize,
}

/// What is on the disk before a call returns. Whatever the setting, a crash of the program loses nothing, and no
/// token is ever given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Grants to anybody who could outlive this machine are on the disk. What this machine's own processes hold is not
    /// waited for: a power cut ends them together with their leases.
    Holders,
    /// Everything is.
    Full,
}

impl SqliteOptions {
    /// A file with the usual settings.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            durability: Durability::Holders,
            busy: Duration::from_secs(5),
            clock: None,
            boot: None,
            max_events: 100_000,
            long_queue: LONG_QUEUE,
        }
    }

    /// What comes after `sqlite:` — `PATH`, `//PATH` or nothing for the default place, then `?sync=full&busy=5s`.
    pub(crate) fn from_url(rest: &str) -> Result<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix("//").unwrap_or(path);
        if path == ":memory:" {
            return Err(wrong("sqlite::memory: would be a store of one connection", "write memory: instead"));
        }
        let path = if path.is_empty() { default_path()? } else { PathBuf::from(path) };
        let mut options = Self::new(path);
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            options.set(setting)?;
        }
        Ok(options)
    }

    fn set(&mut self, setting: &str) -> Result<()> {
        let known = "sqlite: knows sync=full, sync=holders and busy=5s";
        match setting.split_once('=') {
            Some(("sync", "full")) => self.durability = Durability::Full,
            Some(("sync", "holders")) => self.durability = Durability::Holders,
            Some(("busy", text)) => {
                self.busy = parse_duration(text).map_err(|error| wrong(&error.to_string(), known))?;
            }
            _ => {
                return Err(wrong(&format!("'{setting}' is not a setting of a SQLite store"), known));
            }
        }
        Ok(())
    }
}

fn wrong(message: &str, hint: &str) -> Error {
    Error::store(Trouble::Misconfigured, message, hint)
}

/// `$XDG_STATE_HOME/leasehold/leasehold.db`, or the same under `~/.local/state`.
fn default_path() -> Result<PathBuf> {
    match state_folder() {
        Some(folder) => Ok(folder.join("leasehold.db")),
        None => Err(wrong(
            "there is no default place for the store: neither XDG_STATE_HOME nor HOME is set",
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
        assert_eq!(options.busy, Duration::from_millis(250));
        assert_eq!(SqliteOptions::from_url("///a/b.db").unwrap().path, PathBuf::from("/a/b.db"));
        assert_eq!(SqliteOptions::from_url("b.db").unwrap().path, PathBuf::from("b.db"));
    }

    #[test]
    fn a_setting_that_is_none_is_refused() {
        for url in ["x.db?sync=off", "x.db?busy=never", "x.db?mode=ro", ":memory:"] {
            assert_eq!(SqliteOptions::from_url(url).unwrap_err().code(), "STORE_MISCONFIGURED", "{url}");
        }
    }
}
