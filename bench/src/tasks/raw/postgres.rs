//! PostgreSQL without leasehold: prepared statements, with one connection per client; and pgbench.

use std::iter::repeat_n;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hdrhistogram::Histogram;
use tokio_postgres::{Client, Statement};

use super::PAYLOAD;
use crate::clients::raw_postgres;
use crate::measure::{Window, now};
use crate::pgbench::Pgbench;
use crate::rounds::Figures;
use crate::sandbox::{Sandbox, runtime};
use crate::tasks::drain::{Enqueuer, INTERVAL, measure_clients};

/// Creates the schema, the table, and this number of tasks.
fn create(sandbox: &Sandbox, tasks: u64) -> Result<()> {
    let schema = sandbox.namespace();
    let sql = format!(
        "CREATE SCHEMA {schema};
        CREATE TABLE {schema}.raw (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, priority int NOT NULL DEFAULT 0,
            state smallint NOT NULL DEFAULT 0, payload jsonb NOT NULL);
        CREATE INDEX ON {schema}.raw (priority, id) WHERE state = 0;
        INSERT INTO {schema}.raw (payload) SELECT '{PAYLOAD}' FROM generate_series(1, {tasks});
        ANALYZE {schema}.raw"
    );
    runtime()?.block_on(async { Ok(connect(sandbox).await?.batch_execute(&sql).await?) })
}

fn insert(schema: &str, rows: u32) -> String {
    let values: Vec<_> = repeat_n(format!("('{PAYLOAD}')"), rows as usize).collect();
    format!("INSERT INTO {schema}.raw (payload) VALUES {}", values.join(", "))
}

/// Statement that takes up to this number of tasks; returns their ids and payloads.
fn fetch(schema: &str, rows: u32) -> String {
    format!(
        "WITH next AS MATERIALIZED (SELECT id FROM {schema}.raw WHERE state = 0 ORDER BY priority, id \
         LIMIT {rows} FOR UPDATE SKIP LOCKED) \
         UPDATE {schema}.raw AS task SET state = 1 FROM next WHERE task.id = next.id RETURNING task.id, task.payload::text"
    )
}

struct Inserter {
    client: Client,
    insert: Statement,
}

impl Enqueuer for Inserter {
    async fn enqueue(&mut self) -> Result<()> {
        Ok(self.client.execute(&self.insert, &[]).await.map(drop)?)
    }
}

pub(in crate::tasks) fn enqueue(
    sandbox: &Sandbox,
    clients: u32,
    batch: u32,
    window: impl FnOnce() -> Window,
) -> Result<Figures> {
    create(sandbox, 0)?;
    let (runtime, sql) = (runtime()?, insert(&sandbox.namespace(), batch));
    let open = |_| {
        runtime.block_on(async {
            let client = connect(sandbox).await?;
            let insert = client.prepare(&sql).await?;
            Ok(Inserter { client, insert })
        })
    };
    let clients = (0..clients).map(open).collect::<Result<Vec<_>>>()?;
    measure_clients(&runtime, clients, batch, window())
}

pub(in crate::tasks) fn drain(sandbox: &Sandbox, tasks: u64, batch: u32) -> Result<Figures> {
    create(sandbox, tasks)?;
    let schema = sandbox.namespace();
    runtime()?.block_on(async {
        let client = connect(sandbox).await?;
        let fetch = client.prepare(&fetch(&schema, batch)).await?;
        let delete = client.prepare(&format!("DELETE FROM {schema}.raw WHERE id = ANY ($1)")).await?;
        let (begun, mut done) = (now(), 0);
        while done < tasks {
            let rows = client.query(&fetch, &[]).await?;
            let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
            ensure!(!ids.is_empty(), "tasks are left that cannot be taken");
            done += client.execute(&delete, &[&ids]).await?;
        }
        Ok(Figures::since(begun, tasks))
    })
}

/// Inserts a row on one connection and takes it on another, at the same interval as leasehold: the minimum
/// time from enqueue to start.
pub(in crate::tasks) fn start(sandbox: &Sandbox, seconds: f64) -> Result<Figures> {
    create(sandbox, 0)?;
    let schema = sandbox.namespace();
    runtime()?.block_on(async {
        let (adder, worker) = (connect(sandbox).await?, connect(sandbox).await?);
        let insert = adder.prepare(&insert(&schema, 1)).await?;
        let fetch = worker.prepare(&fetch(&schema, 1)).await?;
        let (mut schedule, mut times) = (tokio::time::interval(INTERVAL), Histogram::new(3)?);
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        while Instant::now() < end {
            schedule.tick().await;
            let sent = now();
            adder.execute(&insert, &[]).await?;
            ensure!(worker.query(&fetch, &[]).await?.len() == 1, "an inserted task cannot be taken");
            // The histogram resizes itself, so recording cannot fail.
            let _ = times.record(now() - sent);
        }
        Ok(Figures::of_times(times))
    })
}

/// Runs a measurement while a transaction is open that was begun before.
pub(in crate::tasks) fn beside_transaction(
    sandbox: &Sandbox,
    measure: impl FnOnce() -> Result<Figures>,
) -> Result<Figures> {
    let runtime = runtime()?;
    let client = runtime.block_on(connect(sandbox))?;
    // The first query takes the snapshot.
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    runtime.block_on(client.batch_execute(begin))?;
    let figures = measure();
    runtime.block_on(client.batch_execute("ROLLBACK")).context("the open transaction has ended too early")?;
    figures
}

async fn connect(sandbox: &Sandbox) -> Result<Client> {
    raw_postgres::connect(&sandbox.remote()?).await
}

/// The speed of the server with a client that costs almost nothing.
impl Pgbench {
    pub(in crate::tasks) fn enqueue(
        &self,
        sandbox: &Sandbox,
        clients: u32,
        batch: u32,
        seconds: f64,
    ) -> Result<Figures> {
        create(sandbox, 0)?;
        let script = insert(&sandbox.namespace(), batch) + ";\n";
        let whole_seconds = format!("{:.0}", seconds.ceil());
        let output =
            self.run(sandbox, &script, &["--client", &clients.to_string(), "--time", &whole_seconds])?;
        rate(&output, batch)
    }

    /// One client repeatedly takes a batch and deletes it.
    pub(in crate::tasks) fn drain(&self, sandbox: &Sandbox, tasks: u64, batch: u32) -> Result<Figures> {
        create(sandbox, tasks)?;
        let (schema, again) = (sandbox.namespace(), (tasks / u64::from(batch)).to_string());
        let script = format!(
            "WITH taken AS ({}) SELECT array_agg(id)::text AS ids, string_agg(payload, ' ') AS payloads FROM taken \\gset\n\
             DELETE FROM {schema}.raw WHERE id = ANY (:ids::bigint[]);\n",
            fetch(&schema, batch)
        );
        rate(&self.run(sandbox, &script, &["--client", "1", "--transactions", &again])?, batch)
    }
}

/// Returns the tasks per second, at `batch` tasks per transaction.
fn rate(output: &str, batch: u32) -> Result<Figures> {
    let tps = output.lines().find_map(|line| line.strip_prefix("tps = "));
    let tps = tps.and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    let rate = tps.context("the output of pgbench has no transaction rate")? * f64::from(batch);
    Ok(Figures { rate: Some(rate), ..Figures::default() })
}
