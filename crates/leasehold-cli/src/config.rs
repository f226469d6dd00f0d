//! Resolution of store, containment and ttl: the flag, the environment, the config file, or the
//! default, in this order.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::model::{Ttl, ValidationError, parse_duration, shell_word};

use crate::output::{Failure, has_secrets, most_similar, redacted_url};
use crate::run::Contain;

/// Chosen store, and the origin of the choice.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreChoice {
    /// URL including its secrets: for the client library, never for output.
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment,
    File(PathBuf),
    Default,
}

const STORE: &str = "LEASEHOLD_STORE";
const CONTAIN: &str = "LEASEHOLD_CONTAIN";
const TTL: &str = "LEASEHOLD_TTL";
const AUDIT: &str = "LEASEHOLD_AUDIT";
const CONFIG: &str = "LEASEHOLD_CONFIG";
const DEFAULT: &str = "sqlite:";

impl StoreChoice {
    /// Chooses the store from all sources. An empty variable counts as not set; a store named by `file`
    /// takes precedence over the default config file.
    pub(crate) fn resolve(flag: Option<&str>, file: Option<(&str, &Path)>) -> Result<Self, Failure> {
        let chosen = |url: &str, origin| Self { url: url.to_owned(), origin };
        if let Some(url) = flag {
            return Ok(chosen(url, Origin::Flag));
        }
        if let Some(url) = variable(STORE) {
            let text = url.to_str().ok_or_else(|| {
                Failure::config(format!("{STORE} is not valid UTF-8")).hint("write a URL such as sqlite:PATH")
            })?;
            return Ok(chosen(text, Origin::Environment));
        }
        if let Some((url, path)) = file {
            return Ok(chosen(url, Origin::File(path.to_owned())));
        }
        if let Some((path, text)) = read_file()?
            && let Some(url) = parse_settings(&path, &text)?.store
        {
            return Ok(chosen(&url, Origin::File(path)));
        }
        Ok(chosen(DEFAULT, Origin::Default))
    }

    pub(crate) fn redacted(&self) -> String {
        redacted_url(&self.url)
    }

    /// Returns the URL in a form that is valid for a process in another folder.
    pub(crate) fn absolute(&self) -> String {
        let path = sqlite_path(&self.url).filter(|path| Path::new(path).is_relative());
        let absolute = path.and_then(|path| std::path::absolute(path).ok());
        match (absolute.as_deref().and_then(Path::to_str), self.url.split_once('?')) {
            (Some(absolute), Some((_, settings))) => format!("sqlite:{absolute}?{settings}"),
            (Some(absolute), None) => format!("sqlite:{absolute}"),
            (None, _) => self.url.clone(),
        }
    }

    /// Whether the store is a server.
    pub(crate) fn is_remote(&self) -> bool {
        self.url.starts_with("http:") || self.url.starts_with("https:")
    }

    /// Returns the command line prefix that makes this program use the same store, also from
    /// another shell, where the variables of this process are not set. A URL with secrets is not
    /// repeated: the caller has to set the variable that the prefix names.
    pub(crate) fn program(&self) -> String {
        let is_found_without_flag = match &self.origin {
            Origin::Default => true,
            Origin::File(path) => default_path().is_some_and(|default| default == *path),
            Origin::Flag | Origin::Environment => false,
        };
        if is_found_without_flag {
            return "leasehold".to_owned();
        }
        if has_secrets(&self.url) {
            return format!("leasehold --store \"${STORE}\"");
        }
        format!("leasehold --store {}", shell_word(&self.url))
    }
}

/// File of a store that does not exist yet.
pub(crate) struct MissingFile {
    path: PathBuf,
    /// File with a similar name in the same folder.
    pub(crate) similar: Option<String>,
}

impl StoreChoice {
    /// Returns the file of an SQLite store that the user named, if it does not exist yet.
    pub(crate) fn missing_file(&self) -> Option<MissingFile> {
        let path = PathBuf::from(sqlite_path(&self.url).filter(|_| self.origin != Origin::Default)?);
        if path.exists() {
            return None;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let entries = folder.read_dir().into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // The files beside a database are not stores.
        let names = names.filter(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
        let similar = most_similar(name, names).map(|name| path.with_file_name(name).display().to_string());
        Some(MissingFile { path, similar })
    }
}

impl fmt::Display for MissingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_folder =
            self.path.parent().is_none_or(|folder| folder.as_os_str().is_empty() || folder.is_dir());
        let folder = if has_folder { "" } else { ", nor does its folder" };
        write!(
            f,
            "leasehold: the store {} does not exist yet{folder}; it is created now",
            self.path.display()
        )?;
        match &self.similar {
            Some(similar) => write!(f, "; did you mean sqlite:{similar}?"),
            None => Ok(()),
        }
    }
}

/// Returns the containment of commands: the flag, `LEASEHOLD_CONTAIN`, the config file, or the default.
pub(crate) fn containment(flag: Option<Contain>) -> Result<Contain, Failure> {
    if let Some(mode) = flag {
        return Ok(mode);
    }
    if let Some(value) = variable(CONTAIN) {
        let named = value.to_str().and_then(Contain::named);
        return named.ok_or_else(|| {
            Failure::config(format!("{CONTAIN} is '{}', which is not a containment", value.display()))
                .hint(CONTAINMENTS)
        });
    }
    Ok(file_settings()?.contain.unwrap_or_default())
}

