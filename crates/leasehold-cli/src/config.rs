//! Resolution of store, containment and ttl: the flag, the environment, the config file, or the
//! default, in this order.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use leasehold::model::{Ttl, ValidationError, parse_duration};

use crate::output::{Failure, has_secrets, redacted_url, shell_word};
use crate::run::Contain;

/// Chosen store, and the origin of the choice.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreChoice {
    /// URL including its secrets: for the client library, never for output.
    pub(crate) url: String,
    pub(crate) origin: Origin,
}

/// Origin of the choice.
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
    /// Chooses the store from all sources. An empty variable counts as not set.
    pub(crate) fn resolve(flag: Option<&str>) -> Result<Self, Failure> {
        Self::resolve_with_file(flag, None)
    }

    /// Chooses the store as [`Self::resolve`] does; a store named by `file` takes precedence over the
    /// default config file.
    pub(crate) fn resolve_with_file(
        flag: Option<&str>,
        file: Option<(&str, &Path)>,
    ) -> Result<Self, Failure> {
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

    /// Returns the URL without its secrets.
    pub(crate) fn redacted(&self) -> String {
        redacted_url(&self.url)
    }

    /// Returns the URL in a form that is valid for a process in another folder.
    pub(crate) fn absolute(&self) -> String {
        let Some(path) = sqlite_path(&self.url).filter(|path| Path::new(path).is_relative()) else {
            return self.url.clone();
        };
        let Ok(absolute) = std::path::absolute(path) else {
            return self.url.clone();
        };
        match (absolute.to_str(), self.url.split_once('?')) {
            (Some(absolute), Some((_, settings))) => format!("sqlite:{absolute}?{settings}"),
            (Some(absolute), None) => format!("sqlite:{absolute}"),
            (None, _) => self.url.clone(),
        }
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

/// Returns the containment of commands: the flag, `LEASEHOLD_CONTAIN`, the config file, or the
/// default.
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
    match read_file() {
        Ok(Some((path, text))) => Ok(parse_settings(&path, &text)?.contain.unwrap_or_default()),
        // The default config file may be unreadable: that of another user, if HOME still names that
        // user's folder.
        Ok(None) => Ok(Contain::default()),
        Err(_) if variable(CONFIG).is_none() => Ok(Contain::default()),
        Err(failure) => Err(failure),
    }
}

/// Returns the duration of leases: the flag, `LEASEHOLD_TTL`, `ttl` in the config file; `None` if
/// none of them is set.
pub(crate) fn lease_ttl(flag: Option<Ttl>) -> Result<Option<Ttl>, Failure> {
    if flag.is_some() {
        return Ok(flag);
    }
    if let Some(value) = variable(TTL) {
        let read =
            value.to_str().ok_or_else(|| ValidationError::other("it is not valid UTF-8")).and_then(parse_ttl);
        return read
            .map(Some)
            .map_err(|why| Failure::config(format!("{TTL} is '{}': {why}", value.display())).hint(TTLS));
    }
    match read_file() {
        Ok(Some((path, text))) => Ok(parse_settings(&path, &text)?.ttl),
        // An unreadable default config file is ignored, as in `containment`.
        Ok(None) => Ok(None),
        Err(_) if variable(CONFIG).is_none() => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Whether renewals are recorded in the history: `LEASEHOLD_AUDIT`, or `audit` in the config file.
pub(crate) fn logs_renewals() -> Result<bool, Failure> {
    if let Some(value) = variable(AUDIT) {
        let invalid =
            || Failure::config(format!("{AUDIT} is '{}', which is not a valid value", value.display()));
        return value.to_str().and_then(parse_audit).ok_or_else(|| invalid().hint(AUDITS));
    }
    match read_file() {
        Ok(Some((path, text))) => Ok(parse_settings(&path, &text)?.log_renewals),
        // An unreadable default config file is ignored, as in `containment`.
        Ok(None) => Ok(false),
        Err(_) if variable(CONFIG).is_none() => Ok(false),
        Err(failure) => Err(failure),
    }
}

fn parse_audit(text: &str) -> Option<bool> {
    match text {
        "renewals" => Some(true),
        "none" => Some(false),
        _ => None,
    }
}

fn parse_ttl(text: &str) -> Result<Ttl, ValidationError> {
    Ttl::new(parse_duration(text)?)
}

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

/// Returns the path in a SQLite URL, if it has one.
fn sqlite_path(url: &str) -> Option<&str> {
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

/// Contents of the config file.
#[derive(Debug, Default, PartialEq, Eq)]
struct FileSettings {
    store: Option<String>,
    contain: Option<Contain>,
    ttl: Option<Ttl>,
    log_renewals: bool,
}

/// Parses the config file. Unknown settings are an error: a typing mistake would otherwise go
/// unnoticed.
fn parse_settings(path: &Path, text: &str) -> Result<FileSettings, Failure> {
    let at = path.display();
    let invalid =
        |problem: String, hint: &str| Failure::config(format!("the config file {at} {problem}")).hint(hint);
    let mut settings: toml::Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
        let problem = format!("is not valid TOML at line {line}: {}", error.message());
        invalid(problem, "write: store = \"sqlite:/path/to/leasehold.db\"")
    })?;
    let (store, contain) = (settings.remove("store"), settings.remove("contain"));
    let (ttl, audit) = (settings.remove("ttl"), settings.remove("audit"));
    if !settings.is_empty() {
        let keys: Vec<_> = settings.keys().map(|key| format!("'{key}'")).collect();
        let problem = format!("has unknown settings: {}", keys.join(", "));
        return Err(invalid(problem, "the settings are: store, contain, ttl, audit"));
    }
    let named = |value: &toml::Value| value.as_str().and_then(Contain::named);
    let contain = match contain {
        None => None,
        Some(value) => Some(named(&value).ok_or_else(|| {
            let value = value.as_str().unwrap_or(value.type_str());
            invalid(format!("has a containment that does not exist: '{value}'"), CONTAINMENTS)
        })?),
    };
    let ttl = match ttl {
        None => None,
        Some(toml::Value::String(text)) => {
            Some(parse_ttl(&text).map_err(|why| invalid(format!("has a ttl of '{text}': {why}"), TTLS))?)
        }
        Some(other) => {
            return Err(invalid(format!("has a ttl that is not a string but {}", other.type_str()), TTLS));
        }
    };
    let log_renewals = match audit {
        None => false,
        Some(value) => value.as_str().and_then(parse_audit).ok_or_else(|| {
            let value = value.as_str().unwrap_or(value.type_str());
            invalid(format!("has an audit of '{value}'"), AUDITS)
        })?,
    };
    Ok(FileSettings { store: parse_store(store, invalid)?, contain, ttl, log_renewals })
}

fn parse_store(
    store: Option<toml::Value>,
    invalid: impl Fn(String, &str) -> Failure,
) -> Result<Option<String>, Failure> {
    match store {
        None => Ok(None),
        Some(toml::Value::String(url)) => match sqlite_path(&url) {
            Some(path) if Path::new(path).is_relative() => Err(invalid(
                format!("has a store with a relative path: '{}'", redacted_url(&url)),
                "write an absolute path: otherwise each folder would have its own store",
            )),
            _ => Ok(Some(url)),
        },
        Some(other) => Err(invalid(
            format!("has a store that is not a string but {}", other.type_str()),
            "write: store = \"sqlite:/path/to/leasehold.db\"",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<String>, String> {
        let settings = parse_settings(Path::new("config.toml"), text);
        settings.map(|settings| settings.store).map_err(|failure| failure.message().to_owned())
    }

    #[test]
    fn a_file_names_a_containment() {
        let contain = |text| parse_settings(Path::new("config.toml"), text).map(|settings| settings.contain);
        assert_eq!(contain("contain = \"pidns\"").ok().flatten(), Some(Contain::Pidns));
        assert_eq!(contain("store = \"sqlite:\"").ok().flatten(), None);
        for wrong in ["contain = \"jail\"", "contain = 1"] {
            assert!(contain(wrong).unwrap_err().message().contains("does not exist"), "{wrong}");
        }
    }

    #[test]
    fn a_file_sets_the_ttl() {
        let ttl = |text| parse_settings(Path::new("config.toml"), text).map(|settings| settings.ttl);
        assert_eq!(ttl("ttl = \"30m\"").ok().flatten(), Some(Ttl::from_secs(1800)));
        assert_eq!(ttl("").ok().flatten(), None);
        for (wrong, why) in
            [("ttl = 30", "not a string"), ("ttl = \"0s\"", "a ttl of '0s'"), ("ttl = \"x\"", "'x'")]
        {
            assert!(ttl(wrong).unwrap_err().message().contains(why), "{wrong}");
        }
    }

    #[test]
    fn a_file_sets_whether_renewals_are_recorded() {
        let audit =
            |text| parse_settings(Path::new("config.toml"), text).map(|settings| settings.log_renewals);
        assert!(audit("audit = \"renewals\"").is_ok_and(|logged| logged));
        assert!(audit("audit = \"none\"").is_ok_and(|logged| !logged));
        assert!(audit("").is_ok_and(|logged| !logged));
        for wrong in ["audit = true", "audit = \"everything\""] {
            assert!(audit(wrong).unwrap_err().message().contains("has an audit of"), "{wrong}");
        }
    }

    #[test]
    fn a_file_names_a_store_or_nothing() {
        assert_eq!(read("store = \"sqlite:/a.db\" # here"), Ok(Some("sqlite:/a.db".to_owned())));
        assert_eq!(read("# nothing"), Ok(None));
        assert_eq!(read("store = \"sqlite:\""), Ok(Some("sqlite:".to_owned())));
    }

    #[test]
    fn config_mistakes_are_named() {
        let wrong = |text| read(text).unwrap_err();
        assert_eq!(
            wrong("stroe = \"sqlite:\"\nttk = 5"),
            "the config file config.toml has unknown settings: 'stroe', 'ttk'"
        );
        assert!(wrong("\nstore = ").contains("is not valid TOML at line 2"), "{}", wrong("\nstore = "));
        assert!(wrong("store = 5").contains("not a string but integer"));
        assert!(wrong("store = \"sqlite:x.db\"").contains("relative path"));
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
