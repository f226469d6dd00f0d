//! Notifications from other processes: one connection that listens, from the first waiter on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_postgres::AsyncMessage;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connector::{
    ConnectionDriver, Connector, OPEN_TIMEOUT, Opened, Purpose, RETRY_DELAY, next_message, while_polling,
};
use super::session::{OPERATION_TIMEOUT, Session, with_timeout};
use crate::model::{LeaseId, LockName};
use crate::store::Recipient;
use crate::store::postgres::error::PgError;
use crate::store::postgres::locks::queries::{PEEK, read_peek};
use crate::store::postgres::tasks::WorkerNotifier;
use crate::store::wake::{Waiters, deliver, wake_by_id};

/// Time after which a notification that has not arrived counts as lost.
pub(crate) const NOTIFY_TIMEOUT: Duration = Duration::from_secs(1);

/// Listener of one store; stops when dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    connector: Weak<Connector>,
    started: AtomicBool,
    stop: CancellationToken,
    /// Whether notifications arrive at present.
    is_connected: Arc<AtomicBool>,
    notifier: Arc<WorkerNotifier>,
    _stops_when_dropped: DropGuard,
}

impl Listener {
    pub(crate) fn new(connector: &Arc<Connector>, notifier: Arc<WorkerNotifier>) -> Self {
        let stop = CancellationToken::new();
        Self {
            connector: Arc::downgrade(connector),
            started: AtomicBool::new(false),
            _stops_when_dropped: stop.clone().drop_guard(),
            stop,
            is_connected: Arc::default(),
            notifier,
        }
    }

    /// Returns the flag that is set while notifications arrive.
    pub(crate) const fn connected_flag(&self) -> &Arc<AtomicBool> {
        &self.is_connected
    }

    /// Starts the listener, once. Behind a pooler no notification would arrive, so waiters poll.
    pub(crate) fn start(&self) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        let Some(connector) = self.connector.upgrade() else { return };
        let (weak, stop, is_connected) =
            (self.connector.clone(), self.stop.clone(), self.is_connected.clone());
        let notifier = self.notifier.clone();
        connector.runtime().spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = listen(weak, &is_connected, &notifier) => {}
            }
        });
    }
}

async fn listen(connector: Weak<Connector>, is_connected: &AtomicBool, notifier: &WorkerNotifier) {
    loop {
        let Some(open) = connector.upgrade() else { return };
        if open.is_pooled() {
            return;
        }
        let connected = with_timeout(OPEN_TIMEOUT, open_listening(&open)).await;
        let (task_channel, waiters) = (open.task_channel(), open.waiters);
        drop(open);
        let ended = match connected {
            Ok(listening) => {
                is_connected.store(true, Ordering::Relaxed);
                if let Some(open) = connector.upgrade() {
                    open.set_listening(Some(listening.session.clone()));
                }
                // Notifications that were sent before LISTEN are lost.
                notifier.on_missed_notifications();
                waiters.wake_all();
                let ended = listening.listen(|channel, payload| {
                    if channel == task_channel {
                        notifier.on_notification(payload);
                    }
                });
                let ended = ended.await;
                is_connected.store(false, Ordering::Relaxed);
                // From now on they poll more often.
                notifier.on_missed_notifications();
                waiters.wake_all();
                if let Some(open) = connector.upgrade() {
                    open.set_listening(None);
                }
                ended
            }
            Err(error) => error,
        };
        tracing::debug!(
            ?ended,
            "no notifications from other processes: waiters poll until the listener is connected again"
        );
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

pub(crate) struct ListeningConnection {
    session: Arc<Session>,
    waiters: Waiters,
    driver: ConnectionDriver,
}

pub(crate) async fn open_listening(connector: &Connector) -> Result<ListeningConnection, PgError> {
    let Opened { client, mut driver, is_direct, backend } = connector.connect(Purpose::Locks).await?;
    if !is_direct {
        // Behind a pooler, which was just detected, no notification would arrive.
        return Err(PgError::Timeout);
    }
    let listen = format!("LISTEN {}; LISTEN {}", connector.channel(), connector.task_channel());
    while_polling(&mut driver, client.batch_execute(&listen)).await?;
    Ok(ListeningConnection {
        session: Arc::new(connector.session(client, true, backend)),
        waiters: connector.waiters,
        driver,
    })
}

impl ListeningConnection {
    /// Wakes the waiters that notifications name, until the connection ends.
    pub(crate) async fn listen(self, on_notification: impl Fn(&str, &str)) -> PgError {
        let Self { session, waiters, mut driver } = self;
        let mut fetches = FuturesUnordered::new();
        loop {
            let message = tokio::select! {
                biased;
                message = next_message(&mut driver) => message,
                Some(()) = fetches.next() => continue,
                // A caller that had borrowed the session may have left a transaction open.
                () = session.discarded.cancelled() => return PgError::Timeout,
            };
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    // Any user of the database can send notifications. A forged payload causes a
                    // query and nothing else.
                    let payload = notification.payload();
                    if let Some((waiter, name)) = parse_grant(payload) {
                        if waiters.is_local(&name, &waiter) {
                            fetches.push(fetch_lease(&session, waiters, waiter, name));
                        } else {
                            wake_by_id(&waiter);
                        }
                    } else if let Ok(recipient) = payload.parse() {
                        deliver(&[Recipient::from_uuid(recipient)]);
                    }
                    on_notification(notification.channel(), notification.payload());
                }
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    }
}

/// Parses the waiter and the lock from the payload of a notification.
fn parse_grant(payload: &str) -> Option<(LeaseId, LockName)> {
    let (waiter, name) = payload.split_once(' ')?;
    Some((waiter.parse().ok()?, LockName::new(name).ok()?))
}

/// Queries the lease of a waiter, on the connection that has just received its notification: server
/// and client are awake there. A lease that it finds is authoritative. The lease was granted after
/// the waiter's last request if its token is above the lock's token at that time; the query may
/// find an older lease if it was in flight for long.
async fn fetch_lease(session: &Session, waiters: Waiters, waiter: LeaseId, name: LockName) {
    let rows = with_timeout(OPERATION_TIMEOUT, async {
        // Another caller may have borrowed the connection. The time in the answer is not used.
        Ok(session.query_outside(&PEEK, &[&name.as_str(), &None::<i64>]).await?)
    });
    let peek = rows.await.ok().and_then(|rows| rows.first().and_then(|row| read_peek(row, &waiter).ok()));
    match peek.and_then(|peek| peek.lease) {
        Some(lease) => {
            let token = lease.token.get();
            waiters.deliver_remote_grant(&name, lease, |then| token > then);
        }
        None => wake_by_id(&waiter),
    }
}
