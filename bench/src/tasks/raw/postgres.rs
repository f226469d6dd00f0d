//! PostgreSQL without leasehold, by our own driver: prepared statements on a connection for each client.

use std::iter::repeat_n;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use tokio_postgres::{Client, NoTls, Statement};

use super::PAYLOAD;
use crate::measure::{Window, now};
use crate::place::{Place, runtime};
use crate::tasks::adders::{self, Adder};
use crate::tasks::figure::Figure;
use crate::tasks::start::EVERY;

/// Makes the schema, the table, and so many tasks.
pub(in crate::tasks) fn create(place: &Place, tasks: u64) -> Result<()> {
    let schema = place.space();
    let sql = format!(
        "CREATE SCHEMA {schema};
        CREATE TABLE {schema}.raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, priority int NOT NULL DEFAULT 0,
            state smallint NOT NULL DEFAULT 0, payload jsonb NOT NULL);
        CREATE INDEX ON {schema}.raw (priority, id) WHERE state = 0;
        INSERT INTO {schema}.raw (payload) SELECT '{PAYLOAD}' FROM generate_series(1, {tasks});
        ANALYZE {schema}.raw"
    );
    runtime()?.block_on(async { Ok(connect(place).await?.batch_execute(&sql).await?) })
}

/// Adds so many rows.
pub(super) fn insert(schema: &str, rows: u32) -> String {
    let values: Vec<_> = repeat_n(format!("('{PAYLOAD}')"), rows as usize).collect();
    format!("INSERT INTO {schema}.raw (payload) VALUES {}", values.join(", "))
}

/// Takes so many; gives their ids and what they are about.
pub(super) fn fetch(schema: &str, rows: u32) -> String {
    format!(
        "WITH next AS MATERIALIZED (SELECT id FROM {schema}.raw WHERE state = 0 ORDER BY priority, id \
         LIMIT {rows} FOR UPDATE SKIP LOCKED) \
         UPDATE {schema}.raw AS task SET state = 1 FROM next WHERE task.id = next.id RETURNING task.id, task.payload::text"
    )
}

/// A client with a connection of its own.
struct Inserter {
    client: Client,
    insert: Statement,
}

impl Adder for Inserter {
    async fn add(&mut self) -> Result<()> {
        Ok(self.client.execute(&self.insert, &[]).await.map(drop)?)
    }
}

pub(in crate::tasks) fn enqueue(
    place: &Place,
    clients: u32,
    batch: u32,
    window: impl FnOnce() -> Window,
) -> Result<Figure> {
    create(place, 0)?;
    let (runtime, sql) = (runtime()?, insert(&place.space(), batch));
    let open = |_| {
        runtime.block_on(async {
            let client = connect(place).await?;
            let insert = client.prepare(&sql).await?;
            Ok(Inserter { client, insert })
        })
    };
    let clients = (0..clients).map(open).collect::<Result<Vec<_>>>()?;
    adders::measure(&runtime, clients, batch, window())
}

pub(in crate::tasks) fn drain(place: &Place, tasks: u64, batch: u32) -> Result<Figure> {
    create(place, tasks)?;
    let schema = place.space();
    runtime()?.block_on(async {
        let client = connect(place).await?;
        let fetch = client.prepare(&fetch(&schema, batch)).await?;
        let delete = client.prepare(&format!("DELETE FROM {schema}.raw WHERE id = ANY ($1)")).await?;
        let (begun, mut done) = (now(), 0);
        while done < tasks {
            let rows = client.query(&fetch, &[]).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            ensure!(!ids.is_empty(), "there are tasks left that nobody gets");
            done += client.execute(&delete, &[&ids]).await?;
        }
        Ok(Figure::since(begun, tasks))
    })
}

/// Adds a row by one connection and takes it by another, at the pace at which leasehold does it: how soon it could begin.
pub(in crate::tasks) fn start(place: &Place, seconds: f64) -> Result<Figure> {
    create(place, 0)?;
    let schema = place.space();
    runtime()?.block_on(async {
        let (adder, worker) = (connect(place).await?, connect(place).await?);
        let insert = adder.prepare(&insert(&schema, 1)).await?;
        let fetch = worker.prepare(&fetch(&schema, 1)).await?;
        let (mut schedule, mut times) = (tokio::time::interval(EVERY), Histogram::new(3)?);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            schedule.tick().await;
            let sent = now();
            adder.execute(&insert, &[]).await?;
            ensure!(worker.query(&fetch, &[]).await?.len() == 1, "a task is there that nobody gets");
            // It grows as it must.
            let _ = times.record(now() - sent);
        }
        Ok(Figure { rate: None, times: Some(times) })
    })
}

async fn connect(place: &Place) -> Result<Client> {
    let connected = tokio_postgres::connect(&place.remote()?, NoTls).await;
    let (client, connection) = connected.context("PostgreSQL cannot be reached")?;
    tokio::spawn(connection);
    Ok(client)
}
