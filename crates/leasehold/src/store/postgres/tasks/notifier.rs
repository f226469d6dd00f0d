//! Notification of workers about new tasks: those of this process directly, the others by one
//! `NOTIFY` for all arrivals since the last one. It is sent after the commit, never in it: commits
//! that notify wait for each other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use super::cursors::Cursors;
use super::pool::Pool;
use crate::model::{QueueName, Timestamp};
use crate::store::postgres::columns::micros;
use crate::store::postgres::connection::{
    CLOSE_DEDICATED_AFTER, OPERATION_TIMEOUT, Purpose, Session, with_timeout,
};
use crate::store::postgres::error::PgError;
use crate::store::postgres::sql::{Sql, TEXT};
use crate::store::support::mutex::lock;
use crate::store::wake::QueueNotifier;

/// Delay of the NOTIFY if a local worker was woken: the local worker leases first, and the
/// notification does not compete with that.
const LOCAL_FIRST_DELAY: Duration = Duration::from_millis(1);
/// Minimum interval between two NOTIFYs.
const MIN_NOTIFY_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum length of the payload; the server limits it.
const MAX_PAYLOAD: usize = 7000;

/// Queue in which workers may find new tasks.
#[derive(Debug, Clone)]
pub(super) struct QueueChange {
    pub(super) queue: QueueName,
    /// Lower bound for the positions of the tasks: none is before this time.
    pub(super) since: Timestamp,
    pub(super) tasks: usize,
}

/// Notifier of the workers that wait for tasks, and the cursors of this process.
#[derive(Debug)]
pub(crate) struct WorkerNotifier {
    /// Workers of this process.
    pub(super) queues: QueueNotifier,
    pub(super) cursors: Cursors,
    debouncer: Arc<NotifyDebouncer>,
    is_started: AtomicBool,
}

/// Changes that other processes have not been notified of yet.
#[derive(Debug, Default)]
struct NotifyDebouncer {
    /// Identifies this process, which ignores its own notifications.
    process: String,
    /// By queue: the earliest time, and the number of tasks.
    changes: Mutex<BTreeMap<QueueName, (i64, usize)>>,
    /// Whether a local worker was woken, too; the NOTIFY is then delayed.
    woke_local: AtomicBool,
    pending: Notify,
}

impl WorkerNotifier {
    pub(crate) fn new() -> Arc<Self> {
        let process = format!("{:016x}", fastrand::u64(..));
        Arc::new(Self {
            queues: QueueNotifier::default(),
            cursors: Cursors::new(),
            debouncer: Arc::new(NotifyDebouncer { process, ..NotifyDebouncer::default() }),
            is_started: AtomicBool::new(false),
        })
    }

    pub(super) fn notify(&self, pool: &Arc<Pool>, queue_changes: &[QueueChange]) {
        self.debouncer.woke_local.fetch_or(self.queues.has_subscribers(), Ordering::Relaxed);
        for QueueChange { queue, since, tasks } in queue_changes {
            self.wake_local(queue, micros(*since), *tasks);
            let mut changes = lock(&self.debouncer.changes);
            let (earliest, count) = changes.entry(queue.clone()).or_insert((i64::MAX, 0));
            *earliest = micros(*since).min(*earliest);
            *count += *tasks;
        }
        if queue_changes.is_empty() {
            return;
        }
        if !self.is_started.swap(true, Ordering::Relaxed) {
            match pool.background() {
                Ok(background) => {
                    let run = run_debouncer(Arc::downgrade(pool), self.debouncer.clone());
                    background.handle().spawn(run);
                }
                Err(error) => tracing::debug!(%error, "other processes are not notified: their workers poll"),
            }
        }
        self.debouncer.pending.notify_one();
    }

    /// Wakes one local worker per queue because there may be more tasks.
    pub(super) fn wake_one_per_queue(&self, queues: &[QueueName]) {
        if self.queues.has_subscribers() {
            for queue in queues {
                self.queues.notify(queue, 1);
            }
        }
    }

    fn wake_local(&self, queue: &QueueName, since: i64, tasks: usize) {
        self.cursors.arrived(queue, since);
        self.queues.notify(queue, tasks);
    }

