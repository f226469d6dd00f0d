//! Wake-ups from other processes: one connection that listens, from the first waiter on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::AsyncMessage;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::gate::{Gate, PAUSE, Wire};
use super::tasks::Wakes;
use super::trouble::Fail;
use crate::model::LeaseId;
use crate::store::wake::ring;

/// The listener of one store. It ends with it.
#[derive(Debug)]
pub(super) struct Listener {
    gate: Weak<Gate>,
    started: AtomicBool,
    stop: CancellationToken,
    /// Whether wake-ups arrive just now.
    hears: Arc<AtomicBool>,
    /// Who waits for tasks.
    wakes: Arc<Wakes>,
    _stops_when_dropped: DropGuard,
}

impl Listener {
    pub(super) fn new(gate: &Arc<Gate>, wakes: Arc<Wakes>) -> Self {
        let stop = CancellationToken::new();
        let (gate, started) = (Arc::downgrade(gate), AtomicBool::new(false));
        let hears = Arc::<AtomicBool>::default();
        Self { gate, started, _stops_when_dropped: stop.clone().drop_guard(), stop, hears, wakes }
    }

    /// Whether wake-ups arrive just now. Before the first waiter nobody listens, and then it takes a moment.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    /// Starts it, once. Behind a pooler nothing would be heard: waiters poll.
    pub(super) fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(gate) = self.gate.upgrade() else { return };
        let (weak, stop, hears) = (self.gate.clone(), self.stop.clone(), self.hears.clone());
        let wakes = self.wakes.clone();
        gate.home().spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = listen(weak, &hears, &wakes) => {}
            }
        });
    }
}

async fn listen(gate: Weak<Gate>, hears: &AtomicBool, wakes: &Wakes) {
    loop {
        let Some(open) = gate.upgrade() else { return };
        if open.is_pooled() {
            return;
        }
        let connected = hear(&open).await;
        let for_workers = open.task_channel();
        drop(open);
        let ended = match connected {
            Ok(ear) => {
                hears.store(true, Ordering::Relaxed);
                // Nobody knows what was said before.
                wakes.missed();
                let ended = ear.listen(|channel, words| {
                    if channel == for_workers {
                        wakes.heard(words);
                    }
                });
                let ended = ended.await;
                hears.store(false, Ordering::Relaxed);
                ended
            }
            Err(fail) => fail,
        };
        tracing::debug!(?ended, "no wake-ups from other processes for now: waiters poll");
        tokio::time::sleep(PAUSE).await;
    }
}

/// A connection that listens.
pub(super) struct Ear {
    /// Kept: a connection without one ends.
    _client: tokio_postgres::Client,
    wire: Wire,
}

/// Opens a connection that listens.
pub(super) async fn hear(gate: &Gate) -> Result<Ear, Fail> {
    let (client, mut wire) = gate.connect().await?;
    let listen = format!("LISTEN {}; LISTEN {}", gate.channel(), gate.task_channel());
    {
        let mut listening = std::pin::pin!(client.batch_execute(&listen));
        loop {
            tokio::select! {
                heard = &mut listening => break heard?,
                message = next(&mut wire) => drop(message?),
            }
        }
    }
    Ok(Ear { _client: client, wire })
}

impl Ear {
    /// Rings whoever is named, until the connection ends.
    pub(super) async fn listen(mut self, heard: impl Fn(&str, &str)) -> Fail {
        loop {
            match next(&mut self.wire).await {
                Ok(AsyncMessage::Notification(notification)) => {
                    // Anybody who may use the database may send. A wrong wake-up makes a waiter look, and nothing else.
                    if let Ok(waiter) = notification.payload().parse::<LeaseId>() {
                        ring(&waiter);
                    }
                    heard(notification.channel(), notification.payload());
                }
                Ok(_) => {}
                Err(fail) => return fail,
            }
        }
    }
}

async fn next(wire: &mut Wire) -> Result<AsyncMessage, Fail> {
    match std::future::poll_fn(|cx| wire.poll_message(cx)).await {
        Some(message) => Ok(message?),
        None => Err(Fail::Late),
    }
}

/// How long a wake-up may be under way before it counts as lost.
pub(super) const UNDER_WAY: Duration = Duration::from_secs(1);
