//! Polls for writes of other processes while a worker waits for tasks.

use std::collections::HashMap;
use std::sync::{Mutex, Weak, mpsc};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::sql;
use crate::model::QueueName;
use crate::store::sqlite::connection::SharedConnection;
use crate::store::support::mutex::lock;

/// Poll interval. A poll takes a few microseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Number of polls without a listening worker after which polling stops: a worker that has leased
/// tasks soon listens again.
const MAX_IDLE_POLLS: u32 = 500;

/// Maximum number of ready tasks of a queue that are notified one by one.
const MAX_WAKEUPS: u32 = 64;

/// Owner of the polling thread, which starts with the first listening worker.
#[derive(Debug, Default)]
pub(super) struct ChangePoller(Mutex<Option<mpsc::SyncSender<()>>>);

impl ChangePoller {
    /// Starts or resumes polling. If the thread cannot be started, workers rely on their own poll
    /// interval.
    pub(super) fn start(&self, shared: impl FnOnce() -> Weak<SharedConnection>) {
        let mut thread = lock(&self.0);
        if let Some(thread) = &*thread {
            let _ = thread.try_send(()); // Full: the thread is already notified.
            return;
        }
        let (start, calls) = mpsc::sync_channel(1);
        let shared = shared();
        let spawned = std::thread::Builder::new().name("leasehold-watch".to_owned());
        if spawned.spawn(move || run(&shared, &calls)).is_ok() {
            let _ = start.try_send(());
            *thread = Some(start);
        }
    }
}

fn run(shared: &Weak<SharedConnection>, calls: &mpsc::Receiver<()>) {
    let mut state = PollState::default();
    while calls.recv().is_ok() {
        let mut idle_polls = 0;
        while idle_polls < MAX_IDLE_POLLS {
            let Some(shared) = shared.upgrade() else { return };
            if shared.notifier.has_subscribers() {
                idle_polls = 0;
                state.poll_and_notify(&shared);
            } else {
                idle_polls += 1;
            }
            drop(shared);
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[derive(Default)]
struct PollState {
    /// SQLite's data version: changes when any other connection, in this process or another, has
    /// written.
    data_version: i64,
    next_due: HashMap<QueueName, i64>,
}

impl PollState {
    fn poll_and_notify(&mut self, shared: &SharedConnection) {
        let subscribed = shared.notifier.subscribed_queues();
        // If the connection is in use, the next poll reads the changes.
        if let Some(Ok(wakeups)) = shared.try_read(|database| self.poll(&database.conn, &subscribed)) {
            for (queue, tasks) in wakeups {
                shared.notifier.notify(&queue, tasks);
            }
        }
    }

    /// Returns the queues with the number of workers to wake for what other connections have
    /// written since.
    fn poll(
        &mut self,
        conn: &Connection,
        subscribed: &[QueueName],
    ) -> rusqlite::Result<Vec<(QueueName, usize)>> {
        let version = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version == self.data_version {
            return Ok(Vec::new());
        }
        let mut wakeups = Vec::new();
        let mut next_due = HashMap::new();
        for queue in subscribed {
            let values = params![queue.as_str(), MAX_WAKEUPS];
            let ready: i64 = conn.prepare_cached(sql::COUNT_READY)?.query_row(values, |row| row.get(0))?;
            let due: Option<i64> =
                conn.prepare_cached(sql::NEXT_DUE_BY_NAME)?.query_row([queue.as_str()], |row| row.get(0))?;
            // One woken worker is enough to learn of an earlier due time.
            let sooner = due.filter(|due| self.next_due.get(queue).is_none_or(|known| due < known));
            next_due.extend(due.map(|due| (queue.clone(), due)));
            let woken = usize::try_from(ready).unwrap_or(0).max(usize::from(sooner.is_some()));
            if woken > 0 {
                wakeups.push((queue.clone(), woken));
            }
        }
        self.next_due = next_due;
        self.data_version = version;
        Ok(wakeups)
    }
}
