//! Background maintenance in processes without a worker of this library, such as a server whose
//! workers run in other programs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::upkeep::{Upkeep, look_after, tick_on};
use crate::client::leasehold::Inner;
use crate::error::Result;

/// Performs the maintenance that every worker performs, without running tasks, until it is dropped.
/// Any number of processes may have one.
#[must_use = "a caretaker that is dropped looks after nothing"]
pub struct Caretaker {
    _stop: DropGuard,
}

impl Caretaker {
    pub(in crate::client) fn start(inner: &Arc<Inner>, every: Duration) -> Result<Self> {
        inner.tasks()?;
        let stop = CancellationToken::new();
        let can = inner.store.capabilities().tasks;
        let (forgets, workflows) = (can.forgets, can.locks);
        let upkeep = Upkeep { inner: inner.clone(), every, forgets, retention: None, workflows };
        let upkeep = look_after(upkeep);
        let (stopped, ticks) = (stop.clone(), tick_on(inner.clone()));
        inner.keeper.spawn_upkeep(async move {
            stopped.run_until_cancelled(async { tokio::join!(upkeep, ticks) }).await;
        });
        Ok(Self { _stop: stop.drop_guard() })
    }
}
