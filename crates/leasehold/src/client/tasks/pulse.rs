//! Signs of life: one call for all leases of a worker, on a thread that its handlers cannot starve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::floor::Floor;
use crate::client::leasehold::Inner;
use crate::error::Result;
use crate::model::{Ttl, WorkerInfo};
use crate::store::Moment;

/// Sleeps are cut into pieces of this length: timers stand still while the machine sleeps, the boot clock does not.
const NAP: Duration = Duration::from_millis(250);
/// So many leases in one call.
const BATCH: usize = 1000;
/// Progress is told at most this often, or as often as the engine polls if that is longer.
const NEWS_EVERY: Duration = Duration::from_secs(1);

/// What a worker says about itself, and what of it changes.
pub(super) struct About {
    pub(super) info: WorkerInfo,
    pub(super) busy: AtomicU32,
    pub(super) draining: AtomicBool,
}

impl About {
    pub(super) fn now(&self) -> WorkerInfo {
        WorkerInfo {
            busy: self.busy.load(Ordering::Relaxed),
            draining: self.draining.load(Ordering::Relaxed),
            ..self.info.clone()
        }
    }
}

/// Gives signs of life for all leases of this ttl, until it is dropped. A lease that could not be kept alive in time is
/// given up here, whatever the store may be doing.
pub(super) async fn beat_on(inner: Arc<Inner>, floor: Arc<Floor>, about: Arc<About>, ttl: Ttl) {
    let every = ttl.as_duration() / 3;
    let news_every = NEWS_EVERY.max(inner.store.abilities().poll).min(every);
    let mut due = Moment::now();
    let mut last = due;
    loop {
        let now = Moment::now();
        if now >= due {
            let mut beat = std::pin::pin!(beat(&inner, &floor, &about, ttl));
            let heard = loop {
                tokio::select! {
                    heard = &mut beat => break heard,
                    () = tokio::time::sleep(every.min(NAP)) => give_up(&floor),
                }
            };
            last = now;
            due = match heard {
                Ok(()) => now.plus(every),
                Err(error) => {
                    tracing::warn!(%error, "a sign of life did not get through; trying again");
                    Moment::now().plus((every / 5).min(NEWS_EVERY))
                }
            };
        }
        give_up(&floor);
        let nap = due.after(Moment::now()).min(NAP);
        tokio::select! {
            () = tokio::time::sleep(nap) => {}
            () = floor.news.notified() => due = due.min(last.plus(news_every)),
        }
    }
}

async fn beat(inner: &Inner, floor: &Floor, about: &About, ttl: Ttl) -> Result<()> {
    let held = floor.held(ttl);
    let mut rest = held.as_slice();
    loop {
        let (batch, later) = rest.split_at(rest.len().min(BATCH));
        let sent = Moment::now();
        let beats = inner.tasks()?.heartbeat(&about.now(), batch, ttl).await?;
        floor.heard(batch, &beats, sent);
        if later.is_empty() {
            return Ok(());
        }
        rest = later;
    }
}

fn give_up(floor: &Floor) {
    let lost = floor.give_up(Moment::now());
    if lost > 0 {
        tracing::warn!(tasks = lost, "leases could not be kept alive in time; their handlers are stopped");
    }
}
