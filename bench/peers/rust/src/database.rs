//! Separate database, because some peers have a fixed schema name.

use anyhow::{Context, Result};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

/// New database, dropped by [`Database::remove`].
pub struct Database {
    server: PgPool,
    name: String,
    pub pool: PgPool,
}

impl Database {
    pub async fn create() -> Result<Self> {
        let url = std::env::var("LEASEHOLD_BENCH_POSTGRES").context("LEASEHOLD_BENCH_POSTGRES is not set")?;
        let options: PgConnectOptions = url.parse()?;
        let server = PgPoolOptions::new().max_connections(1).connect_with(options.clone()).await?;
        let name = format!("peer_{}", std::process::id());
        sqlx::query(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&server).await?;
        let pool = PgPoolOptions::new().max_connections(20).connect_with(options.database(&name)).await?;
        Ok(Self { server, name, pool })
    }

    pub async fn run(&self, sql: &str) -> Result<()> {
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await?;
        Ok(())
    }

    pub async fn remove(self) -> Result<()> {
        self.pool.close().await;
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        sqlx::query(AssertSqlSafe(sql)).execute(&self.server).await?;
        Ok(())
    }
}
