//! How soon a task begins that is added while the worker has nothing to do.

use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use leasehold::Leasehold;

use super::crew::{Crew, OtherCrew, Tick};
use super::drain::until_done;
use super::figure::Figure;
use crate::place::{Place, runtime};

/// One task in this time: the worker is done with each before the next comes.
pub(super) const EVERY: Duration = Duration::from_millis(20);
/// After so long without work a worker is idle.
const SETTLE_IN: Duration = Duration::from_millis(300);
/// The last task has begun by then, or the row says that it did not.
const PATIENCE: Duration = Duration::from_secs(10);

/// With the worker in this process.
pub(super) fn here(place: &Place, seconds: f64) -> Result<Figure> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let leasehold = Leasehold::connect(&place.url()?).await?;
        let crew = Crew::start(&leasehold)?;
        add_on_schedule(&leasehold, seconds).await?;
        Ok(figure(crew.stop().await))
    })
}

/// With the worker in another process.
pub(super) fn elsewhere(place: &Place, seconds: f64) -> Result<Figure> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&place.url()?))?;
    let mut crew = OtherCrew::prepare(place)?;
    crew.start()?;
    runtime.block_on(add_on_schedule(&leasehold, seconds))?;
    Ok(figure(crew.stop()?))
}

fn figure(times: Histogram<u64>) -> Figure {
    Figure { rate: None, times: Some(times) }
}

/// Adds tasks, and waits until the store knows that all are done.
async fn add_on_schedule(leasehold: &Leasehold, seconds: f64) -> Result<()> {
    leasehold.enqueue(&Tick::idle()).await?;
    drained(leasehold).await?;
    tokio::time::sleep(SETTLE_IN).await;
    let mut schedule = tokio::time::interval(EVERY);
    let ticks = (seconds / EVERY.as_secs_f64()).ceil();
    for _ in std::iter::successors(Some(1.0), |tick| (*tick < ticks).then_some(tick + 1.0)) {
        schedule.tick().await;
        leasehold.enqueue(&Tick::sent_now()).await?;
    }
    drained(leasehold).await
}

async fn drained(leasehold: &Leasehold) -> Result<()> {
    tokio::time::timeout(PATIENCE, until_done(leasehold)).await.context("a task was not done in time")?
}
