//! Noticing what other processes have written, while somebody waits for it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError, Weak, mpsc};
use std::time::Duration;

use rusqlite::{Connection, params};

use super::sql;
use crate::model::QueueName;
use crate::store::sqlite::writer::Desk;

/// So often it is looked. A look takes a few microseconds.
const LOOK: Duration = Duration::from_millis(2);

/// For so long it goes on after nobody listens any more: a worker that has got something soon listens again.
const GRACE: u32 = 500;

/// So many tasks at most are worth a wake-up each.
const MANY: u32 = 64;

/// Has a thread that looks, once somebody has listened.
#[derive(Debug, Default)]
pub(in crate::store::sqlite) struct Watch(Mutex<Option<mpsc::SyncSender<()>>>);

impl Watch {
    /// Somebody listens. If the thread cannot be started, whoever listens has to poll.
    pub(in crate::store::sqlite) fn begin(&self, desk: impl FnOnce() -> Weak<Desk>) {
        let mut thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = &*thread {
            let _ = thread.try_send(()); // Full: it knows already.
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

/// What was there at the last look.
#[derive(Default)]
struct Seen {
    /// Changes when any other connection, in this process or another, has written.
    data_version: i64,
    next_due: HashMap<QueueName, i64>,
}

impl Seen {
    fn look_and_ring(&mut self, desk: &Desk) {
        let heard = desk.door.heard();
        // Somebody who uses the connection just now is no reason to wait: there is a next time.
        if let Some(Ok(news)) = desk.peek(|ledger| self.look(ledger.conn(), &heard)) {
            for (queue, tasks) in news {
                desk.door.ring(&queue, tasks);
            }
        }
    }

    /// How many of those who listen may find something that others have written since.
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
            // One who knows of a task that is due sooner than others thought is enough.
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
