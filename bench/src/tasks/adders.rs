//! Clients that add tasks, put to work together: each is a task of this process.

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::runtime::Runtime;

use super::figure::Figure;
use crate::measure::{Window, now};

/// A client that adds tasks, so many with each call.
pub(super) trait Adder: Send + 'static {
    fn add(&mut self) -> impl Future<Output = Result<()>> + Send;
}

/// Lets all of them add until the window is over.
pub(super) fn measure<A: Adder>(
    runtime: &Runtime,
    adders: Vec<A>,
    batch: u32,
    window: Window,
) -> Result<Figure> {
    let adders: Vec<_> = adders.into_iter().map(|adder| runtime.spawn(repeat(adder, window))).collect();
    let mut times = Histogram::new(3)?;
    for adder in adders {
        times.add(runtime.block_on(adder)??)?;
    }
    Ok(Figure::of_calls(times, batch, window))
}

/// A client that does nothing but call must let others on its thread have their time.
const YIELD_EVERY: u32 = 64;

/// Calls again and again; how long each call took.
async fn repeat(mut adder: impl Adder, window: Window) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let (mut begun, mut again) = (now(), 0);
    loop {
        adder.add().await?;
        let ended = now();
        if ended >= window.until {
            return Ok(times);
        }
        if ended >= window.from {
            times.record(ended - begun)?;
        }
        begun = ended;
        again += 1;
        if again % YIELD_EVERY == 0 {
            tokio::task::yield_now().await;
            begun = now();
        }
    }
}
