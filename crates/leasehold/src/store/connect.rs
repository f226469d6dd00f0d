//! From a URL to an engine.

use std::fmt;
use std::sync::Arc;

use super::{Store, memory::MemoryStore};
use crate::error::{Error, Result, Trouble};

/// Where a store is, as people write it: `memory:`, `sqlite:PATH`, `sqlite:` for the default place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrl {
    scheme: String,
    rest: String,
}

/// Opens the engine that the URL names. It is created, or brought to the newest schema, if it has to be.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    match url.scheme.as_str() {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => {
            let options = super::sqlite::SqliteOptions::from_url(&url.rest)?;
            Ok(Arc::new(super::sqlite::SqliteStore::open(options).await?))
        }
        #[cfg(not(feature = "sqlite"))]
        "sqlite" => Err(Error::store(
            Trouble::Misconfigured,
            "this build has no SQLite engine",
            "build it with: cargo build --features sqlite",
        )),
        _ => Err(url.unknown()),
    }
}

impl StoreUrl {
    /// Splits the URL; whether its engine exists shows when it is opened.
    pub fn parse(url: &str) -> Result<Self> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(Error::store(
                Trouble::Misconfigured,
                format!("'{url}' is no store URL: it has no scheme"),
                format!("for a SQLite file write sqlite:{url}; {SCHEMES}"),
            ));
        };
        let url = Self { scheme: scheme.to_ascii_lowercase(), rest: rest.to_owned() };
        if ["memory", "sqlite"].contains(&url.scheme.as_str()) { Ok(url) } else { Err(url.unknown()) }
    }

    fn unknown(&self) -> Error {
        let message = format!("'{}:' is not a store that leasehold knows", self.scheme);
        Error::store(Trouble::Misconfigured, message, SCHEMES)
    }
}

const SCHEMES: &str = "stores are: sqlite:PATH (or sqlite: for the default place), memory:";

/// Without what may be secret.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.rest)
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
}
