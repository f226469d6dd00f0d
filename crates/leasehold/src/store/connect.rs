//! Opens the engine that a URL names.

use std::fmt;
use std::sync::Arc;

use super::{Store, memory::MemoryStore};
use crate::error::{Error, Result, StoreErrorKind};

/// Address of a store in text form: `sqlite:PATH`, `postgres://…`, `redis://…`, `dynamodb://TABLE`,
/// `github://OWNER/REPO`, `https://HOST`, `memory:`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    rest: String,
}

/// Opens the engine that the URL names. Migrates its schema to the newest version if necessary, and
/// creates the store where that costs nothing.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    match url.engine()? {
        Engine::Memory => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Engine::Sqlite => {
            let options = super::sqlite::SqliteOptions::from_url(&url.rest)?;
            Ok(Arc::new(super::sqlite::SqliteStore::open(options).await?))
        }
        #[cfg(feature = "postgres")]
        Engine::Postgres => {
            let options = super::postgres::PostgresOptions::from_url(url)?;
            Ok(Arc::new(super::postgres::PostgresStore::connect(options).await?))
        }
        #[cfg(feature = "redis")]
        Engine::Redis => {
            let options = super::redis::RedisOptions::from_url(url)?;
            Ok(Arc::new(super::redis::RedisStore::connect(options).await?))
        }
        #[cfg(feature = "dynamodb")]
        Engine::DynamoDb => {
            let options = super::dynamodb::DynamoDbOptions::from_url(url)?;
            Ok(Arc::new(super::dynamodb::connect(options).await?))
        }
        #[cfg(feature = "http")]
        Engine::Http => {
            let options = super::http::HttpOptions::from_url(url)?;
            Ok(Arc::new(super::http::HttpStore::connect(options).await?))
        }
        #[cfg(feature = "github")]
        Engine::Github => super::github::connect(super::github::GithubOptions::from_url(url)?).await,
        #[cfg(not(all(
            feature = "sqlite",
            feature = "postgres",
            feature = "redis",
            feature = "dynamodb",
            feature = "http",
            feature = "github"
        )))]
        engine => Err(engine.missing()),
    }
}

/// Opens the engine that the URL names, and creates what [`connect`] expects to exist: a table that
/// costs money.
pub async fn init(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    #[cfg(feature = "dynamodb")]
    if url.engine()? == Engine::DynamoDb {
        super::dynamodb::create_table(&super::dynamodb::DynamoDbOptions::from_url(url)?).await?;
    }
    connect(url).await
}

/// All engines, whether compiled in or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    Memory,
    Sqlite,
    Postgres,
    Redis,
    DynamoDb,
    Http,
    Github,
}

impl Engine {
    #[cfg(any(
        test,
        not(all(
            feature = "sqlite",
            feature = "postgres",
            feature = "redis",
            feature = "dynamodb",
            feature = "http",
            feature = "github"
        ))
    ))]
    fn missing(self) -> Error {
        let (name, feature) = match self {
            Self::Memory => ("memory", "memory"),
            Self::Sqlite => ("SQLite", "sqlite"),
            Self::Postgres => ("PostgreSQL", "postgres"),
            Self::Redis => ("Redis", "redis"),
            Self::DynamoDb => ("DynamoDB", "dynamodb"),
            Self::Http => ("http", "http"),
            Self::Github => ("GitHub", "github"),
        };
        let hint =
            format!("build it in with: cargo install --path crates/leasehold-cli --features {feature}");
        Error::store(StoreErrorKind::Misconfigured, format!("this build has no {name} engine"), hint)
    }
}

impl StoreUrl {
    /// Parses the URL. Whether the engine can be reached shows only when it is opened.
    pub fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::store(
                StoreErrorKind::Misconfigured,
                format!("'{url}' is no store URL: it has no scheme"),
                format!("for a SQLite file write sqlite:{url}; {SCHEMES}"),
            ));
        };
        let url = Self { scheme: scheme.to_ascii_lowercase(), rest: rest.to_owned() };
        url.engine().map(|_| url)
    }

    /// Returns the complete URL with its secrets: for the engine's client only, never for output.
    #[cfg_attr(
        not(any(
            feature = "postgres",
            feature = "redis",
            feature = "dynamodb",
            feature = "http",
            feature = "github"
        )),
        expect(dead_code, reason = "only engines that are far away read their whole URL")
    )]
    pub(crate) fn expose(&self) -> String {
        format!("{}:{}", self.scheme, self.rest)
    }

    fn engine(&self) -> Result<Engine> {
        match self.scheme.as_str() {
            "memory" => Ok(Engine::Memory),
            "sqlite" => Ok(Engine::Sqlite),
            "postgres" | "postgresql" => Ok(Engine::Postgres),
            "redis" | "rediss" | "redis+cluster" | "rediss+cluster" | "redis+sentinel"
            | "rediss+sentinel" => Ok(Engine::Redis),
            "dynamodb" => Ok(Engine::DynamoDb),
            "http" | "https" => Ok(Engine::Http),
            "github" => Ok(Engine::Github),
            other => {
                let message = format!("'{other}:' is not a store that leasehold knows");
                Err(Error::store(StoreErrorKind::Misconfigured, message, SCHEMES))
            }
        }
    }
}

