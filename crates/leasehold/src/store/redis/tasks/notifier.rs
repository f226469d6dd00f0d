//! Notification of workers. Workers of this process are notified directly. A store with waiting
//! workers registers itself with the lease call that finds no task; the call that makes a task
//! ready notifies one such store, on a channel of that store alone. If no worker waits there any
//! more, that store notifies the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::AsyncPushSender;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};

use super::super::connection::{Connection, Connections, Connector, RESUBSCRIBE_DELAY};
use crate::model::QueueName;
use crate::store::wake::Doorbell;
use crate::store::{QueueSubscription, clock};

/// Poll interval of an idle worker while notifications from other processes reach it. The poll
/// finds tasks whose notification was lost, and tasks that became due or whose lease expired, for
/// which no notification is sent.
const NOTIFIED_POLL: Duration = Duration::from_secs(1);

/// Maximum number of dead stores that are skipped for one notification.
const MAX_FORWARDS: usize = 10;

/// Notifier of one store.
pub(super) struct TaskNotifier {
    base: String,
    channel: String,
    /// Notifier of the workers of this process.
    local: Doorbell,
    /// Whether the subscription was started.
    started: AtomicBool,
    /// Whether the subscription is established.
    notified: Arc<AtomicBool>,
}

impl TaskNotifier {
    /// Creates a notifier. `base` is the prefix of the task keys: in a Cluster the scripts can
    /// publish only on their own node.
    pub(super) fn new(base: &str) -> Self {
        let id = clock::new_lease_id();
        let channel = format!("{base}bell:{}", id.as_uuid().simple());
        let (started, notified) = (AtomicBool::new(false), Arc::default());
        Self { base: base.to_owned(), channel, local: Doorbell::default(), started, notified }
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Whether workers of this process wait.
    pub(super) fn has_waiting_workers(&self) -> bool {
        self.local.is_heard()
    }

    /// Notifies up to `tasks` workers of this process.
    pub(super) fn notify(&self, queue: &QueueName, tasks: usize) {
        self.local.ring(queue, tasks);
    }

    /// Returns a subscription for a worker. The first call subscribes to the channel; workers poll
    /// whenever that subscription is not established.
    pub(super) fn subscribe(
        &self,
        connections: &Connections,
        queues: &[QueueName],
        poll: Duration,
    ) -> QueueSubscription {
        if !self.started.swap(true, Ordering::Relaxed)
            && let Some(runtime) = connections.background_runtime()
        {
            let (base, channel, local) = (self.base.clone(), self.channel.clone(), self.local.clone());
            let (connector, notified) = (connections.connector().clone(), self.notified.clone());
            runtime.spawn(ChannelSubscription { connector, base, channel, local, notified }.run());
        }
        self.local.listen(queues, poll).notified_by(&self.notified, NOTIFIED_POLL)
    }
}

/// Subscription to the channel of the store, for as long as the connections exist.
struct ChannelSubscription {
    connector: Arc<Connector>,
    base: String,
    channel: String,
    local: Doorbell,
    notified: Arc<AtomicBool>,
}

impl ChannelSubscription {
    async fn run(self) {
        let mut delay = RESUBSCRIBE_DELAY.0;
        loop {
            let (unclaimed, mut to_forward) = mpsc::unbounded_channel();
            let handler =
                Arc::new(PushHandler { disconnected: Notify::new(), local: self.local.clone(), unclaimed });
            let subscribed = async {
                let connection = self.connector.open_subscriber(handler.clone()).await?;
                connection.subscribe(&self.channel).await.map(|()| connection)
            };
            match subscribed.await {
                Ok(connection) => {
                    delay = RESUBSCRIBE_DELAY.0;
                    self.notified.store(true, Ordering::Relaxed);
                    loop {
                        tokio::select! {
                            () = handler.disconnected.notified() => break,
                            Some(message) = to_forward.recv() => self.forward(&connection, &message).await,
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "no notifications from other processes: workers poll"),
            }
            if self.notified.swap(false, Ordering::Relaxed) {
                // Messages sent while the connection broke are lost: poll now, and then more often.
                self.local.ring_all();
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RESUBSCRIBE_DELAY.1);
        }
    }

    /// Notifies the next store that waits for this queue. If that fails, its workers poll.
    async fn forward(&self, connection: &Connection, message: &Message) {
        let publish = if self.connector.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
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

struct PushHandler {
    disconnected: Notify,
    local: Doorbell,
    unclaimed: mpsc::UnboundedSender<Message>,
}

impl AsyncPushSender for PushHandler {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        match info.kind {
            // A wrong notification only makes a worker query the store.
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1)
                    && let Some(message) = Message::read(message)
                {
                    if self.local.is_heard() {
                        self.local.ring(&message.queue, usize::try_from(message.tasks).unwrap_or(usize::MAX));
                    } else {
                        // Fails only after `ChannelSubscription` has ended, and this handler with it.
                        let _ = self.unclaimed.send(message);
                    }
                }
            }
            PushKind::Disconnection => self.disconnected.notify_one(),
            _ => {}
        }
        Ok(())
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
