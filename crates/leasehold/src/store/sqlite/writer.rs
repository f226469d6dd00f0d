//! The one thread that has the connection. What comes while it writes is written together next.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, config::DbConfig};
use tokio::sync::oneshot;

use super::batch::{Answer, Ledger};
use super::file::StoreFile;
use super::options::SqliteOptions;
use super::schema;
use super::trouble::explain;
use crate::error::{Error, Result, Trouble};
use crate::model::{LockName, LockOp, Outcome};
use crate::store::Moment;
use crate::store::wake::{Reach, wake};

/// So many operations go into one transaction at most.
const MAX_BATCH: usize = 256;

/// A handle on the thread; it ends with the last one.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    path: PathBuf,
}

enum Job {
    Apply(Apply),
    Run(Box<dyn FnOnce(&mut Ledger) + Send>),
}

struct Apply {
    name: LockName,
    op: LockOp,
    /// Before the store could have granted anything: what a handed-over lease is counted from.
    since: Moment,
    reply: oneshot::Sender<Result<Outcome>>,
}

impl Writer {
    /// Opens the file and starts the thread.
    pub(super) async fn start(options: SqliteOptions) -> Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let (ready, opened) = oneshot::channel();
        let thread = std::thread::Builder::new().name("leasehold-sqlite".to_owned());
        let spawned = thread.spawn(move || match open(&options) {
            Ok((file, ledger)) => {
                if ready.send(Ok(file.path().to_owned())).is_ok() {
                    work(&queue, ledger, &file);
                }
            }
            Err(error) => drop(ready.send(Err(error))),
        });
        if let Err(error) = spawned {
            let message = "the store's thread cannot be started";
            return Err(
                Error::store(Trouble::Unavailable, message, "let this user have more threads").because(error)
            );
        }
        let path = opened.await.unwrap_or_else(|_| Err(gone()))?;
        Ok(Self { jobs, path })
    }

    /// Where the file really is.
    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Applies one operation, together with whatever else is waiting.
    pub(super) async fn apply(&self, name: LockName, op: LockOp) -> Result<Outcome> {
        let (reply, answer) = oneshot::channel();
        let apply = Apply { name, op, since: Moment::now(), reply };
        self.jobs.send(Job::Apply(apply)).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Runs something with the tables, between transactions.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Ledger) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job = Job::Run(Box::new(move |ledger| drop(reply.send(work(ledger)))));
        self.jobs.send(job).map_err(|_| gone())?;
        let answer = answer.await.map_err(|_| gone())?;
        answer.map_err(|error| explain(&self.path, error))
    }
}

fn work(queue: &mpsc::Receiver<Job>, mut ledger: Ledger, file: &StoreFile) {
    let mut batch = Vec::new();
    while let Ok(first) = queue.recv() {
        let mut next = Some(first);
        while let Some(job) = next {
            match job {
                Job::Apply(apply) => batch.push(apply),
                Job::Run(run) => {
                    commit(&mut ledger, &mut batch, file);
                    run(&mut ledger);
                }
            }
            next = if batch.len() < MAX_BATCH { queue.try_recv().ok() } else { None };
        }
        commit(&mut ledger, &mut batch, file);
    }
}

fn commit(ledger: &mut Ledger, batch: &mut Vec<Apply>, file: &StoreFile) {
    if batch.is_empty() {
        return;
    }
    let ops = batch.iter().map(|apply| (&apply.name, &apply.op));
    let answers =
        file.is_still_there().and_then(|()| ledger.commit(&ops).map_err(|error| explain(file.path(), error)));
    // A caller that has gone away is as one whose answer was lost.
    match answers {
        Ok(answers) => {
            for (apply, Answer { outcome, handed_over }) in batch.drain(..).zip(answers) {
                wake(handed_over, apply.since, Reach::Machine);
                let _ = apply.reply.send(Ok(outcome));
            }
        }
        Err(error) => {
            for apply in batch.drain(..) {
                let _ = apply.reply.send(Err(error.clone()));
            }
        }
    }
}

fn open(options: &SqliteOptions) -> Result<(StoreFile, Ledger)> {
    let file = StoreFile::prepare(&options.path)?;
    let path = file.path();
    let explain = |error| explain(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(path, flags).map_err(explain)?;
    wait_for_others(&mut conn, options.busy).map_err(explain)?;
    // A checkpoint at each close would cost short-lived processes more than all their work; the log is folded in when
    // it has grown.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
    conn.set_prepared_statement_cache_capacity(32);
    let opened = schema::prepare(&mut conn, path, options)?;
    let ledger = Ledger::new(conn, opened, options.durability, options.max_events);
    Ok((file, ledger))
}

/// Waits for other writers in short steps: a transaction takes microseconds, and SQLite's own steps are milliseconds.
fn wait_for_others(conn: &mut Connection, patience: Duration) -> rusqlite::Result<()> {
    let mut since = Moment::now();
    conn.busy_handler(Some(move |tries: i32| {
        let now = Moment::now();
        if tries == 0 {
            since = now;
        }
        let step = (50 * u64::from(tries.unsigned_abs() + 1)).min(1_000);
        let patient = now.after(since) < patience;
        if patient {
            std::thread::sleep(Duration::from_micros(fastrand::u64(step / 2..=step)));
        }
        patient
    }))
}

fn gone() -> Error {
    Error::store(Trouble::Broken, "the store's thread has ended", "please report this")
}
