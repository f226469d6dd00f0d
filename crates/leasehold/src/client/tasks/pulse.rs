//! Heartbeats: one call for all leases of a worker, on a thread that its handlers cannot starve.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::floor::Floor;
use crate::client::leasehold::Inner;
use crate::error::Result;
use crate::model::{HeldTask, Ttl, WorkerInfo};
use crate::store::BootInstant;

/// Maximum length of one sleep: timers stand still while the machine sleeps, the boot clock does
/// not.
const NAP: Duration = Duration::from_millis(250);
/// Maximum number of leases in one heartbeat call.
const BATCH: usize = 1000;
/// Minimum interval between heartbeats that only report progress; the engine's poll interval
/// applies if it is longer.
const NEWS_EVERY: Duration = Duration::from_secs(1);

/// Minimum interval between heartbeats caused by notifications, which any process may send.
const NOTICED_EVERY: Duration = Duration::from_millis(20);

/// Description of a worker in its heartbeats, with the parts that change.
pub(super) struct About {
    pub(super) info: WorkerInfo,
    pub(super) busy: AtomicU32,
    pub(super) draining: AtomicBool,
    /// Whether the last heartbeat reported that the worker is busy, and that it is draining.
    reported_busy: AtomicBool,
    reported_draining: AtomicBool,
}

impl About {
    /// Creates the description of a worker that runs no task yet.
    pub(super) fn new(info: WorkerInfo) -> Self {
        let (reported_busy, reported_draining) = Default::default();
        Self { info, busy: 0.into(), draining: false.into(), reported_busy, reported_draining }
    }

    /// Returns whether the last heartbeat is out of date: it reported an idle worker that is busy
    /// now, or one that takes tasks and is draining now. The number of running tasks does not
    /// count, because it may change all the time.
    fn has_changed(&self) -> bool {
        let reported = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        reported(&self.reported_busy) != (self.busy.load(Ordering::Relaxed) > 0)
            || reported(&self.reported_draining) != self.draining.load(Ordering::Relaxed)
    }

    fn set_reported(&self, info: &WorkerInfo) {
        self.reported_busy.store(info.busy > 0, Ordering::Relaxed);
        self.reported_draining.store(info.draining, Ordering::Relaxed);
    }

    pub(super) fn now(&self) -> WorkerInfo {
        WorkerInfo {
            busy: self.busy.load(Ordering::Relaxed),
            draining: self.draining.load(Ordering::Relaxed),
            ..self.info.clone()
        }
    }
}

/// Sends heartbeats for all leases of this ttl, until the future is dropped. A lease that could not
/// be renewed in time is given up here, independently of the state of the store.
pub(super) async fn beat_on(inner: Arc<Inner>, floor: Arc<Floor>, about: Arc<About>, ttl: Ttl) {
    let every = ttl.as_duration() / 3;
    let news_every = NEWS_EVERY.max(inner.store.capabilities().poll).min(every);
    let mut due = BootInstant::now();
    let mut last = due;
    let mut notices = floor.notices();
    // Time of the next check for tasks that were started without the store knowing it.
    let mut look = due;
    loop {
        let now = BootInstant::now();
        let all = now >= due;
        let held = if all {
            floor.held(ttl)
        } else if now >= look {
            floor.untold(ttl, now)
        } else {
            Vec::new()
        };
        if all || !held.is_empty() {
            let mut beat = std::pin::pin!(beat(&inner, &floor, &about, (&held, ttl)));
            let heard = loop {
                tokio::select! {
                    heard = &mut beat => break heard,
                    () = tokio::time::sleep(every.min(NAP)) => give_up(&floor),
                }
            };
            match heard {
                Ok(()) => {
                    inner.contact.answered();
                    if all {
                        (last, due) = (now, now.plus(every));
                    }
                }
                Err(error) => {
                    inner.contact.failed("a heartbeat did not get through; trying again", &error);
                    let again = BootInstant::now().plus((every / 5).min(NEWS_EVERY));
                    look = again;
                    if all {
                        (last, due) = (now, again);
                    }
                }
            }
        }
        give_up(&floor);
        if about.has_changed() {
            due = due.min(last.plus(news_every));
        }
        let nap = due.after(BootInstant::now()).min(NAP);
        tokio::select! {
            () = tokio::time::sleep(nap) => {}
            () = floor.news.notified() => due = due.min(last.plus(news_every)),
            Ok(()) = notices.changed() => due = due.min(last.plus(NOTICED_EVERY)),
        }
    }
}

async fn beat(inner: &Inner, floor: &Floor, about: &About, (held, ttl): (&[HeldTask], Ttl)) -> Result<()> {
    let mut rest = held;
    loop {
        let (batch, later) = rest.split_at(rest.len().min(BATCH));
        let sent = BootInstant::now();
        let info = about.now();
        let beats = inner.tasks()?.heartbeat(&info, batch, ttl).await?;
        about.set_reported(&info);
        floor.heard(batch, &beats, sent);
        if later.is_empty() {
            return Ok(());
        }
        rest = later;
    }
}

fn give_up(floor: &Floor) {
    let lost = floor.give_up(BootInstant::now());
    if lost > 0 {
        tracing::warn!(tasks = lost, "leases could not be kept alive in time; their handlers are stopped");
    }
}
