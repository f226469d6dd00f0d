//! From the URL to a server and its settings.

use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::error::{Error, Result, Trouble};
use crate::model::parse_duration;
use crate::store::connect::decoded;
use crate::store::ticket_rows::LONG_QUEUE;
use crate::store::{Clock, StoreUrl};

/// Which server, and how it is used.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// Where and as whom, in the driver's words.
    pub(super) config: Config,
    /// The address for people: no secret in it.
    pub(super) shown: String,
    /// Whether and how the connection is encrypted.
    pub sslmode: SslMode,
    /// A file with the certificates to trust; else the system's.
    pub sslrootcert: Option<PathBuf>,
    /// Where the tables are.
    pub schema: String,
    /// So many connections carry operations, at most.
    pub pool: usize,
    /// A wake-up that gets lost costs a waiter this long.
    pub poll: Duration,
    /// What stands between us and the server.
    pub pooler: Pooler,
    /// How many events of history to keep.
    pub max_events: u32,
    /// Queues of more tickets than this are stored as rows.
    #[doc(hidden)]
    pub long_queue: usize,
    /// The time to go by, for tests; else the server's clock.
    #[doc(hidden)]
    pub clock: Option<Clock>,
}

/// Whether and how the connection is encrypted, as `libpq` understands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// Not at all.
    Disable,
    /// If the server can; nothing is checked.
    Prefer,
    /// Always; the certificate is checked only if `sslrootcert` is given.
    Require,
    /// Always, and the certificate must come from somebody we trust.
    VerifyCa,
    /// Always, the certificate must come from somebody we trust, and be made out to the host.
    VerifyFull,
}

/// What stands between us and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooler {
    /// Nothing that we know of: found out when it turns out otherwise.
    Unknown,
    /// A pooler that gives each transaction another connection: no prepared statements, no LISTEN.
    Transaction,
}

const KNOWN: &str = "besides what PostgreSQL knows (sslmode, sslrootcert, connect_timeout…) there are schema=NAME, \
                     pool=1..64, poll=250ms and pooler=transaction";
/// The channel of wake-ups has the schema in its name, and that has an end.
const LONGEST_SCHEMA: usize = 48;

impl PostgresOptions {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=leasehold&pool=4&…`.
    pub fn from_url(url: &StoreUrl) -> Result<Self> {
        let whole = url.expose();
        let (place, query) = whole.split_once('?').unwrap_or((&whole, ""));
        if query.contains('@') {
            return Err(wrong(
                "the store's URL has an '@' among its settings: a password cannot contain a '?' as it is",
                "write special characters as in a URL: %3F for '?', %40 for '@', %2F for '/'",
            ));
        }
        let mut options = Self {
            config: Config::new(),
            shown: url.to_string(),
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
        let mut theirs = Vec::new();
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            if !options.set(setting)? {
                theirs.push(setting);
            }
        }
        let sign = if theirs.is_empty() { "" } else { "?" };
        options.config = format!("{place}{sign}{}", theirs.join("&")).parse().map_err(
            |error: tokio_postgres::Error| {
                let message = format!("'{url}' is no PostgreSQL URL");
                wrong(&message, "write postgres://USER:PASSWORD@HOST:PORT/DATABASE").because(error)
            },
        )?;
        let with_at = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
        if options.config.get_hosts().iter().any(with_at) {
            return Err(wrong(
                &format!("'{url}' has more than one '@' before its host"),
                "write an '@' that belongs to the password as %40",
            ));
        }
        options.complete();
        Ok(options)
    }

    /// Takes a setting that is ours, or one that the driver does not understand.
    fn set(&mut self, setting: &str) -> Result<bool> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let bad = || wrong(&format!("'{setting}' is not a setting of a PostgreSQL store"), KNOWN);
        match key {
            "sslmode" => self.sslmode = SslMode::read(value).ok_or_else(bad)?,
            "sslrootcert" if value == "system" => self.sslrootcert = None,
            "sslrootcert" => self.sslrootcert = Some(PathBuf::from(decoded(value)?)),
            "schema" => self.schema = schema_name(value).ok_or_else(bad)?,
            "pool" => {
                self.pool = value.parse().ok().filter(|pool| (1..=64).contains(pool)).ok_or_else(bad)?;
            }
            "poll" => {
                let least = Duration::from_millis(10);
                self.poll = parse_duration(value).ok().filter(|poll| *poll >= least).ok_or_else(bad)?;
            }
            "pooler" if value == "transaction" => self.pooler = Pooler::Transaction,
            "pooler" => return Err(bad()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What nobody said.
    fn complete(&mut self) {
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

    /// The database and where it is, for messages.
    pub(super) fn place(&self) -> String {
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
    fn read(text: &str) -> Option<Self> {
        Some(match text {
            "disable" => Self::Disable,
            // Weaker than what we do by ourselves: encrypt if the server can.
            "allow" | "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }
}

/// A name that needs no quotes: it becomes part of statements.
fn schema_name(text: &str) -> Option<String> {
    let first = text.chars().next()?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let good = !first.is_ascii_digit()
        && text.chars().all(plain)
        && text.len() <= LONGEST_SCHEMA
        && !text.starts_with("pg_");
    good.then(|| text.to_owned())
}

fn wrong(message: &str, hint: &str) -> Error {
    Error::store(Trouble::Misconfigured, message, hint)
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
        assert_eq!(options.place(), "the PostgreSQL database 'work' at db:6432");
        assert!(!format!("{options:?}").contains("s3cr3t"));
    }

    #[test]
    fn a_setting_that_is_none_is_refused() {
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
    fn a_password_that_is_not_written_as_in_a_url_is_not_repeated() {
        let error = options("postgres://u:s3cr3t?x=s3cr3t@h/db").unwrap_err();
        assert!(!format!("{error:?}").contains("s3cr3t"), "{error:?}");
    }
}
