//! Options of a PostgreSQL store, and parsing them from the URL.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::error::{Error, Result, StoreErrorKind};
use crate::model::parse_duration;
use crate::store::connect::decoded;
use crate::store::ticket_rows::LONG_QUEUE;
use crate::store::{Clock, StoreUrl};

/// Server to connect to, and settings of the store.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Server, user and password, as the driver's configuration.
    pub(super) config: Config,
    /// Address for display, without secrets.
    pub(super) display_url: String,
    /// Encryption mode of the connection.
    pub sslmode: SslMode,
    /// File with the certificates to trust; the system's certificates by default.
    pub sslrootcert: Option<PathBuf>,
    /// Schema that contains the tables.
    pub schema: String,
    /// Maximum number of connections that carry operations.
    pub pool: usize,
    /// Poll interval of waiters; bounds the delay caused by a lost notification.
    pub poll: Duration,
    /// Pooler between the client and the server.
    pub pooler: Pooler,
    /// Maximum number of events in the history.
    pub max_events: u32,
    /// Number of tickets above which a queue is stored as rows.
    #[doc(hidden)]
    pub long_queue: usize,
    /// Clock for tests; the server's clock by default.
    #[doc(hidden)]
    pub clock: Option<Clock>,
}

/// Encryption mode of the connection, with the semantics of `libpq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// No encryption.
    Disable,
    /// Encrypted if the server supports it; the certificate is not verified.
    Prefer,
    /// Always encrypted; the certificate is verified only if `sslrootcert` is given.
    Require,
    /// Always encrypted; the certificate must be signed by a trusted CA.
    VerifyCa,
    /// Always encrypted; the certificate must be signed by a trusted CA and match the host.
    VerifyFull,
}

/// Pooler between the client and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooler {
    /// No known pooler; one is detected by its errors.
    Unknown,
    /// Pooler in transaction mode, which may use another connection for each transaction: no
    /// prepared statements, no LISTEN.
    Transaction,
}

/// Settings of a URL.
const SETTINGS_HINT: &str = "allowed are PostgreSQL's own settings (sslmode, sslrootcert, connect_timeout…), schema=NAME, \
                     pool=1..64, poll=250ms and pooler=transaction";
/// Maximum length of the schema's name: it is part of the NOTIFY channels, whose length is limited.
const MAX_SCHEMA_LENGTH: usize = 48;

impl PostgresOptions {
    /// Parses `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=leasehold&pool=4&…`.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let url_text = url.expose();
        let (address, query) = url_text.split_once('?').unwrap_or((&url_text, ""));
        if query.contains('@') {
            return Err(misconfigured(
                "the store's URL has an '@' in its settings: a '?' in a password must be URL-encoded",
                "URL-encode special characters: %3F for '?', %40 for '@', %2F for '/'",
            ));
        }
        let mut options = Self {
            config: Config::new(),
            display_url: url.to_string(),
            sslmode: SslMode::Prefer,
            sslrootcert: None,
            schema: "leasehold".to_owned(),
            pool: 4,
            poll: Duration::from_millis(200),
            pooler: Pooler::Unknown,
            max_events: 100_000,
            long_queue: LONG_QUEUE,
            clock: None,
        };
        let mut driver_settings = Vec::new();
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            if !options.set(setting)? {
                driver_settings.push(setting);
            }
        }
        let separator = if driver_settings.is_empty() { "" } else { "?" };
        options.config = format!("{address}{separator}{}", driver_settings.join("&")).parse().map_err(
            |error: tokio_postgres::Error| {
                let message = format!("'{url}' is not a PostgreSQL URL");
                misconfigured(&message, "write postgres://USER:PASSWORD@HOST:PORT/DATABASE").because(error)
            },
        )?;
        let contains_at = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
        if options.config.get_hosts().iter().any(contains_at) {
            return Err(misconfigured(
                &format!("'{url}' has more than one '@' before the host"),
                "write an '@' that belongs to the password as %40",
            ));
        }
        options.set_defaults();
        Ok(options)
    }

    /// Applies a setting of leasehold, or one that the driver does not support. Returns `false` for
    /// a setting that is left to the driver.
    fn set(&mut self, setting: &str) -> Result<bool> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let invalid = || {
            misconfigured(&format!("'{setting}' is not a valid setting of a PostgreSQL store"), SETTINGS_HINT)
        };
        match key {
            "sslmode" => self.sslmode = SslMode::parse(value).ok_or_else(invalid)?,
            "sslrootcert" if value == "system" => self.sslrootcert = None,
            "sslrootcert" => self.sslrootcert = Some(PathBuf::from(decoded(value)?)),
            "schema" => self.schema = schema_name(value).ok_or_else(invalid)?,
            "pool" => {
                self.pool = value.parse().ok().filter(|pool| (1..=64).contains(pool)).ok_or_else(invalid)?;
            }
            "poll" => {
                let least = Duration::from_millis(10);
                self.poll = parse_duration(value).ok().filter(|poll| *poll >= least).ok_or_else(invalid)?;
            }
            "pooler" if value == "transaction" => self.pooler = Pooler::Transaction,
            "pooler" => return Err(invalid()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets the defaults.
    fn set_defaults(&mut self) {
        let config = &mut self.config;
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("leasehold");
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host("localhost");
        }
        config.keepalives_idle(Duration::from_secs(30)).tcp_user_timeout(Duration::from_secs(10));
        config.ssl_mode(match self.sslmode {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            _ => tokio_postgres::config::SslMode::Require,
        });
    }

    /// Returns the database and its address, for messages.
    pub(super) fn description(&self) -> String {
        let hosts = self.config.get_hosts().iter().enumerate().map(|(at, host)| {
            let ports = self.config.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(host) => format!("{host}:{port}"),
                #[cfg(unix)]
                Host::Unix(folder) => folder.display().to_string(),
            }
        });
        let hosts: Vec<_> = hosts.collect();
        let database = self.config.get_dbname().or(self.config.get_user()).unwrap_or_default();
        format!("the PostgreSQL database '{database}' at {}", hosts.join(", "))
    }
}

