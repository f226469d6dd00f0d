//! Store URL: parsing its parts, and displaying it without secrets.

use std::fmt;

use crate::error::{Error, Result, StoreErrorKind};

/// Address of a store in text form: `sqlite:PATH`, `postgres://…`, `redis://…`, `dynamodb://TABLE`,
/// `github://OWNER/REPO`, `https://HOST`, `memory:`.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    /// Scheme in lower case.
    pub(crate) scheme: String,
    /// Part between the scheme and the settings, as written, with its secrets: never for output.
    pub(crate) address: String,
    /// Settings after the `?`, as written, with their secrets: never for output.
    pub(crate) query: String,
}

/// All engines, whether compiled in or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engine {
    Memory,
    Sqlite,
    Postgres,
    Redis,
    DynamoDb,
    Http,
    Github,
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
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (address, query) = (address.to_owned(), query.to_owned());
        let url = Self { scheme: scheme.to_ascii_lowercase(), address, query };
        url.engine().map(|_| url)
    }

    /// Returns the address without the `//` that may precede it, with its secrets: never for output.
    #[cfg(any(feature = "sqlite", feature = "redis", feature = "dynamodb", feature = "github"))]
    pub(crate) fn location(&self) -> &str {
        self.address.strip_prefix("//").unwrap_or(&self.address)
    }

    /// Refuses a URL whose password contains a '?': the rest of the password would be taken for settings.
    #[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
    pub(crate) fn must_encode_password(&self) -> Result<()> {
        if !self.has_split_password() {
            return Ok(());
        }
        Err(Error::store(
            StoreErrorKind::Misconfigured,
            "the store's URL has an '@' in its settings: a '?' in a password must be URL-encoded",
            "URL-encode special characters: %3F for '?', %40 for '@', %2F for '/'",
        ))
    }

    /// Whether a '?' may belong to a password: an '@' follows it.
    fn has_split_password(&self) -> bool {
        self.may_have_login() && self.query.contains('@')
    }

    /// Whether an '@' in the address ends a user, a password or a token.
    fn may_have_login(&self) -> bool {
        matches!(self.engine(), Ok(Engine::Postgres | Engine::Redis | Engine::Http))
    }

    /// Returns the engine that the scheme names.
    pub(crate) fn engine(&self) -> Result<Engine> {
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

/// Whether a connection to this host stays on this machine. Names other than `localhost` are not
/// resolved.
#[cfg(any(feature = "postgres", feature = "redis", feature = "http", feature = "github"))]
pub(crate) fn is_this_machine(host: &str) -> bool {
    let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    is_loopback || host.eq_ignore_ascii_case("localhost")
}

/// Whether the text is an HTTP address without a user in it: the address is displayed.
#[cfg(any(feature = "dynamodb", feature = "github"))]
pub(crate) fn is_plain_address(url: &str) -> bool {
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.contains('@'))
}

const SCHEMES: &str = "stores are: sqlite:PATH (or sqlite: for the default place), postgres://…, redis://…, \
                       dynamodb://TABLE, github://OWNER/REPO, https://HOST of a leasehold server, memory:";

/// Settings whose values are secret, by a part of their names.
const SECRETS: [&str; 3] = ["password", "secret", "token"];

/// Omits secrets: the password before the host, and the values of settings that match `SECRETS`.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme)?;
        if self.has_split_password() {
            return f.write_str("//***");
        }
        let (slashes, location) = self.address.split_at(if self.address.starts_with("//") { 2 } else { 0 });
        let may_have_login = !slashes.is_empty() || self.may_have_login();
        f.write_str(slashes)?;
        // The password may itself contain an '@': the last one ends it.
        match location.rsplit_once('@').filter(|_| may_have_login) {
            // In these URLs the token is the user.
            Some((_, host)) if matches!(self.scheme.as_str(), "http" | "https") => write!(f, "***@{host}")?,
            Some((who, host)) => match who.split_once(':') {
                Some((user, _)) => write!(f, "{user}:***@{host}")?,
                None => write!(f, "{who}@{host}")?,
            },
            None => f.write_str(location)?,
        }
        for (number, setting) in self.query.split('&').filter(|setting| !setting.is_empty()).enumerate() {
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
    fn the_scheme_may_be_written_large() {
        assert_eq!(StoreUrl::parse("SQLite:a.db").unwrap().to_string(), "sqlite:a.db");
    }

    #[test]
    fn a_password_is_never_shown() {
        let shown = |url: &str| {
            let url = StoreUrl::parse(url).unwrap();
            assert!(!format!("{url} {url:?}").contains("s3cr3t"), "{url}");
            url.to_string()
        };
        assert_eq!(shown("postgres://ada:s3cr3t@h:5432/db"), "postgres://ada:***@h:5432/db");
        assert_eq!(shown("postgres://ada:s3cr3t@s3cr3t@h/db"), "postgres://ada:***@h/db");
        assert_eq!(shown("redis://:s3cr3t@h/0"), "redis://:***@h/0");
        assert_eq!(shown("redis:ada:s3cr3t@h"), "redis:ada:***@h");
        assert_eq!(shown("redis://ada:a?s3cr3t@h"), "redis://***");
        assert_eq!(shown("sqlite:/srv/a:b@c.db"), "sqlite:/srv/a:b@c.db");
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
