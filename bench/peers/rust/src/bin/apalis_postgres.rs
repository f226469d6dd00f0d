//! apalis-postgres: its worker with default settings, and with batches of 100 and a listener.

use std::time::Duration;

use anyhow::{Result, anyhow};
use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use leasehold_bench_peers::database::Database;
use leasehold_bench_peers::measure::{Figures, begun, drained, rate, starts, tasks};
use tokio::sync::oneshot;

const BATCH: u32 = 100;
const QUEUE: &str = "noop";

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::create().await?;
    let figures = measure(&database).await;
    database.remove().await?;
    println!("{}", serde_json::to_string(&figures?)?);
    std::process::exit(0)
}

async fn measure(database: &Database) -> Result<Figures> {
    PostgresStorage::setup(&database.pool).await?;
    let storage = |batch: Option<usize>| {
        let config = Config::default().queue(QUEUE);
        let config = batch.map_or(config.clone(), |batch| config.batch_size(batch));
        PostgresStorage::<u64>::new(&database.pool).with_config(config)
    };
    let mut adder = storage(None);
    let mut figures = Figures {
        enqueue: rate(1, async || adder.push(0).await.map_err(|error| anyhow!("{error}"))).await?,
        bulk: rate(BATCH, async || add_many(&mut storage(None)).await).await?,
        ..Figures::default()
    };
    let empty = "DELETE FROM apalis.jobs";
    database.run(empty).await?;

    fill(&mut storage(None)).await?;
    let (end, ended) = oneshot::channel::<()>();
    let worker = WorkerBuilder::new("by-default").backend(storage(None)).build(handler);
    let running = tokio::spawn(worker.run_until(until_ended(ended)));
    figures.drain_default = drained().await;
    let _ = end.send(());
    let _ = tokio::time::timeout(Duration::from_secs(5), running).await;
    database.run(empty).await?;

    fill(&mut storage(None)).await?;
    let (end, ended) = oneshot::channel::<()>();
    let backend = storage(Some(BATCH as usize)).with_pubsub();
    let worker = WorkerBuilder::new("tuned").backend(backend).concurrency(24).build(handler);
    let running = tokio::spawn(worker.run_until(until_ended(ended)));
    figures.drain_tuned = drained().await;
    let add = async |sent| storage(None).push(sent).await.map_err(|error| anyhow!("{error}"));
    (figures.p50_millis, figures.p99_millis) = starts(add).await?;
    let _ = end.send(());
    let _ = tokio::time::timeout(Duration::from_secs(5), running).await;
    Ok(figures)
}

async fn handler(sent: u64) -> Result<(), BoxDynError> {
    begun(sent);
    Ok(())
}

async fn until_ended(ended: oneshot::Receiver<()>) -> std::io::Result<()> {
    let _ = ended.await;
    Ok(())
}

async fn fill<K>(storage: &mut impl TaskSink<u64, K>) -> Result<()> {
    for _ in 0..tasks() / u64::from(BATCH) {
        add_many(storage).await?;
    }
    Ok(())
}

async fn add_many<K>(storage: &mut impl TaskSink<u64, K>) -> Result<()> {
    storage.push_bulk(vec![0; BATCH as usize]).await.map_err(|_| anyhow!("the tasks could not be added"))
}