impl SslMode {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "disable" => Self::Disable,
            // `allow` is weaker than the default of leasehold, which encrypts if the server
            // supports it.
            "allow" | "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }
}

/// Returns the name if it needs no quotes: it becomes part of statements.
fn schema_name(text: &str) -> Option<String> {
    let first = text.chars().next()?;
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let valid = !first.is_ascii_digit()
        && text.chars().all(allowed)
        && text.len() <= MAX_SCHEMA_LENGTH
        && !text.starts_with("pg_");
    valid.then(|| text.to_owned())
}

fn misconfigured(message: &str, hint: &str) -> Error {
    Error::store(StoreErrorKind::Misconfigured, message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> Result<PostgresOptions> {
        PostgresOptions::from_url(&StoreUrl::parse(url)?)
    }

    #[test]
    fn a_url_names_a_server_and_its_settings() {
        let url = "postgres://ada:s3cr3t@db:6432/work?sslmode=verify-full&sslrootcert=/etc/my%20ca.pem&schema=locks&pool=8\
                   &poll=50ms&pooler=transaction&connect_timeout=3";
        let options = options(url).unwrap();
        assert_eq!(options.sslmode, SslMode::VerifyFull);
        assert_eq!(options.sslrootcert, Some(PathBuf::from("/etc/my ca.pem")));
        assert_eq!((options.schema.as_str(), options.pool), ("locks", 8));
        assert_eq!((options.poll, options.pooler), (Duration::from_millis(50), Pooler::Transaction));
        assert_eq!(options.config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!(options.description(), "the PostgreSQL database 'work' at db:6432");
        assert!(!format!("{options:?}").contains("s3cr3t"));
    }

    #[test]
    fn an_invalid_setting_is_refused() {
        for setting in [
            "sslmode=maybe",
            "schema=Bad",
            "schema=a;b",
            "schema=",
            "schema=pg_x",
            "pool=0",
            "pool=65",
            "poll=1ms",
            "poll=never",
            "pooler=session",
            "colour=red",
        ] {
            let error = options(&format!("postgres://u:s3cr3t@h/db?{setting}")).unwrap_err();
            assert_eq!(error.code(), "STORE_MISCONFIGURED", "{setting}");
            assert!(!format!("{error:?}").contains("s3cr3t"), "{error:?}");
        }
    }

    #[test]
    fn a_password_that_is_not_url_encoded_is_not_printed() {
        let error = options("postgres://u:s3cr3t?x=s3cr3t@h/db").unwrap_err();
        assert!(!format!("{error:?}").contains("s3cr3t"), "{error:?}");
    }
}
