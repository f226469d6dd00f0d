//! Cost of a lease with few and with very many pending tasks, in turn.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leasehold::Leasehold;
use leasehold::store::TaskStore;

use super::drain::{lease_request, settle};
use super::plan::{Case, Load};
use super::worker::NoopTask;
use crate::measure::{float, now};
use crate::report::grouped;
use crate::rounds::{Figures, Sample};
use crate::sandbox::{Engine, Layer, Sandbox, runtime};

const SHALLOW: u64 = 10_000;
const LEASE_BATCH: u32 = 10;
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
) -> Result<Vec<Sample<Case>>> {
    let folders = [tempfile::tempdir_in(folder)?, tempfile::tempdir_in(folder)?];
    let sandboxes = folders.each_ref().map(|folder| Sandbox { engine, folder: folder.path().to_owned() });
    let rows = rows(&sandboxes, [SHALLOW, deep], timeout);
    for sandbox in sandboxes {
        if let Err(error) = sandbox.clean_up() {
            eprintln!("  {engine}: the data of the measurement could not be removed: {error:#}");
        }
    }
    rows
}

fn rows(sandboxes: &[Sandbox; 2], sizes: [u64; 2], timeout: Duration) -> Result<Vec<Sample<Case>>> {
    runtime()?.block_on(async {
        let mut backlogs = Vec::new();
        for (sandbox, size) in sandboxes.iter().zip(sizes) {
            let (leasehold, pending) = fill(sandbox, size, timeout).await?;
            let load = Case { engine: sandbox.engine, load: Load::Lease { pending } };
            backlogs.push((leasehold, load, Histogram::new(3)?));
        }
        for lease in 0..=LEASES {
            for (leasehold, _, times) in &mut backlogs {
                let store = leasehold.store();
                let nanos = lease_once(store.tasks().context("the store does not support tasks")?).await?;
                // The first lease fills caches.
                if lease > 0 {
                    times.record(nanos)?;
                }
            }
        }
        let row = |(_, load, times)| {
            let result = Ok(Figures::of_times(times));
            Sample { load, by: Layer::Store, result }
        };
        Ok(backlogs.into_iter().map(row).collect())
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