/// Returns the duration of leases: the flag, `LEASEHOLD_TTL`, `ttl` in the config file; `None` if
/// none of them is set.
pub(crate) fn lease_ttl(flag: Option<Ttl>) -> Result<Option<Ttl>, Failure> {
    if flag.is_some() {
        return Ok(flag);
    }
    if let Some(value) = variable(TTL) {
        let read =
            value.to_str().ok_or_else(|| ValidationError::other("it is not valid UTF-8")).and_then(ttl);
        return read
            .map(Some)
            .map_err(|why| Failure::config(format!("{TTL} is '{}': {why}", value.display())).hint(TTLS));
    }
    Ok(file_settings()?.ttl)
}

/// Whether renewals are recorded in the history: `LEASEHOLD_AUDIT`, or `audit` in the config file.
pub(crate) fn logs_renewals() -> Result<bool, Failure> {
    if let Some(value) = variable(AUDIT) {
        let message = format!("{AUDIT} is '{}', which is not a valid value", value.display());
        return value.to_str().and_then(parse_audit).ok_or_else(|| Failure::config(message).hint(AUDITS));
    }
    Ok(file_settings()?.log_renewals)
}

/// Returns the settings in the config file. An unreadable default config file counts as empty: it may
/// be that of another user, if HOME still names that user's folder.
fn file_settings() -> Result<FileSettings, Failure> {
    match read_file() {
        Ok(Some((path, text))) => parse_settings(&path, &text),
        Err(failure) if variable(CONFIG).is_some() => Err(failure),
        Ok(None) | Err(_) => Ok(FileSettings::default()),
    }
}

fn parse_audit(text: &str) -> Option<bool> {
    match text {
        "renewals" => Some(true),
        "none" => Some(false),
        _ => None,
    }
}

/// Parses a duration; a number without a unit is in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, ValidationError> {
    let is_number = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if is_number { parse_duration(&format!("{text}s")) } else { parse_duration(text) }.map_err(|error| {
        error.map_message(|wrong| wrong.replace(&format!("'{text}s'"), &format!("'{text}'")))
    })
}

/// Parses the ttl of a lease; a number without a unit is in seconds.
pub(crate) fn ttl(text: &str) -> Result<Ttl, ValidationError> {
    Ttl::new(duration(text)?)
}

const STORES: &str = "write: store = \"sqlite:/path/to/leasehold.db\"";
const AUDITS: &str = "write one of: renewals, none";
const TTLS: &str = "write a duration such as 30s, 5m or 1h";
const CONTAINMENTS: &str = "write one of: auto, cgroup, pidns, none";

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("from --store"),
            Self::Environment => write!(f, "from {STORE}"),
            Self::File(path) => write!(f, "from {}", path.display()),
            Self::Default => f.write_str("the default"),
        }
    }
}

/// Returns the path of an SQLite store that has one.
pub(crate) fn sqlite_path(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    let path = rest.split_once('?').map_or(rest, |(path, _)| path);
    let path = path.strip_prefix("//").unwrap_or(path);
    (scheme.eq_ignore_ascii_case("sqlite") && !path.is_empty()).then_some(path)
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Reads the config file, if there is one. A file named by the environment must exist.
fn read_file() -> Result<Option<(PathBuf, String)>, Failure> {
    let named = variable(CONFIG).map(PathBuf::from);
    let Some(path) = named.clone().or_else(default_path) else {
        return Ok(None);
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("the config file {} cannot be read: {error}", path.display());
            let hint = format!("make it readable, or name another one with {CONFIG}");
            Err(Failure::config(message).hint(hint))
        }
    }
}

fn default_path() -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
    Some(config.join("leasehold/config.toml"))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct FileSettings {
    store: Option<String>,
    contain: Option<Contain>,
    ttl: Option<Ttl>,
    log_renewals: bool,
}

