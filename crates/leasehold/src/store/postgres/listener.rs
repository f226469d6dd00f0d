//! Notifications from other processes: one connection that listens, from the first waiter on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_postgres::AsyncMessage;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::abandoned::Backend;
use super::gate::{Gate, PAUSE, Use, Wire};
use super::rows::LockRow;
use super::session::Session;
use super::sql::Sql;
use super::tasks::Wakes;
use super::trouble::Fail;
use crate::model::{LeaseId, LockName};
use crate::store::Recipient;
use crate::store::wake::{Waiters, deliver, ring};

/// Listener of one store; stops when dropped.
#[derive(Debug)]
pub(super) struct Listener {
    gate: Weak<Gate>,
    started: AtomicBool,
    stop: CancellationToken,
    /// Whether notifications arrive at present.
    hears: Arc<AtomicBool>,
    /// Workers that wait for tasks.
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

    /// Whether notifications arrive at present. The listener starts with the first waiter, and
    /// needs a moment to connect.
    pub(super) fn hears(&self) -> bool {
        self.hears.load(Ordering::Relaxed)
    }

    /// Starts the listener, once. Behind a pooler no notification would arrive, so waiters poll.
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
                if let Some(open) = gate.upgrade() {
                    open.listens_on(Some(ear.session.clone()));
                }
                // Notifications that were sent before LISTEN are lost.
                wakes.missed();
                let ended = ear.listen(|channel, words| {
                    if channel == for_workers {
                        wakes.heard(words);
                    }
                });
                let ended = ended.await;
                hears.store(false, Ordering::Relaxed);
                if let Some(open) = gate.upgrade() {
                    open.listens_on(None);
                }
                ended
            }
            Err(fail) => fail,
        };
        tracing::debug!(?ended, "no wake-ups from other processes for now: waiters poll");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Connection that listens.
pub(super) struct Ear {
    session: Arc<Session>,
    waiters: Waiters,
    wire: Wire,
}

/// Opens a connection that listens.
pub(super) async fn hear(gate: &Gate) -> Result<Ear, Fail> {
    let (client, mut wire) = gate.connect(Use::Locks).await?;
    let listen = format!("LISTEN {}; LISTEN {}", gate.channel(), gate.task_channel());
    let backend = {
        let mut listening = std::pin::pin!(async {
            let backend = Backend::of(&client).await?;
            client.batch_execute(&listen).await?;
            Ok::<_, tokio_postgres::Error>(backend)
        });
        loop {
            tokio::select! {
                backend = &mut listening => break backend?,
                message = next(&mut wire) => drop(message?),
            }
        }
    };
    Ok(Ear { session: Arc::new(gate.session(client, backend)), waiters: gate.waiters, wire })
}

impl Ear {
    /// Wakes the waiters that notifications name, until the connection ends.
    pub(super) async fn listen(self, heard: impl Fn(&str, &str)) -> Fail {
        let Self { session, waiters, mut wire } = self;
        let mut looks = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                message = next(&mut wire) => message,
                Some(()) = looks.next() => continue,
                // A caller that had borrowed the session may have left a transaction open.
                () = session.given_up() => return Fail::Late,
            };
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    // Any user of the database can send notifications. A forged payload causes a
                    // query and nothing else.
                    let word = notification.payload();
                    if let Some((waiter, name)) = served(word) {
                        if waiters.waits_here(&name, &waiter) {
                            looks.push(look(&session, waiters, waiter, name));
                        } else {
                            ring(&waiter);
                        }
                    } else if let Ok(recipient) = word.parse() {
                        deliver(&[Recipient::from_uuid(recipient)]);
                    }
                    heard(notification.channel(), notification.payload());
                }
                Ok(_) => {}
                Err(fail) => return fail,
            }
        }
    }
}

/// Parses the waiter and the lock from the payload of a notification.
fn served(word: &str) -> Option<(LeaseId, LockName)> {
    let (waiter, name) = word.split_once(' ')?;
    Some((waiter.parse().ok()?, LockName::new(name).ok()?))
}

/// Queries the lease of a waiter, on the connection that has just received its notification: server
/// and client are awake there. A lease that it finds is authoritative. The lease was granted after
/// the waiter's last request if its token is above the lock's token at that time; the query may
/// find an older lease if it was in flight for long.
async fn look(session: &Session, waiters: Waiters, waiter: LeaseId, name: LockName) {
    let found = session.query(Sql::Get, &[&name.as_str()]).await;
    let row = found.ok().and_then(|rows| rows.first().and_then(|row| LockRow::read(row).ok()));
    match row.and_then(|row| row.record.lease(&waiter).cloned()) {
        Some(lease) => {
            let token = lease.token.get();
            waiters.served_from_afar(&name, lease, |then| token > then);
        }
        None => ring(&waiter),
    }
}

async fn next(wire: &mut Wire) -> Result<AsyncMessage, Fail> {
    match std::future::poll_fn(|cx| wire.poll_message(cx)).await {
        Some(message) => Ok(message?),
        None => Err(Fail::Late),
    }
}

/// Time after which a notification that has not arrived counts as lost.
pub(super) const UNDER_WAY: Duration = Duration::from_secs(1);
