//! Notification of workers. Workers of this process are woken directly. A store with waiting
//! workers registers itself with the lease call that finds no task; the call that makes a task
//! ready notifies one such store, on a channel of that store alone. If no worker waits there any
//! more, that store notifies the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::AsyncPushSender;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};

use super::super::line::{Conn, Opener};
use super::super::link::Link;
use crate::model::QueueName;
use crate::store::wake::Doorbell;
use crate::store::{QueueSubscription, clock};

/// Delay before the next attempt to subscribe, and its maximum.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Poll interval of an idle worker while notifications from other processes reach it. The poll
/// finds tasks whose notification was lost, and tasks that became due or whose lease expired, for
/// which no notification is sent.
const NOTIFIED_POLL: Duration = Duration::from_secs(1);

/// Maximum number of dead stores that are skipped for one wake-up.
const PASS_ON: usize = 10;

/// Notifier of one store.
pub(super) struct Bell {
    base: String,
    channel: String,
    door: Doorbell,
    hears: AtomicBool,
    /// Whether the subscription is established.
    notified: Arc<AtomicBool>,
}

impl Bell {
    /// Creates a notifier. `base` is the prefix of the task keys: in a Cluster the scripts can
    /// publish only on their own node.
    pub(super) fn new(base: &str) -> Self {
        let id = clock::new_lease_id();
        let channel = format!("{base}bell:{}", id.as_uuid().simple());
        let (hears, notified) = (AtomicBool::new(false), Arc::default());
        Self { base: base.to_owned(), channel, door: Doorbell::default(), hears, notified }
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Whether workers of this process wait.
    pub(super) fn is_heard(&self) -> bool {
        self.door.is_heard()
    }

    /// Wakes up to `tasks` workers of this process.
    pub(super) fn ring(&self, queue: &QueueName, tasks: usize) {
        self.door.ring(queue, tasks);
    }

    /// Returns a subscription for a worker. The first call subscribes to the channel; workers poll
    /// whenever that subscription is not established.
    pub(super) fn listen(&self, link: &Link, queues: &[QueueName], poll: Duration) -> QueueSubscription {
        if !self.hears.swap(true, Ordering::Relaxed)
            && let Some(host) = link.host()
        {
            let (base, channel, door) = (self.base.clone(), self.channel.clone(), self.door.clone());
            let (opener, notified) = (link.opener().clone(), self.notified.clone());
            host.spawn(Hearing { opener, base, channel, door, notified }.run());
        }
        self.door.listen(queues, poll).notified_by(&self.notified, NOTIFIED_POLL)
    }
}

/// Receives notifications for as long as the link exists.
struct Hearing {
    opener: Arc<Opener>,
    base: String,
    channel: String,
    door: Doorbell,
    notified: Arc<AtomicBool>,
}

impl Hearing {
    async fn run(self) {
        let mut pause = PAUSE.0;
        loop {
            let (unheard, mut passed_on) = mpsc::unbounded_channel();
            let heard = Arc::new(Heard { broken: Notify::new(), door: self.door.clone(), unheard });
            let subscribed = async {
                let conn = self.opener.open_for_hearing(heard.clone()).await?;
                conn.subscribe(&self.channel).await.map(|()| conn)
            };
            match subscribed.await {
                Ok(conn) => {
                    pause = PAUSE.0;
                    self.notified.store(true, Ordering::Relaxed);
                    loop {
                        tokio::select! {
                            () = heard.broken.notified() => break,
                            Some(message) = passed_on.recv() => self.pass_on(&conn, &message).await,
                        }
                    }
                }
                Err(error) => tracing::debug!(%error, "no wake-ups from other processes: workers poll"),
            }
            if self.notified.swap(false, Ordering::Relaxed) {
                // Messages sent while the connection broke are lost: poll now, and then more often.
                self.door.ring_all();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Notifies the next store that waits for this queue. If that fails, its workers poll.
    async fn pass_on(&self, conn: &Conn, message: &Message) {
        let publish = if self.opener.is_cluster() { "SPUBLISH" } else { "PUBLISH" };
        for _ in 0..PASS_ON {
            let waiting = format!("{}w:{}", self.base, message.queue);
            let next = conn.send((&*redis::cmd("ZPOPMIN").arg(waiting)).into()).await;
            let next = next.ok().and_then(|next| redis::from_redis_value::<Vec<(String, f64)>>(next).ok());
            let Some((bell, _)) = next.and_then(|next| next.into_iter().next()) else { return };
            let ring = redis::cmd(publish).arg(&bell).arg(message.pack()).take();
            match conn.send((&ring).into()).await {
                Ok(Value::Int(0)) => {}
                _ => return,
            }
        }
    }
}

struct Heard {
    broken: Notify,
    door: Doorbell,
    unheard: mpsc::UnboundedSender<Message>,
}

impl AsyncPushSender for Heard {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        match info.kind {
            // A wrong notification only makes a worker query the store.
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1)
                    && let Some(message) = Message::read(message)
                {
                    if self.door.is_heard() {
                        self.door.ring(&message.queue, usize::try_from(message.tasks).unwrap_or(usize::MAX));
                    } else {
                        // Fails only after `Hearing` has ended, which also ends this notifier.
                        let _ = self.unheard.send(message);
                    }
                }
            }
            PushKind::Disconnection => self.broken.notify_one(),
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
