//! Notification of workers about new tasks: those of this process directly, the others by one
//! `NOTIFY` for all arrivals since the last one. It is sent after the commit, never in it: commits
//! that notify wait for each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::cursors::Cursors;
use super::link::Link;
use super::pool::Pool;
use super::sql::Sql;
use crate::model::{QueueName, Timestamp};
use crate::store::QueueSubscription;
use crate::store::postgres::gate::micros;
use crate::store::postgres::session::{DEADLINE, within};
use crate::store::postgres::trouble::Fail;
use crate::store::wake::Doorbell;

/// Delay of the NOTIFY if a local worker was woken: the local worker leases first, and the
/// notification does not compete with that.
const AFTER_OURS: Duration = Duration::from_millis(1);
/// Minimum interval between two NOTIFYs.
const PAUSE: Duration = Duration::from_millis(5);
/// Maximum length of the payload; the server limits it.
const LONGEST: usize = 7000;

/// Queue in which workers may find new tasks.
#[derive(Debug, Clone)]
pub(super) struct Stir {
    pub(super) queue: QueueName,
    /// Lower bound for the positions of the tasks: none is before this time.
    pub(super) since: Timestamp,
    /// Approximate number of tasks.
    pub(super) tasks: usize,
}

/// Workers that wait for tasks, and the cursors of this process.
#[derive(Debug)]
pub(in crate::store::postgres) struct Wakes {
    door: Doorbell,
    pub(super) cursors: Cursors,
    crier: Arc<Crier>,
    cries: AtomicBool,
}

/// Notifications for other processes.
#[derive(Debug)]
struct Crier {
    /// Identifies this process, which ignores its own notifications.
    name: String,
    news: Mutex<BTreeMap<QueueName, (i64, usize)>>,
    /// Whether a local worker was woken, too.
    heard_here: AtomicBool,
    bell: Notify,
}

impl Wakes {
    pub(in crate::store::postgres) fn new() -> Arc<Self> {
        let name = format!("{:016x}", fastrand::u64(..));
        let (news, heard_here, bell) = (Mutex::default(), AtomicBool::new(false), Notify::new());
        let crier = Arc::new(Crier { name, news, heard_here, bell });
        Arc::new(Self {
            door: Doorbell::default(),
            cursors: Cursors::new(),
            crier,
            cries: AtomicBool::new(false),
        })
    }

    pub(super) fn listen(&self, queues: &[QueueName], poll: Duration) -> QueueSubscription {
        self.door.listen(queues, poll)
    }

    /// Notifies the workers of this and other processes.
    pub(super) fn tell(&self, pool: &Arc<Pool>, stirs: &[Stir]) {
        self.crier.heard_here.fetch_or(self.door.is_heard(), Ordering::Relaxed);
        for Stir { queue, since, tasks } in stirs {
            self.ring(queue, micros(*since), *tasks);
            let mut news = self.crier.news.lock().unwrap_or_else(PoisonError::into_inner);
            let (earliest, count) = news.entry(queue.clone()).or_insert((i64::MAX, 0));
            *earliest = micros(*since).min(*earliest);
            *count += *tasks;
        }
        if stirs.is_empty() {
            return;
        }
        if !self.cries.swap(true, Ordering::Relaxed) {
            match pool.home() {
                Ok(home) => _ = home.handle().spawn(cry(Arc::downgrade(pool), self.crier.clone())),
                Err(error) => tracing::debug!(%error, "other processes are not told: their workers poll"),
            }
        }
        self.crier.bell.notify_one();
    }

    /// Wakes one local worker per queue because there may be more tasks.
    pub(super) fn pass_on(&self, queues: &[QueueName]) {
        if self.door.is_heard() {
            for queue in queues {
                self.door.ring(queue, 1);
            }
        }
    }

    /// Wakes all local workers because anything may have changed.
    pub(super) fn tell_all_here(&self) {
        self.door.ring_all();
    }

    fn ring(&self, queue: &QueueName, since: i64, tasks: usize) {
        self.cursors.arrived(queue, since);
        self.door.ring(queue, tasks);
    }

    /// Handles a notification of another process. Any user of the database can send one: a forged
    /// payload only makes a worker poll.
    pub(in crate::store::postgres) fn heard(&self, words: &str) {
        let mut lines = words.lines();
        if lines.next() == Some(self.crier.name.as_str()) {
            return;
        }
        for line in lines {
            let mut parts = line.splitn(3, ' ');
            let numbers =
                parts.next().and_then(|at| at.parse().ok()).zip(parts.next().and_then(|n| n.parse().ok()));
            match numbers.zip(parts.next().and_then(|queue| QueueName::new(queue).ok())) {
                Some(((since, tasks), queue)) => self.ring(&queue, since, tasks),
                None => self.missed(),
            }
        }
    }

    /// Resets the cursors and wakes all local workers because notifications may have been missed.
    pub(in crate::store::postgres) fn missed(&self) {
        self.cursors.rewind();
        self.door.ring_all();
    }
}

impl Crier {
    /// Returns the payload of the next NOTIFY, if there is one.
    fn take(&self) -> Option<String> {
        let news = std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner));
        if news.is_empty() {
            return None;
        }
        let line = |(queue, (since, tasks)): (QueueName, (i64, usize))| format!("\n{since} {tasks} {queue}");
        let lines: String = news.into_iter().map(line).collect();
        // Too long to list all queues: `*` means that tasks may have arrived in any queue.
        Some(self.name.clone() + if lines.len() > LONGEST { "\n*" } else { &lines })
    }
}

/// Sends NOTIFYs to other processes, one at a time, for as long as the pool exists.
async fn cry(pool: Weak<Pool>, crier: Arc<Crier>) {
    let mut link: Option<Link> = None;
    loop {
        crier.bell.notified().await;
        if crier.heard_here.swap(false, Ordering::Relaxed) {
            tokio::time::sleep(AFTER_OURS).await;
        }
        let (Some(words), Some(pool)) = (crier.take(), pool.upgrade()) else {
            if pool.strong_count() == 0 {
                return;
            }
            continue;
        };
        if let Err(fail) = within(DEADLINE, say(&pool, &mut link, &words)).await {
            tracing::debug!(?fail, "other processes were not told: their workers poll");
            link = None;
        }
        drop(pool);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn say(pool: &Pool, link: &mut Option<Link>, words: &str) -> Result<(), Fail> {
    let open = match link.take().filter(|link| !link.is_closed()) {
        Some(link) => link,
        None => {
            let link = pool.open().await?;
            if !pool.gate.is_pooled() {
                // A notification may be lost in a crash of the server.
                link.say("SET synchronous_commit = off").await?;
            }
            link
        }
    };
    open.query(Sql::Notify, &[&pool.gate.task_channel(), &words]).await?;
    *link = Some(open);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_by_others_and_not_by_oneself() {
        let (one, two) = (Wakes::new(), Wakes::new());
        let queue = QueueName::new("a queue").unwrap();
        one.crier.news.lock().unwrap().insert(queue.clone(), (7, 2));
        let words = one.crier.take().unwrap();
        assert!(one.crier.take().is_none());
        for (wakes, expected) in [(&one, 9), (&two, 7)] {
            let places = wakes.cursors.places(std::slice::from_ref(&queue));
            wakes.cursors.promoted(&places, std::slice::from_ref(&queue), 9);
            wakes.heard(&words);
            assert_eq!(wakes.cursors.places(std::slice::from_ref(&queue)).due, [expected]);
        }
        two.heard("x\n*");
        assert_eq!(two.cursors.places(std::slice::from_ref(&queue)).due, [0]);
    }
}
