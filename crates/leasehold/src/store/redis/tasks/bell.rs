//! Waking workers. Those of this process are woken directly. A store whose workers wait says so with the lease that finds
//! nothing; whoever makes a task ready rings one such store, on a channel that it alone hears.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::AsyncPushSender;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

use super::super::line::Opener;
use super::super::link::Link;
use crate::model::QueueName;
use crate::store::wake::Doorbell;
use crate::store::{Arrivals, clock};

/// The pause before the channel is subscribed to again, and the longest it grows to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The bell of one store.
pub(super) struct Bell {
    channel: String,
    door: Doorbell,
    hears: AtomicBool,
}

impl Bell {
    /// `base` is what the keys of tasks begin with: in a Cluster the scripts can ring only what lives with them.
    pub(super) fn new(base: &str) -> Self {
        let id = clock::new_lease_id();
        let channel = format!("{base}bell:{}", id.as_uuid().simple());
        Self { channel, door: Doorbell::default(), hears: AtomicBool::new(false) }
    }

    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    /// Whether workers of this process wait.
    pub(super) fn is_heard(&self) -> bool {
        self.door.is_heard()
    }

    /// Wakes up to so many workers of this process.
    pub(super) fn ring(&self, queue: &QueueName, tasks: usize) {
        self.door.ring(queue, tasks);
    }

    /// Wake-ups for a worker. The first one subscribes; until that stands, and whenever it does not, workers poll.
    pub(super) fn listen(&self, link: &Link, queues: &[QueueName], poll: Duration) -> Arrivals {
        if !self.hears.swap(true, Ordering::Relaxed)
            && let Some(host) = link.host()
        {
            host.spawn(hear(link.opener().clone(), self.channel.clone(), self.door.clone()));
        }
        self.door.listen(queues, poll)
    }
}

async fn hear(opener: Arc<Opener>, channel: String, door: Doorbell) {
    let mut pause = PAUSE.0;
    loop {
        let heard = Arc::new(Heard { broken: Notify::new(), door: door.clone() });
        let subscribed = async {
            let conn = opener.open_for_hearing(heard.clone()).await?;
            conn.subscribe(&channel).await.map(|()| conn)
        };
        match subscribed.await {
            Ok(_conn) => {
                pause = PAUSE.0;
                heard.broken.notified().await;
            }
            Err(error) => tracing::debug!(%error, "no wake-ups from other processes: workers poll"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

struct Heard {
    broken: Notify,
    door: Doorbell,
}

impl AsyncPushSender for Heard {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        match info.kind {
            // A wrong wake-up makes a worker ask the store, and nothing else.
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1)
                    && let Some((queue, tasks)) = read(message)
                {
                    self.door.ring(&queue, tasks);
                }
            }
            PushKind::Disconnection => self.broken.notify_one(),
            _ => {}
        }
        Ok(())
    }
}

/// How many tasks, and the queue.
fn read(message: &[u8]) -> Option<(QueueName, usize)> {
    let (tasks, queue) = message.split_first_chunk::<4>()?;
    let queue = QueueName::new(std::str::from_utf8(queue).ok()?).ok()?;
    Some((queue, usize::try_from(u32::from_be_bytes(*tasks)).ok()?))
}
