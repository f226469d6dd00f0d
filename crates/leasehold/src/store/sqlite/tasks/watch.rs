//! Polls for writes of other processes while a worker waits for tasks.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak, mpsc};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::sql;
use crate::model::QueueName;
use crate::store::sqlite::writer::Desk;

/// Poll interval. A poll takes a few microseconds.
const LOOK: Duration = Duration::from_millis(2);

/// Number of polls without a listening worker after which polling stops: a worker that has leased
/// tasks soon listens again.
const GRACE: u32 = 500;

/// Maximum number of ready tasks of a queue that are notified one by one.
const MANY: u32 = 64;

/// Owner of the polling thread, which starts with the first listening worker.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct Watch(Mutex<Option<mpsc::SyncSender<()>>>);

impl Watch {
    /// Starts or resumes polling. If the thread cannot be started, workers rely on their own poll
    /// interval.
    pub(in crate::store::sqlite) fn begin(&self, desk: impl FnOnce() -> Weak<Desk>) {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            let _ = thread.try_send(()); // Full: the thread is already notified.
            return;
        }
        let (begin, calls) = mpsc::sync_channel(1);
        let desk = desk();
        let spawned = std::thread::Builder::new().name("leasehold-watch".to_owned());
        if spawned.spawn(move || watch(&desk, &calls)).is_ok() {
            let _ = begin.try_send(());
            *thread = Some(begin);
        }
    }
}

fn watch(desk: &Weak<Desk>, calls: &mpsc::Receiver<()>) {
    let mut seen = Seen::default();
    while calls.recv().is_ok() {
        let mut unheard = 0;
        while unheard < GRACE {
            let Some(desk) = desk.upgrade() else { return };
            if desk.door.is_heard() {
                unheard = 0;
                seen.look_and_ring(&desk);
            } else {
                unheard += 1;
            }
            drop(desk);
            std::thread::sleep(LOOK);
        }
    }
}

/// State at the last poll.
#[derive(Default)]
struct Seen {
    /// SQLite's data version: changes when any other connection, in this process or another, has
    /// written.
    data_version: i64,
    next_due: HashMap<QueueName, i64>,
}

impl Seen {
    fn look_and_ring(&mut self, desk: &Desk) {
        let heard = desk.door.heard();
        // If the connection is in use, the next poll reads the changes.
        if let Some(Ok(news)) = desk.peek(|ledger| self.look(ledger.conn(), &heard)) {
            for (queue, tasks) in news {
                desk.door.ring(&queue, tasks);
            }
        }
    }

    /// Returns the queues with the number of workers to wake for what other connections have
    /// written since.
    fn look(&mut self, conn: &Connection, heard: &[QueueName]) -> rusqlite::Result<Vec<(QueueName, usize)>> {
        let version = conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if version == self.data_version {
            return Ok(Vec::new());
        }
        let mut news = Vec::new();
        let mut next_due = HashMap::new();
        for queue in heard {
            let values = params![queue.as_str(), MANY];
            let ready: i64 = conn.prepare_cached(sql::HOW_MANY_READY)?.query_row(values, |row| row.get(0))?;
            let due: Option<i64> =
                conn.prepare_cached(sql::NEXT_DUE_BY_NAME)?.query_row([queue.as_str()], |row| row.get(0))?;
            // One woken worker is enough to learn of an earlier due time.
            let sooner = due.filter(|due| self.next_due.get(queue).is_none_or(|known| due < known));
            next_due.extend(due.map(|due| (queue.clone(), due)));
            let woken = usize::try_from(ready).unwrap_or(0).max(usize::from(sooner.is_some()));
            if woken > 0 {
                news.push((queue.clone(), woken));
            }
        }
        self.next_due = next_due;
        self.data_version = version;
        Ok(news)
    }
}
