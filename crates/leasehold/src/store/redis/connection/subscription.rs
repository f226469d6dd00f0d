//! Subscription to channels, which is established again whenever it breaks. Messages that are sent
//! meanwhile are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use super::connections::Connections;
use super::connector::{Connection, Connector};
use crate::store::backoff::ExponentialBackoff;

/// Delays between attempts to subscribe.
const RESUBSCRIBE_BACKOFF: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Poll interval of waiters and workers: the maximum delay caused by a lost message.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(250);

pub(crate) trait MessageHandler: Send + Sync + 'static {
    /// Handles a message. Any client of the server can send one.
    fn on_message(&self, message: &[u8]);

    /// Runs while the subscription is established, on its connection, and is dropped when it breaks.
    fn while_subscribed(&self, connection: &Connection) -> impl Future<Output = ()> + Send {
        let _ = connection;
        std::future::pending()
    }

    /// Handles the loss of an established subscription.
    fn on_lost(&self) {}
}

/// Starts a subscription at its first use.
#[derive(Default)]
pub(crate) struct SubscribeOnce(AtomicBool);

impl SubscribeOnce {
    /// Starts the subscription, once, for as long as the connections exist.
    pub(crate) fn start<H: MessageHandler>(
        &self,
        connections: &Connections,
        subscription: impl FnOnce() -> (Vec<String>, H),
    ) {
        if !self.0.swap(true, Ordering::Relaxed)
            && let Some(runtime) = connections.background_runtime()
        {
            let (channels, handler) = subscription();
            runtime.spawn(run(connections.connector().clone(), channels, Arc::new(handler)));
        }
    }
}

async fn run<H: MessageHandler>(connector: Arc<Connector>, channels: Vec<String>, handler: Arc<H>) {
    let mut backoff = RESUBSCRIBE_BACKOFF;
    loop {
        let disconnected = Arc::new(Notify::new());
        let pushes = PushHandler { disconnected: disconnected.clone(), handler: handler.clone() };
        let subscribed = async {
            let connection = connector.open_subscriber(Arc::new(pushes)).await?;
            for channel in &channels {
                connection.subscribe(channel).await?;
            }
            Ok::<_, RedisError>(connection)
        };
        match subscribed.await {
            Ok(connection) => {
                backoff.reset();
                tokio::select! {
                    () = disconnected.notified() => {}
                    () = handler.while_subscribed(&connection) => {}
                }
                handler.on_lost();
            }
            Err(error) => {
                tracing::debug!(%error, "no notifications from other processes: waiters and workers poll");
            }
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

struct PushHandler<H> {
    disconnected: Arc<Notify>,
    handler: Arc<H>,
}

impl<H: MessageHandler> AsyncPushSender for PushHandler<H> {
    fn send(&self, info: PushInfo) -> Result<(), SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1) {
                    self.handler.on_message(message);
                }
            }
            // A Cluster ends a subscription whose slot has moved, and keeps the connection.
            PushKind::Disconnection | PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                self.disconnected.notify_one();
            }
            _ => {}
        }
        Ok(())
    }
}
