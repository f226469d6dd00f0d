//! Wake-ups from other processes: one connection that listens, from the first waiter on.

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
                if let Some(open) = gate.upgrade() {
                    open.listens_on(Some(ear.session.clone()));
                }
                // Nobody knows what was said before.
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

/// A connection that listens.
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
    /// Serves whoever is named, until the connection ends.
    pub(super) async fn listen(self, heard: impl Fn(&str, &str)) -> Fail {
        let Self { session, waiters, mut wire } = self;
        let mut looks = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                message = next(&mut wire) => message,
                Some(()) = looks.next() => continue,
                // Somebody who had borrowed it may have left a transaction open.
                () = session.given_up() => return Fail::Late,
            };
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    // Anybody who may use the database may send. A wrong word makes us look, and nothing else.
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

/// Who has been served with which lock.
fn served(word: &str) -> Option<(LeaseId, LockName)> {
    let (waiter, name) = word.split_once(' ')?;
    Some((waiter.parse().ok()?, LockName::new(name).ok()?))
}

/// Looks for a waiter, on the connection that has just heard of it: server and client are awake here. What it finds there is the
/// store's word. It began after the waiter's last asking if its token is above the one that the lock had then; an older one may
/// be found if this look was long under way.
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

/// How long a wake-up may be under way before it counts as lost.
pub(super) const UNDER_WAY: Duration = Duration::from_secs(1);
