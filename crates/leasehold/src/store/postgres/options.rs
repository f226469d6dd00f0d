//! Options of a PostgreSQL store, and parsing them from the URL.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::error::{Error, Result, StoreErrorKind};
use crate::store::support::url::url_options::UrlOptions;
use crate::store::ticket_rows::LONG_QUEUE;
use crate::store::{Clock, StoreUrl};

/// Server to connect to, and settings of the store.
#[derive(Debug, Clone)]
#[non_exhaustive]
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
    /// Migrations after those of this release, for tests of the upgrade.
    #[doc(hidden)]
    pub next_migrations: &'static [&'static str],
    /// Clock for tests; the server's clock by default.
    #[doc(hidden)]
    pub clock: Option<Clock>,
}

/// Encryption mode of the connection, with the semantics of `libpq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
#[non_exhaustive]
pub enum Pooler {
    /// No known pooler; one is detected by its errors.
    Unknown,
    /// Pooler in transaction mode, which may use another connection for each transaction: no
    /// prepared statements, no LISTEN.
    Transaction,
}

/// Settings of a URL: first leasehold's own, then those that the driver parses.
const SETTINGS: [&str; 24] = [
    "sslmode=verify-full",
    "sslrootcert=PATH|system",
    "schema=NAME",
    "pool=1..64",
    "poll=250ms",
    "pooler=transaction",
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];
/// Number of the settings that leasehold parses itself.
const OWN_SETTINGS: usize = 6;
/// Maximum length of the schema's name: it is part of the NOTIFY channels, whose length is limited.
const MAX_SCHEMA_LENGTH: usize = 48;
const SCHEMA_RULE: &str = "1 to 48 lower-case letters, digits and '_', without a digit or pg_ at its start";
/// Value of `sslrootcert` for the certificates that the system trusts.
const SYSTEM: &str = "system";
/// Minimum poll interval.
const MIN_POLL: Duration = Duration::from_millis(10);

impl PostgresOptions {
    /// Parses `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=leasehold&pool=4&…`.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        url.must_encode_password()?;
        let given = UrlOptions::parse(url, "a PostgreSQL store", &SETTINGS)?;
        let sslrootcert = given.path("sslrootcert")?.filter(|path| path.as_os_str() != SYSTEM);
        let mut options = Self {
            config: driver_config(url, &given)?,
            display_url: url.to_string(),
            sslmode: SslMode::given(&given)?,
            sslrootcert,
            schema: given
                .parsed("schema", SCHEMA_RULE, schema_name)?
                .unwrap_or_else(|| "leasehold".to_owned()),
            pool: given.integer("pool", 1..=64)?.map_or(4, |pool| pool as usize),
            poll: given.duration("poll", MIN_POLL)?.unwrap_or(Duration::from_millis(200)),
            pooler: given
                .choice("pooler", &[("transaction", Pooler::Transaction)])?
                .unwrap_or(Pooler::Unknown),
            max_events: 100_000,
            long_queue: LONG_QUEUE,
            next_migrations: &[],
            clock: None,
        };
        options.set_defaults(&given);
        Ok(options)
    }

    fn set_defaults(&mut self, given: &UrlOptions<'_>) {
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
        if !given.contains("keepalives_idle") {
            config.keepalives_idle(Duration::from_secs(30));
        }
        if !given.contains("tcp_user_timeout") {
            config.tcp_user_timeout(Duration::from_secs(10));
        }
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
    /// `allow` is weaker than the default of leasehold, which encrypts if the server supports it.
    const WORDS: [(&str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Prefer),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];

    /// Returns the mode in the settings. As in `libpq`, the system's certificates require `verify-full`: anyone can
    /// get a certificate for some host from one of its CAs.
    fn given(given: &UrlOptions<'_>) -> Result<Self> {
        let mode = given.choice("sslmode", &Self::WORDS)?;
        if given.text("sslrootcert")?.as_deref() != Some(SYSTEM) {
            return Ok(mode.unwrap_or(Self::Prefer));
        }
        match mode {
            None | Some(Self::VerifyFull) => Ok(Self::VerifyFull),
            Some(_) => Err(given.error("sslrootcert=system requires sslmode=verify-full")),
        }
    }
}

/// Parses the address and the settings that are not leasehold's own.
fn driver_config(url: &StoreUrl, given: &UrlOptions<'_>) -> Result<Config> {
    let StoreUrl { scheme, address, .. } = url;
    let invalid = || {
        let message = format!("'{url}' is not a PostgreSQL URL");
        misconfigured(&message, "write postgres://USER:PASSWORD@HOST:PORT/DATABASE")
    };
    // The driver would take it for a list of options, and repeat it in its error.
    if !address.starts_with("//") {
        return Err(invalid());
    }
    let config = format!("{scheme}:{address}?{}", given.undecoded(&SETTINGS[OWN_SETTINGS..]));
    let config: Config = config.parse().map_err(|error: tokio_postgres::Error| invalid().because(error))?;
    let contains_at = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
    if config.get_hosts().iter().any(contains_at) {
        return Err(misconfigured(
            &format!("'{url}' has more than one '@' before the host"),
            "write an '@' that belongs to the password as %40",
        ));
    }
    Ok(config)
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
    fn the_certificates_of_the_system_verify_the_host() {
        for settings in ["sslrootcert=system", "sslrootcert=system&sslmode=verify-full"] {
            let options = options(&format!("postgres://h/db?{settings}")).unwrap();
            assert_eq!((options.sslmode, options.sslrootcert), (SslMode::VerifyFull, None), "{settings}");
        }
        assert_eq!(options("postgres://h/db?sslrootcert=/ca.pem").unwrap().sslmode, SslMode::Prefer);
    }

    #[test]
    fn timeouts_of_the_url_are_kept() {
        let timeouts = |settings: &str| {
            let config = options(&format!("postgres://h/db{settings}")).unwrap().config;
            (config.get_keepalives_idle().as_secs(), config.get_tcp_user_timeout().unwrap().as_secs())
        };
        assert_eq!(timeouts(""), (30, 10));
        assert_eq!(timeouts("?keepalives_idle=75"), (75, 10));
        assert_eq!(timeouts("?tcp_user_timeout=3&keepalives_idle=5"), (5, 3));
    }

    #[test]
    fn an_invalid_setting_is_refused() {
        for setting in [
            "sslmode=maybe",
            "sslrootcert=system&sslmode=require",
            "sslrootcert=system&sslmode=verify-ca",
            "sslmode=prefer&sslrootcert=system",
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
            "pool=1&pool=2",
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
