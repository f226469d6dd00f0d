//! What a lease costs with few and with very many tasks that could run, in turn.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leasehold::Leasehold;
use leasehold::store::TaskStore;

use super::crew::Tick;
use super::drain::{ask, settle};
use super::figure::Figure;
use super::plan::{By, Case, Load};
use super::rounds::Row;
use crate::measure::now;
use crate::place::{Place, runtime};
use crate::plan::Engine;
use crate::stats::{float, grouped};

/// With so few it is compared.
pub(super) const SHALLOW: u64 = 10_000;
/// So many with each lease.
const LEASE: u32 = 10;
/// So many leases.
const LEASES: u32 = 100;
/// So many with each call, and so many calls at once, when the backlog is made.
const FILL: usize = 1000;
const FILLERS: usize = 2;

/// Both rows of an engine. The deep backlog has so many tasks as can be added in the time there is.
pub(super) fn measure(
    engine: Engine,
    deep: u64,
    patience: Duration,
    folder: &std::path::Path,
) -> Result<Vec<Row>> {
    let (few, many) = (tempfile::tempdir_in(folder)?, tempfile::tempdir_in(folder)?);
    let place = |folder: &tempfile::TempDir| Place { engine, folder: folder.path().to_owned() };
    let (few, many) = (place(&few), place(&many));
    let rows = rows(&few, &many, deep, patience);
    for place in [few, many] {
        if let Err(error) = place.clean_up() {
            eprintln!("  {engine}: what was measured could not be removed: {error:#}");
        }
    }
    rows
}

fn rows(few: &Place, many: &Place, deep: u64, patience: Duration) -> Result<Vec<Row>> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let (shallow, _) = fill(few, SHALLOW, patience).await?;
        let (deep, pending) = fill(many, deep, patience).await?;
        let stores = [shallow.store(), deep.store()];
        let mut times = [Histogram::new(3)?, Histogram::new(3)?];
        for lease in 0..=LEASES {
            for (store, times) in stores.iter().zip(&mut times) {
                let nanos = lease_once(store.tasks().context("there are no tasks on this store")?).await?;
                // The first one fills caches.
                if lease > 0 {
                    times.record(nanos)?;
                }
            }
        }
        let row = |(pending, times)| Row {
            case: Case { engine: few.engine, load: Load::Lease { pending } },
            by: By::Store,
            figure: Ok(Figure { rate: None, times: Some(times) }),
        };
        Ok([SHALLOW, pending].into_iter().zip(times).map(row).collect())
    })
}

async fn lease_once(store: &dyn TaskStore) -> Result<u64> {
    let ask = ask(LEASE)?;
    let begun = now();
    let leased = store.lease(&ask).await?;
    let nanos = now() - begun;
    settle(store, &leased.tasks).await?;
    Ok(nanos)
}

/// Adds so many tasks, or as many as there is time for; says how many.
async fn fill(place: &Place, tasks: u64, patience: Duration) -> Result<(Leasehold, u64)> {
    let leasehold = Leasehold::connect(&place.url()?).await?;
    let begun = now();
    let each = tasks / FILLERS as u64;
    let filler = |_| {
        let leasehold = leasehold.clone();
        async move {
            let (ticks, mut added) = (vec![Tick::idle(); FILL], 0);
            while added < each && Duration::from_nanos(now() - begun) < patience {
                leasehold.enqueue_all(&ticks).await?;
                added += FILL as u64;
            }
            anyhow::Ok(added)
        }
    };
    let mut fillers: tokio::task::JoinSet<_> = (0..FILLERS).map(filler).collect();
    let mut added = 0;
    while let Some(filled) = fillers.join_next().await {
        added += filled??;
    }
    let (count, seconds) = (grouped(float(added)), float(now() - begun) / 1e9);
    eprintln!("  {}: added {count} in {seconds:.1} s", place.engine);
    Ok((leasehold, added))
}