    /// Handles a notification of another process. Any user of the database can send one: a forged
    /// payload only makes a worker poll.
    pub(crate) fn on_notification(&self, payload: &str) {
        let mut lines = payload.lines();
        if lines.next() == Some(self.debouncer.process.as_str()) {
            return;
        }
        for line in lines {
            let mut parts = line.splitn(3, ' ');
            let numbers =
                parts.next().and_then(|at| at.parse().ok()).zip(parts.next().and_then(|n| n.parse().ok()));
            match numbers.zip(parts.next().and_then(|queue| QueueName::new(queue).ok())) {
                Some(((since, tasks), queue)) => self.wake_local(&queue, since, tasks),
                None => self.on_missed_notifications(),
            }
        }
    }

    /// Resets the cursors and wakes all local workers because notifications may have been missed.
    pub(crate) fn on_missed_notifications(&self) {
        self.cursors.rewind();
        self.queues.notify_all();
    }
}

impl NotifyDebouncer {
    /// Returns the payload of the next NOTIFY, if there is one.
    fn take(&self) -> Option<String> {
        let changes = std::mem::take(&mut *lock(&self.changes));
        if changes.is_empty() {
            return None;
        }
        let line = |(queue, (since, tasks)): (QueueName, (i64, usize))| format!("\n{since} {tasks} {queue}");
        let lines: String = changes.into_iter().map(line).collect();
        // Too long to list all queues: `*` means that tasks may have arrived in any queue.
        Some(self.process.clone() + if lines.len() > MAX_PAYLOAD { "\n*" } else { &lines })
    }
}

/// Sends NOTIFYs to other processes, one at a time, for as long as the pool exists.
async fn run_debouncer(pool: Weak<Pool>, debouncer: Arc<NotifyDebouncer>) {
    let mut session: Option<Session> = None;
    loop {
        let pending = debouncer.pending.notified();
        if session.is_none() {
            pending.await;
        } else if tokio::time::timeout(CLOSE_DEDICATED_AFTER, pending).await.is_err() {
            session = None;
            continue;
        }
        if debouncer.woke_local.swap(false, Ordering::Relaxed) {
            tokio::time::sleep(LOCAL_FIRST_DELAY).await;
        }
        let (Some(payload), Some(pool)) = (debouncer.take(), pool.upgrade()) else {
            if pool.strong_count() == 0 {
                return;
            }
            continue;
        };
        if let Err(error) = with_timeout(OPERATION_TIMEOUT, send_notify(&pool, &mut session, &payload)).await
        {
            tracing::debug!(?error, "other processes were not notified: their workers poll");
            session = None;
        }
        drop(pool);
        tokio::time::sleep(MIN_NOTIFY_INTERVAL).await;
    }
}

async fn send_notify(pool: &Pool, session: &mut Option<Session>, payload: &str) -> Result<(), PgError> {
    let open = match session.take().filter(|session| !session.is_closed()) {
        Some(session) => session,
        None => pool.open(Purpose::Notifications).await?,
    };
    open.query(&NOTIFY_WORKERS, &[&pool.connector.task_channel(), &payload]).await?;
    *session = Some(open);
    Ok(())
}

pub(crate) static NOTIFY_WORKERS: Sql = Sql::new(&[TEXT, TEXT], "SELECT pg_notify($1, $2)");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ignores_its_own_notifications() {
        let (one, two) = (WorkerNotifier::new(), WorkerNotifier::new());
        let queue = QueueName::new("a queue").unwrap();
        one.debouncer.changes.lock().unwrap().insert(queue.clone(), (7, 2));
        let payload = one.debouncer.take().unwrap();
        assert!(one.debouncer.take().is_none());
        for (notifier, expected) in [(&one, 9), (&two, 7)] {
            let positions = notifier.cursors.positions(std::slice::from_ref(&queue));
            notifier.cursors.set_queues_promoted(&positions, std::slice::from_ref(&queue), 9);
            notifier.on_notification(&payload);
            assert_eq!(notifier.cursors.positions(std::slice::from_ref(&queue)).due, [expected]);
        }
        two.on_notification("x\n*");
        assert_eq!(two.cursors.positions(std::slice::from_ref(&queue)).due, [0]);
    }
}
