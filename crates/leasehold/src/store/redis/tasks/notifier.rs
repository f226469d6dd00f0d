//! Notification of workers. Workers of this process are notified directly. A store with waiting
//! workers registers itself with the lease call that finds no task; the call that makes a task
//! ready notifies one such store, on a channel of that store alone. If no worker waits there any
//! more, that store notifies the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::Value;
use tokio::sync::{Mutex, mpsc};

use super::super::connection::{Connection, Connections, MessageHandler, SubscribeOnce};
use crate::model::QueueName;
use crate::store::wake::QueueNotifier;
use crate::store::{QueueSubscription, clock};

/// Poll interval of an idle worker while notifications from other processes reach it. The poll
/// finds tasks whose notification was lost, and tasks that became due or whose lease expired, for
/// which no notification is sent.
const NOTIFIED_POLL: Duration = Duration::from_secs(1);

/// Maximum number of dead stores that are skipped for one notification.
const MAX_FORWARDS: usize = 10;

pub(super) struct TaskNotifier {
    base: String,
    pub(super) channel: String,
    /// Notifier of the workers of this process.
    pub(super) local: QueueNotifier,
    started: SubscribeOnce,
    /// Whether the subscription is established.
    notified: Arc<AtomicBool>,
}

impl TaskNotifier {
    /// Creates a notifier. `base` is the prefix of the task keys: in a Cluster the scripts can
    /// publish only on their own node.
    pub(super) fn new(base: &str) -> Self {
        let id = clock::new_lease_id();
        let channel = format!("{base}bell:{}", id.as_uuid().simple());
        let (started, notified) = (SubscribeOnce::default(), Arc::default());
        Self { base: base.to_owned(), channel, local: QueueNotifier::default(), started, notified }
    }

    /// Returns a subscription for a worker. The first call subscribes to the channel; workers poll
    /// whenever that subscription is not established.
    pub(super) fn subscribe(
        &self,
        connections: &Connections,
        queues: &[QueueName],
        poll: Duration,
    ) -> QueueSubscription {
        self.started.start(connections, || {
            let (base, local, notified) = (self.base.clone(), self.local.clone(), self.notified.clone());
            let (unclaimed, to_forward) = mpsc::unbounded_channel();
            let (is_cluster, to_forward) = (connections.is_cluster(), Mutex::new(to_forward));
            let subscription =
                ChannelSubscription { is_cluster, base, local, notified, unclaimed, to_forward };
            (vec![self.channel.clone()], subscription)
        });
        self.local.listen(queues, poll).notified_by(&self.notified, NOTIFIED_POLL)
    }
}

struct ChannelSubscription {
    is_cluster: bool,
    base: String,
    local: QueueNotifier,
    notified: Arc<AtomicBool>,
    /// Messages that arrived while no worker waited, to be forwarded to another store.
    unclaimed: mpsc::UnboundedSender<Message>,
    to_forward: Mutex<mpsc::UnboundedReceiver<Message>>,
}

impl MessageHandler for ChannelSubscription {
    fn on_message(&self, message: &[u8]) {
        // A wrong notification only makes a worker query the store.
        if let Some(message) = Message::read(message) {
            if self.local.has_subscribers() {
                self.local.notify(&message.queue, usize::try_from(message.tasks).unwrap_or(usize::MAX));
            } else {
                // Never fails: this value has the receiver.
                let _ = self.unclaimed.send(message);
            }
        }
    }

    async fn while_subscribed(&self, connection: &Connection) {
        self.notified.store(true, Ordering::Relaxed);
        let mut to_forward = self.to_forward.lock().await;
        while let Some(message) = to_forward.recv().await {
            self.forward(connection, &message).await;
        }
    }

    fn on_lost(&self) {
        // Messages sent while the connection broke are lost: poll now, and then more often.
        self.notified.store(false, Ordering::Relaxed);
        self.local.notify_all();
    }
}

impl ChannelSubscription {
    /// Notifies the next store that waits for this queue. If that fails, its workers poll.
    async fn forward(&self, connection: &Connection, message: &Message) {
        let publish = if self.is_cluster { "SPUBLISH" } else { "PUBLISH" };
        for _ in 0..MAX_FORWARDS {
            let waiting = format!("{}w:{}", self.base, message.queue);
            let next = connection.send((&*redis::cmd("ZPOPMIN").arg(waiting)).into()).await;
            let next = next.ok().and_then(|next| redis::from_redis_value::<Vec<(String, f64)>>(next).ok());
            let Some((channel, _)) = next.and_then(|next| next.into_iter().next()) else { return };
            let publish_cmd = redis::cmd(publish).arg(&channel).arg(message.pack()).take();
            match connection.send((&publish_cmd).into()).await {
                Ok(Value::Int(0)) => {}
                _ => return,
            }
        }
    }
}

/// Number of new tasks in a queue, as packed by `common.lua`.
struct Message {
    tasks: u32,
    queue: QueueName,
}

impl Message {
    fn read(message: &[u8]) -> Option<Self> {
        let (tasks, queue) = message.split_first_chunk::<4>()?;
        let queue = QueueName::new(std::str::from_utf8(queue).ok()?).ok()?;
        Some(Self { tasks: u32::from_be_bytes(*tasks), queue })
    }

    fn pack(&self) -> Vec<u8> {
        [&self.tasks.to_be_bytes(), self.queue.as_str().as_bytes()].concat()
    }
}
