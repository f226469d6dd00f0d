//! Cost of a lease with few and with very many pending tasks, in turn.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leasehold::Leasehold;
use leasehold::store::TaskStore;

use super::drain::{lease_request, settle};
use super::plan::{Case, Layer, Load, Sample};
use super::rounds::Row;
use super::worker::NoopTask;
use crate::measure::{float, grouped, now};
use crate::sandbox::{Engine, Sandbox, runtime};

/// Size of the small backlog.
pub(super) const SHALLOW: u64 = 10_000;
/// Number of tasks per lease.
const LEASE_BATCH: u32 = 10;
/// Number of measured leases.
const LEASES: u32 = 100;
/// Number of tasks per call, and of concurrent calls, when a backlog is created.
const FILL_BATCH: usize = 1000;
const FILL_CLIENTS: usize = 2;

/// Measures both rows of an engine. The deep backlog has as many tasks as can be enqueued in time.
pub(super) fn measure(
    engine: Engine,
    deep: u64,
    timeout: Duration,
    folder: &std::path::Path,
) -> Result<Vec<Row>> {
    let (shallow_sandbox, deep_sandbox) = (tempfile::tempdir_in(folder)?, tempfile::tempdir_in(folder)?);
    let sandbox = |folder: &tempfile::TempDir| Sandbox { engine, folder: folder.path().to_owned() };
    let (shallow_sandbox, deep_sandbox) = (sandbox(&shallow_sandbox), sandbox(&deep_sandbox));
    let rows = rows(&shallow_sandbox, &deep_sandbox, deep, timeout);
    for sandbox in [shallow_sandbox, deep_sandbox] {
        if let Err(error) = sandbox.clean_up() {
            eprintln!("  {engine}: the data of the measurement could not be removed: {error:#}");
        }
    }
    rows
}

fn rows(shallow_sandbox: &Sandbox, deep_sandbox: &Sandbox, deep: u64, timeout: Duration) -> Result<Vec<Row>> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let (shallow, _) = fill(shallow_sandbox, SHALLOW, timeout).await?;
        let (deep, pending) = fill(deep_sandbox, deep, timeout).await?;
        let stores = [shallow.store(), deep.store()];
        let mut times = [Histogram::new(3)?, Histogram::new(3)?];
        for lease in 0..=LEASES {
            for (store, times) in stores.iter().zip(&mut times) {
                let nanos = lease_once(store.tasks().context("the store does not support tasks")?).await?;
                // The first lease fills caches.
                if lease > 0 {
                    times.record(nanos)?;
                }
            }
        }
        let row = |(pending, times)| Row {
            case: Case { engine: shallow_sandbox.engine, load: Load::Lease { pending } },
            by: Layer::Store,
            sample: Ok(Sample { rate: None, times: Some(times) }),
        };
        Ok([SHALLOW, pending].into_iter().zip(times).map(row).collect())
    })
}

async fn lease_once(store: &dyn TaskStore) -> Result<u64> {
    let lease_request = lease_request(LEASE_BATCH)?;
    let begun = now();
    let leased = store.lease(&lease_request).await?;
    let nanos = now() - begun;
    settle(store, &leased.tasks).await?;
    Ok(nanos)
}

/// Enqueues this number of tasks, or as many as possible before the timeout; returns their number.
async fn fill(sandbox: &Sandbox, tasks: u64, timeout: Duration) -> Result<(Leasehold, u64)> {
    let leasehold = Leasehold::connect(&sandbox.url()?).await?;
    let begun = now();
    let each = tasks / FILL_CLIENTS as u64;
    let client = |_| {
        let leasehold = leasehold.clone();
        async move {
            let (batch, mut added) = (vec![NoopTask::unmeasured(); FILL_BATCH], 0);
            while added < each && Duration::from_nanos(now() - begun) < timeout {
                leasehold.enqueue_all(&batch).await?;
                added += FILL_BATCH as u64;
            }
            anyhow::Ok(added)
        }
    };
    let mut clients: tokio::task::JoinSet<_> = (0..FILL_CLIENTS).map(client).collect();
    let mut added = 0;
    while let Some(filled) = clients.join_next().await {
        added += filled??;
    }
    let (count, seconds) = (grouped(float(added)), float(now() - begun) / 1e9);
    eprintln!("  {}: enqueued {count} in {seconds:.1} s", sandbox.engine);
    Ok((leasehold, added))
}
