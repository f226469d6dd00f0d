//! Wake-ups from other processes. Each process has a channel of its own, and a client that grants a
//! ticket publishes that on the channel that the ticket names; no other process receives it.
//! Notices to holders and workers use a channel that all processes share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::AsyncPushSender;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;
use uuid::Uuid;

use super::keys::Keys;
use super::line::Opener;
use super::link::Link;
use super::packed;
use crate::model::LeaseId;
use crate::store::wake::{deliver, ring, served_by_number};
use crate::store::{Recipient, clock};

/// Name of this process, shared by all its stores: waiters within the process need no message.
static PROCESS: LazyLock<String> = LazyLock::new(|| clock::new_lease_id().as_uuid().simple().to_string());

/// Delay before the next attempt to subscribe, and its maximum.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Channels of this process.
pub(super) struct Inbox {
    channel: String,
    /// Channel of notices, which is the same for every process.
    notices: String,
    hears: AtomicBool,
}

impl Inbox {
    pub(super) fn new(keys: &Keys) -> Self {
        let (channel, notices) = (keys.inbox(&PROCESS), keys.notices());
        Self { channel, notices, hears: AtomicBool::new(false) }
    }

    pub(super) fn notices(&self) -> &str {
        &self.notices
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Subscribes, once. Waiters poll whenever the subscription is not established.
    pub(super) fn hear(&self, link: &Link) {
        if self.hears.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(host) = link.host() {
            let channels = [self.channel.clone(), self.notices.clone()];
            host.spawn(hear(link.opener().clone(), channels));
        }
    }
}

async fn hear(opener: Arc<Opener>, channels: [String; 2]) {
    let mut pause = PAUSE.0;
    loop {
        let heard = Arc::new(Heard { broken: Notify::new() });
        let subscribed = async {
            let conn = opener.open_for_hearing(heard.clone()).await?;
            for channel in &channels {
                conn.subscribe(channel).await?;
            }
            Ok::<_, RedisError>(conn)
        };
        match subscribed.await {
            Ok(_conn) => {
                pause = PAUSE.0;
                heard.broken.notified().await;
            }
            Err(error) => tracing::debug!(%error, "no wake-ups from other processes: waiters poll"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

struct Heard {
    broken: Notify,
}

impl AsyncPushSender for Heard {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        match info.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1) {
                    hear_message(message);
                }
            }
            PushKind::Disconnection => self.broken.notify_one(),
            _ => {}
        }
        Ok(())
    }
}

/// Handles a message. A message with only the id of a lease makes the waiter query the store. If
/// the lease and the number of the answered acquire attempt follow, the waiter need not query: only
/// this process and the ticket know that number.
fn hear_message(message: &[u8]) {
    if let Some((lease, asking)) = packed::handed_over(message) {
        served_by_number(&lease, asking);
    } else if let Some(Ok(id)) = message.get(..16).map(Uuid::from_slice) {
        ring(&LeaseId::from_uuid(id));
        deliver(&[Recipient::from_uuid(id)]);
    }
}