/// Parses the config file. Unknown settings are an error: a typing mistake would otherwise go unnoticed.
fn parse_settings(path: &Path, text: &str) -> Result<FileSettings, Failure> {
    let at = path.display();
    let invalid =
        |problem: String, hint: &str| Failure::config(format!("the config file {at} {problem}")).hint(hint);
    let mut settings: toml::Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let problem = format!("is not valid TOML at line {line}: {}", error.message());
        invalid(problem, STORES)
    })?;
    let (store, contain) = (settings.remove("store"), settings.remove("contain"));
    let (ttl, audit) = (settings.remove("ttl"), settings.remove("audit"));
    if !settings.is_empty() {
        let keys: Vec<_> = settings.keys().map(|key| format!("'{key}'")).collect();
        let problem = format!("has unknown settings: {}", keys.join(", "));
        return Err(invalid(problem, "the settings are: store, contain, ttl, audit"));
    }
    let text_of = |value: &toml::Value| value.as_str().unwrap_or(value.type_str()).to_owned();
    let contain = contain.map(|value| {
        value.as_str().and_then(Contain::named).ok_or_else(|| {
            invalid(format!("has a containment that does not exist: '{}'", text_of(&value)), CONTAINMENTS)
        })
    });
    let ttl = ttl.map(|value| match value.as_str() {
        Some(text) => self::ttl(text).map_err(|why| invalid(format!("has a ttl of '{text}': {why}"), TTLS)),
        None => Err(invalid(format!("has a ttl that is not a string but {}", value.type_str()), TTLS)),
    });
    let audit = audit.map(|value| {
        let invalid = || invalid(format!("has an audit of '{}'", text_of(&value)), AUDITS);
        value.as_str().and_then(parse_audit).ok_or_else(invalid)
    });
    let store = store.map(|value| match value.as_str() {
        Some(url) if sqlite_path(url).is_some_and(|path| Path::new(path).is_relative()) => Err(invalid(
            format!("has a store with a relative path: '{}'", redacted_url(url)),
            "write an absolute path: otherwise each folder would have its own store",
        )),
        Some(url) => Ok(url.to_owned()),
        None => Err(invalid(format!("has a store that is not a string but {}", value.type_str()), STORES)),
    });
    Ok(FileSettings {
        contain: contain.transpose()?,
        ttl: ttl.transpose()?,
        log_renewals: audit.transpose()?.unwrap_or(false),
        store: store.transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<FileSettings, String> {
        parse_settings(Path::new("config.toml"), text).map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn a_file_names_a_containment() {
        assert_eq!(settings("contain = \"pidns\"").unwrap().contain, Some(Contain::Pidns));
        assert_eq!(settings("store = \"sqlite:\"").unwrap().contain, None);
    }

    #[test]
    fn a_file_sets_the_ttl() {
        assert_eq!(settings("ttl = \"30m\"").unwrap().ttl, Some(Ttl::from_secs(1800)));
        assert_eq!(settings("ttl = \"45\"").unwrap().ttl, Some(Ttl::from_secs(45)));
        assert_eq!(settings("").unwrap().ttl, None);
    }

    #[test]
    fn a_file_sets_whether_renewals_are_recorded() {
        for (text, logged) in [("audit = \"renewals\"", true), ("audit = \"none\"", false), ("", false)] {
            assert_eq!(settings(text).unwrap().log_renewals, logged, "{text}");
        }
    }

    #[test]
    fn a_file_names_a_store_or_nothing() {
        let store = |text| settings(text).unwrap().store;
        assert_eq!(store("store = \"sqlite:/a.db\" # here").as_deref(), Some("sqlite:/a.db"));
        assert_eq!(store("# nothing"), None);
        assert_eq!(store("store = \"sqlite:\"").as_deref(), Some("sqlite:"));
    }

    #[test]
    fn config_mistakes_are_named() {
        let unknown = "the config file config.toml has unknown settings: 'stroe', 'ttk'";
        assert_eq!(settings("stroe = \"sqlite:\"\nttk = 5").unwrap_err(), unknown);
        for (wrong, why) in [
            ("\nstore = ", "is not valid TOML at line 2"),
            ("store = 5", "not a string but integer"),
            ("store = \"sqlite:x.db\"", "relative path"),
            ("contain = \"jail\"", "does not exist"),
            ("contain = 1", "does not exist"),
            ("ttl = 30", "not a string"),
            ("ttl = \"0s\"", "a ttl of '0s'"),
            ("ttl = \"x\"", "'x'"),
            ("audit = true", "has an audit of"),
            ("audit = \"everything\"", "has an audit of"),
        ] {
            let error = settings(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_hint_names_the_store_without_its_password() {
        let program = |url: &str, origin| StoreChoice { url: url.to_owned(), origin }.program();
        for secret in ["postgres://ada:s3cr3t@h/db", "https://lh_s3cr3t@h", "redis://h?password=s3cr3t"] {
            assert_eq!(program(secret, Origin::Flag), "leasehold --store \"$LEASEHOLD_STORE\"");
        }
        for origin in [Origin::Flag, Origin::Environment, Origin::File("/elsewhere.toml".into())] {
            assert_eq!(program("postgres://ada@h/db", origin), "leasehold --store postgres://ada@h/db");
        }
        assert_eq!(program("sqlite:it's.db", Origin::Flag), "leasehold --store 'sqlite:it'\\''s.db'");
        assert_eq!(program("sqlite:", Origin::Default), "leasehold");
    }

    #[test]
    fn a_relative_path_is_made_absolute_with_its_settings() {
        let absolute = |url: &str| {
            let url = url.to_owned();
            StoreChoice { url, origin: Origin::Flag }.absolute()
        };
        let here = std::env::current_dir().unwrap();
        assert_eq!(absolute("sqlite:./x.db?sync=full"), format!("sqlite:{}/x.db?sync=full", here.display()));
        for same in ["sqlite:", "memory:", "sqlite:/a/b.db", "sqlite:///a/b.db?busy=1s", "nonsense"] {
            assert_eq!(absolute(same), same);
        }
    }
}
