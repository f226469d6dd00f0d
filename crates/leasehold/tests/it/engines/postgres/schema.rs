//! Schema on the shared test server for each test, and connections without leasehold.

use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{Clock, StoreUrl};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, NoTls};

use crate::engines::support::engine_at;

/// Schema of one test, dropped at its end.
pub(super) struct Schema {
    url: String,
    pub(super) name: String,
}

impl Schema {
    pub(super) fn new() -> Self {
        Self::at(engine_at("postgres"))
    }

    pub(super) fn at(url: String) -> Self {
        let name = format!("test_{}", uuid::Uuid::now_v7().simple());
        Self { url, name }
    }

    /// Returns the store's URL with additional settings.
    pub(super) fn url_with(&self, settings: &str) -> String {
        format!("{}?schema={}&{settings}", self.url, self.name)
    }

    pub(super) fn options(&self, settings: &str) -> PostgresOptions {
        PostgresOptions::from_url(&StoreUrl::parse(&self.url_with(settings)).unwrap()).unwrap()
    }

    /// Connects a store in this schema, on the server's clock.
    pub(super) async fn store(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::connect(self.options("")).await.unwrap())
    }

    /// Connects a store in this schema, on a manual clock.
    pub(super) async fn store_at(&self, clock: &Clock, settings: &str) -> Arc<PostgresStore> {
        let mut options = self.options(settings);
        options.clock = Some(clock.clone());
        Arc::new(PostgresStore::connect(options).await.unwrap())
    }

    /// Opens a connection without leasehold.
    pub(super) async fn client(&self) -> Client {
        plain(&self.url).await
    }
}

pub(super) async fn plain(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Returns the last statement of each connection of an application.
pub(super) async fn last_statements(client: &Client, application: &str) -> Vec<String> {
    let sql = "SELECT query FROM pg_stat_activity WHERE application_name = $1 ORDER BY query_start";
    client.query(sql, &[&application]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Waits until only the connection that listens remains of those with this application name.
pub(super) async fn until_only_the_listener_remains(client: &Client, application: &str) {
    let started = Instant::now();
    loop {
        let statements = last_statements(client, application).await;
        if matches!(statements.as_slice(), [only] if only.starts_with("LISTEN")) {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{statements:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let (url, drop) = (self.url.clone(), format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // Best effort: the server may have stopped, and the test is over.
            runtime.block_on(async {
                if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                    tokio::spawn(connection);
                    let _ = client.batch_execute(&drop).await;
                }
            });
        });
        let _ = thread.join();
    }
}