/// Decodes the percent-escapes of a part of a URL, such as `%40`. The error does not contain the
/// text: it may be a password.
#[cfg(any(feature = "postgres", feature = "redis", feature = "http", feature = "github"))]
pub(super) fn decoded(text: &str) -> Result<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    let not_text = |_| {
        let message = "a %-escape in the URL is not UTF-8";
        Error::store(StoreErrorKind::Misconfigured, message, "write it as %XX of UTF-8")
    };
    decoded.map(std::borrow::Cow::into_owned).map_err(not_text)
}

/// Whether a connection to this host stays on this machine. Names other than `localhost` are not
/// resolved.
#[cfg(any(feature = "postgres", feature = "redis", feature = "http", feature = "github"))]
pub(super) fn is_this_machine(host: &str) -> bool {
    let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || host.eq_ignore_ascii_case("localhost")
}

const SCHEMES: &str = "stores are: sqlite:PATH (or sqlite: for the default place), postgres://…, redis://…, \
                       dynamodb://TABLE, github://OWNER/REPO, https://HOST of a leasehold server, memory:";

/// Settings whose values are secret, by a part of their names.
const SECRETS: [&str; 3] = ["password", "secret", "token"];

/// Omits secrets: the password before the host, and the values of settings that match `SECRETS`.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, settings) = self.rest.split_once('?').unwrap_or((&self.rest, ""));
        write!(f, "{}:", self.scheme)?;
        // The password may itself contain an '@': the last one ends it.
        match place.strip_prefix("//").and_then(|place| place.rsplit_once('@')) {
            // In these URLs the token is the user.
            Some((_, host)) if matches!(self.scheme.as_str(), "http" | "https") => write!(f, "//***@{host}")?,
            Some((who, host)) => match who.split_once(':') {
                Some((user, _)) => write!(f, "//{user}:***@{host}")?,
                None => write!(f, "//{who}@{host}")?,
            },
            None => f.write_str(place)?,
        }
        for (number, setting) in settings.split('&').filter(|setting| !setting.is_empty()).enumerate() {
            let sign = if number == 0 { '?' } else { '&' };
            match setting.split_once('=') {
                Some((key, _)) if SECRETS.iter().any(|secret| key.to_ascii_lowercase().contains(secret)) => {
                    write!(f, "{sign}{key}=***")?;
                }
                _ => write!(f, "{sign}{setting}")?,
            }
        }
        Ok(())
    }
}

/// Omits secrets, like [`Display`](fmt::Display).
impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = Error;
    fn from_str(url: &str) -> Result<Self> {
        Self::parse(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_none_says_what_to_write() {
        let wrong = |url: &str| StoreUrl::parse(url).unwrap_err();
        assert!(wrong("/tmp/x.db").hint().unwrap().contains("sqlite:/tmp/x.db"));
        assert_eq!(wrong("mysql://h").to_string(), "'mysql:' is not a store that leasehold knows");
        assert_eq!(wrong("mysql://h").code(), "STORE_MISCONFIGURED");
    }

    #[test]
    fn an_engine_that_is_not_built_in_says_how_to_get_it() {
        let error = Engine::Postgres.missing();
        assert_eq!(error.to_string(), "this build has no PostgreSQL engine");
        assert_eq!(error.code(), "STORE_MISCONFIGURED");
        let command = "cargo install --path crates/leasehold-cli --features postgres";
        assert_eq!(error.hint().unwrap(), format!("build it in with: {command}"));
    }

    #[test]
    fn the_scheme_may_be_written_large() {
        assert_eq!(StoreUrl::parse("SQLite:a.db").unwrap().to_string(), "sqlite:a.db");
    }

    #[test]
    fn nobody_sees_a_password() {
        let shown = |url: &str| {
            let url = StoreUrl::parse(url).unwrap();
            assert!(!format!("{url} {url:?}").contains("s3cr3t"), "{url}");
            url.to_string()
        };
        assert_eq!(shown("postgres://ada:s3cr3t@h:5432/db"), "postgres://ada:***@h:5432/db");
        assert_eq!(shown("postgres://ada:s3cr3t@s3cr3t@h/db"), "postgres://ada:***@h/db");
        assert_eq!(shown("redis://:s3cr3t@h/0"), "redis://:***@h/0");
        assert_eq!(shown("postgres://ada@h/db"), "postgres://ada@h/db");
        assert_eq!(
            shown("postgres:///db?host=/run&password=s3cr3t"),
            "postgres:///db?host=/run&password=***"
        );
        assert_eq!(shown("https://lh_1_s3cr3t@h:7420/x?ca=/y"), "https://***@h:7420/x?ca=/y");
        assert_eq!(shown("HTTP://ada:s3cr3t@h"), "http://***@h");
        assert_eq!(shown("redis://h?sentinel_password=s3cr3t&db=1"), "redis://h?sentinel_password=***&db=1");
    }
}
