//! Notifications from other processes to waiters and holders. Each process has a channel of its
//! own, and a client that grants a ticket publishes that on the channel that the ticket names; no
//! other process receives it. Notices to holders and workers use a channel that all processes
//! share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use redis::aio::AsyncPushSender;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;
use uuid::Uuid;

use super::super::connection::{Connections, Connector, RESUBSCRIBE_DELAY};
use super::super::keys::Keys;
use super::codec;
use crate::model::LeaseId;
use crate::store::wake::{deliver, ring, served_by_number};
use crate::store::{Recipient, clock};

/// Name of this process, shared by all its stores: waiters within the process need no message.
static PROCESS: LazyLock<String> = LazyLock::new(|| clock::new_lease_id().as_uuid().simple().to_string());

/// Subscription of this process to its channels.
pub(in crate::store::redis) struct Subscriber {
    channel: String,
    /// Channel of notices, which is the same for every process.
    notice_channel: String,
    /// Whether the subscription was started.
    started: AtomicBool,
}

impl Subscriber {
    pub(super) fn new(keys: &Keys) -> Self {
        let (channel, notice_channel) = (keys.process_channel(&PROCESS), keys.notice_channel());
        Self { channel, notice_channel, started: AtomicBool::new(false) }
    }

    pub(super) fn notice_channel(&self) -> &str {
        &self.notice_channel
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Starts the subscription, once. Waiters poll whenever the subscription is not established.
    pub(in crate::store::redis) fn subscribe(&self, connections: &Connections) {
        if self.started.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(runtime) = connections.background_runtime() {
            let channels = [self.channel.clone(), self.notice_channel.clone()];
            runtime.spawn(run(connections.connector().clone(), channels));
        }
    }
}

async fn run(connector: Arc<Connector>, channels: [String; 2]) {
    let mut delay = RESUBSCRIBE_DELAY.0;
    loop {
        let handler = Arc::new(PushHandler { disconnected: Notify::new() });
        let subscribed = async {
            let connection = connector.open_subscriber(handler.clone()).await?;
            for channel in &channels {
                connection.subscribe(channel).await?;
            }
            Ok::<_, RedisError>(connection)
        };
        match subscribed.await {
            Ok(_connection) => {
                delay = RESUBSCRIBE_DELAY.0;
                handler.disconnected.notified().await;
            }
            Err(error) => tracing::debug!(%error, "no notifications from other processes: waiters poll"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RESUBSCRIBE_DELAY.1);
    }
}

struct PushHandler {
    disconnected: Notify,
}

impl AsyncPushSender for PushHandler {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1) {
                    handle_message(message);
                }
            }
            PushKind::Disconnection => self.disconnected.notify_one(),
            _ => {}
        }
        Ok(())
    }
}

/// Handles a message. A message with only the id of a lease makes the waiter query the store. If
/// the lease and the id of the answered acquire attempt follow, the waiter need not query: only this
/// process and the ticket know that id.
fn handle_message(message: &[u8]) {
    if let Some((lease, attempt_id)) = codec::handed_over(message) {
        served_by_number(&lease, attempt_id);
    } else if let Some(Ok(id)) = message.get(..16).map(Uuid::from_slice) {
        ring(&LeaseId::from_uuid(id));
        deliver(&[Recipient::from_uuid(id)]);
    }
}
