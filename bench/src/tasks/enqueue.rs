//! Adding tasks, as a program does it that uses the library.

use anyhow::Result;
use leasehold::Leasehold;

use super::adders::{self, Adder};
use super::crew::Tick;
use super::figure::Figure;
use crate::measure::Window;
use crate::place::{Place, runtime};

/// One client; all of them share a handle.
struct Client {
    leasehold: Leasehold,
    ticks: Vec<Tick>,
}

impl Adder for Client {
    async fn add(&mut self) -> Result<()> {
        if let [tick] = self.ticks.as_slice() {
            self.leasehold.enqueue(tick).await?;
        } else {
            self.leasehold.enqueue_all(&self.ticks).await?;
        }
        Ok(())
    }
}

/// So many clients add so many with each call.
pub(super) fn measure(
    place: &Place,
    clients: u32,
    batch: u32,
    window: impl FnOnce() -> Window,
) -> Result<Figure> {
    let runtime = runtime()?;
    let leasehold = runtime.block_on(Leasehold::connect(&place.url()?))?;
    let ticks = vec![Tick::idle(); batch as usize];
    let client = |_| Client { leasehold: leasehold.clone(), ticks: ticks.clone() };
    adders::measure(&runtime, (0..clients).map(client).collect(), batch, window())
}

/// So many with each call, when a backlog is made.
const FILL: usize = 500;

/// Adds so many tasks, in no hurry.
pub(super) async fn fill(leasehold: &Leasehold, tasks: u64) -> Result<()> {
    let mut left = usize::try_from(tasks)?;
    while left > 0 {
        let now = left.min(FILL);
        leasehold.enqueue_all(&vec![Tick::idle(); now]).await?;
        left -= now;
    }
    Ok(())
}
