//! Waking workers. Those of this process are woken directly. A store whose workers wait says so with the lease that finds
//! nothing; whoever makes a task ready rings one such store, on a channel that it alone hears. If meanwhile nobody waits
//! there, that store rings the next.

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
use crate::store::{Arrivals, clock};

/// The pause before the channel is subscribed to again, and the longest it grows to.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often an idle worker looks while notifications from other processes reach it. The look is for notifications that were
/// lost, and for tasks that became due or whose lease ran out, of which nothing is notified.
const NOTIFIED_POLL: Duration = Duration::from_secs(1);

/// So many stores that are gone are passed over for one wake-up.
const PASS_ON: usize = 10;

/// The bell of one store.
pub(super) struct Bell {
    base: String,
    channel: String,
    door: Doorbell,
    hears: AtomicBool,
    /// Whether the subscription stands.
    notified: Arc<AtomicBool>,
}

impl Bell {
    /// `base` is what the keys of tasks begin with: in a Cluster the scripts can ring only what lives with them.
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

    /// Wakes up to so many workers of this process.
    pub(super) fn ring(&self, queue: &QueueName, tasks: usize) {
        self.door.ring(queue, tasks);
    }

    /// Wake-ups for a worker. The first one subscribes; until that stands, and whenever it does not, workers poll.
    pub(super) fn listen(&self, link: &Link, queues: &[QueueName], poll: Duration) -> Arrivals {
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

/// Hears the bell for as long as the link lasts.
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
                // What was sent while the connection broke is lost: look now, and then more often.
                self.door.ring_all();
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Rings the next store that waits for this queue. If that fails, its workers poll.
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
            // A wrong wake-up makes a worker ask the store, and nothing else.
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = info.data.get(1)
                    && let Some(message) = Message::read(message)
                {
                    if self.door.is_heard() {
                        self.door.ring(&message.queue, usize::try_from(message.tasks).unwrap_or(usize::MAX));
                    } else {
                        // Only a hearing that has ended takes no more, and with it this bell.
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

/// So many tasks have come to this queue, as `common.lua` packs it.
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
