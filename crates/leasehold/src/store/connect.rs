//! Opens the engine that a URL names.

use std::pin::Pin;
use std::sync::Arc;

use super::support::url::store_url::Engine;
use super::{Store, StoreUrl, memory::MemoryStore};
use crate::Result;

/// Opens the engine that the URL names. Migrates its schema to the newest version if necessary, and
/// creates the store where that costs nothing.
pub async fn connect(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    // Boxed without its type: otherwise the compiler must look through the clients of all engines to
    // see that a future of a caller can be sent to another thread, and may give up.
    let opening: Opening<'_> = Box::pin(open(url));
    opening.await
}

type Opening<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Store>>> + Send + 'a>>;

async fn open(url: &StoreUrl) -> Result<Arc<dyn Store>> {
    match url.engine()? {
        Engine::Memory => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        Engine::Sqlite => {
            let options = super::sqlite::SqliteOptions::from_url(url)?;
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
        engine => Err(missing(engine)),
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

/// Returns the error for an engine that is not compiled in.
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
fn missing(engine: Engine) -> crate::Error {
    use crate::error::{Error, StoreErrorKind, StoreRemedy};

    let (name, feature) = match engine {
        Engine::Memory => ("memory", "memory"),
        Engine::Sqlite => ("SQLite", "sqlite"),
        Engine::Postgres => ("PostgreSQL", "postgres"),
        Engine::Redis => ("Redis", "redis"),
        Engine::DynamoDb => ("DynamoDB", "dynamodb"),
        Engine::Http => ("http", "http"),
        Engine::Github => ("GitHub", "github"),
    };
    let (message, hint) =
        (format!("this build has no {name} engine"), format!("build it with the feature {feature}"));
    Error::store(StoreErrorKind::Misconfigured, message, hint).with_remedy(StoreRemedy::Feature(feature))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreRemedy;

    #[test]
    fn an_engine_that_is_not_built_in_names_its_feature() {
        let error = missing(Engine::Postgres);
        assert_eq!(error.to_string(), "this build has no PostgreSQL engine");
        assert_eq!(error.code(), "STORE_MISCONFIGURED");
        assert_eq!(error.hint(), Some("build it with the feature postgres"));
        assert_eq!(error.remedy(), Some(StoreRemedy::Feature("postgres")));
    }
}
