//! `graphile_worker`: its worker with default settings, and with a local queue and batched completion.

use std::time::Duration;

use anyhow::Result;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use leasehold_bench_peers::database::Database;
use leasehold_bench_peers::measure::{Figures, begun, drained, rate, starts, tasks};
use serde::{Deserialize, Serialize};

const BATCH: u32 = 100;

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    sent: u64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _context: WorkerContext) -> impl IntoTaskHandlerResult {
        begun(self.sent);
        Ok::<(), String>(())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let database = Database::create().await?;
    let figures = measure(&database).await;
    database.remove().await?;
    println!("{}", serde_json::to_string(&figures?)?);
    std::process::exit(0)
}

async fn measure(database: &Database) -> Result<Figures> {
    let options = || {
        WorkerOptions::default()
            .pg_pool(database.pool.clone())
            .listen_os_shutdown_signals(false)
            .define_job::<Noop>()
    };
    let tuned = || {
        let queue = LocalQueueConfig::default().with_size(500);
        options().concurrency(24).local_queue(queue).complete_job_batch_delay(Duration::ZERO)
    };
    let utils = options().init().await?.create_utils();
    let mut figures = Figures {
        enqueue: rate(1, async || Ok(utils.add_job(Noop { sent: 0 }, JobSpec::default()).await.map(drop)?)).await?,
        bulk: rate(BATCH, async || add_many(&utils).await).await?,
        ..Figures::default()
    };
    let empty = "DELETE FROM graphile_worker._private_jobs";
    database.run(empty).await?;
    for (options, figure) in [(options(), &mut figures.drain_default), (tuned(), &mut figures.drain_tuned)] {
        for _ in 0..tasks() / u64::from(BATCH) {
            add_many(&utils).await?;
        }
        *figure = with_worker(options, async || Ok(drained().await)).await?;
        database.run(empty).await?;
    }
    let add = async |sent| Ok(utils.add_job(Noop { sent }, JobSpec::default()).await.map(drop)?);
    (figures.p50_millis, figures.p99_millis) = with_worker(options(), async || starts(add).await).await?;
    Ok(figures)
}

async fn add_many(utils: &WorkerUtils) -> Result<()> {
    let spec = JobSpec::default();
    let jobs: Vec<_> = (0..BATCH).map(|_| (Noop { sent: 0 }, &spec)).collect();
    Ok(utils.add_jobs(&jobs).await.map(drop)?)
}

/// Runs `work` while a worker is running.
async fn with_worker<T>(options: WorkerOptions, work: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let worker = std::sync::Arc::new(options.init().await?);
    let running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run().await }
    });
    let result = work().await;
    worker.request_shutdown();
    let _ = tokio::time::timeout(Duration::from_secs(5), running).await;
    result
}
