//! Syncs the write-ahead log while other transactions continue.
//!
//! A commit that waits for the disk keeps all other writers from writing meanwhile. So task
//! transactions are committed without a sync, and the log is synced from here afterwards: one sync
//! covers everything that was committed meanwhile, and callers whose answers need no sync, such as
//! most lock operations, do not wait at all. This is safe: the log is a sequence, so synced data
//! includes all data before it; and data was synced before a checkpoint moved it from the log into
//! the database. If another process has emptied the log before the sync, the database was synced
//! before that.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};

use super::write_request::{Batch, answer_all};
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::sqlite::error::{thread_ended, thread_error};
use crate::store::sqlite::file::wal_path;
use crate::store::support::mutex::lock;

/// Syncs the log, on a thread of its own once there is other work to do meanwhile.
pub(super) struct WalSyncer {
    wal: Arc<Mutex<WalFile>>,
    thread: Mutex<Option<mpsc::Sender<Batch>>>,
}

impl WalSyncer {
    /// Returns a syncer for the log of the database at `path`.
    pub(super) fn new(path: &Path) -> Self {
        let wal = WalFile { path: wal_path(path), file: None, failed: None };
        Self { wal: Arc::new(Mutex::new(wal)), thread: Mutex::default() }
    }

    /// Syncs the log on this thread.
    pub(super) fn sync(&self) -> Result<()> {
        lock(&self.wal).sync()
    }

    /// Syncs the log on this thread and then answers requests whose transaction is committed.
    /// Returns the requests if another thread is already syncing.
    pub(super) fn try_sync_and_answer(&self, batch: Batch) -> Option<Batch> {
        match self.wal.try_lock() {
            Ok(mut wal) => {
                answer_all(batch, &wal.sync());
                None
            }
            Err(_) => Some(batch),
        }
    }

    /// Answers requests whose transaction is committed, as soon as that has been synced.
    pub(super) fn answer_after_sync(&self, batch: Batch) {
        let mut thread = lock(&self.thread);
        let sent = match &*thread {
            Some(jobs) => jobs.send(batch),
            None => match start(self.wal.clone()) {
                Ok(jobs) => {
                    let sent = jobs.send(batch);
                    *thread = Some(jobs);
                    sent
                }
                Err(error) => return answer_all(batch, &Err(error)),
            },
        };
        if let Err(mpsc::SendError(batch)) = sent {
            answer_all(batch, &Err(thread_ended()));
        }
    }
}

fn start(wal: Arc<Mutex<WalFile>>) -> Result<mpsc::Sender<Batch>> {
    let (jobs, queue) = mpsc::channel::<Batch>();
    let thread = std::thread::Builder::new().name("leasehold-sync".to_owned());
    let work = move || {
        while let Ok(mut batch) = queue.recv() {
            let mut wal = lock(&wal);
            batch.extend(queue.try_iter().flatten());
            answer_all(batch, &wal.sync());
        }
    };
    thread.spawn(work).map_err(thread_error)?;
    Ok(jobs)
}

/// Log file. SQLite's locks depend only on descriptors of the database itself, so opening the log
/// again is harmless; and the log stays the same file as long as a connection is open.
struct WalFile {
    path: PathBuf,
    file: Option<File>,
    failed: Option<Error>,
}

impl WalFile {
    fn sync(&mut self) -> Result<()> {
        // The system may drop data that it could not write, and the next sync would succeed without
        // it.
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.try_sync().map_err(|cause| {
            let message = format!("failed to sync {} to the disk", self.path.display());
            let hint = "check the disk and the system log, then restart this program";
            let error = Error::store(StoreErrorKind::Unavailable, message, hint).because(cause);
            self.failed.insert(error).clone()
        })
    }

    fn try_sync(&mut self) -> std::io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(OpenOptions::new().read(true).write(true).open(&self.path)?),
        };
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::store::sqlite::connection::write_request::{WriteOptions, WriteRequest, write_request};
    use crate::store::sqlite::tasks::{QueueIds, TaskTransaction};

    fn empty_request() -> (Box<dyn WriteRequest>, tokio::sync::oneshot::Receiver<Result<()>>) {
        let (mut request, answer) = write_request(WriteOptions { weight: 1, always_sync: true }, |_| Ok(()));
        let (conn, mut queues) = (rusqlite::Connection::open_in_memory().unwrap(), QueueIds::default());
        request.run(&mut TaskTransaction::new(&conn, &mut queues, Timestamp::default())).unwrap();
        (request, answer)
    }

    #[tokio::test]
    async fn requests_are_answered_after_the_sync_inline_or_on_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.db-wal"), "log").unwrap();
        let syncer = WalSyncer::new(&folder.path().join("a.db"));
        let (request, answer) = empty_request();
        assert!(syncer.try_sync_and_answer(vec![request]).is_none());
        answer.await.unwrap().unwrap();
        let (request, answer) = empty_request();
        syncer.answer_after_sync(vec![request]);
        answer.await.unwrap().unwrap();
        // Another thread is already syncing.
        let _busy = syncer.wal.lock().unwrap();
        assert!(syncer.try_sync_and_answer(vec![empty_request().0]).is_some());
    }

    /// The system may drop data that it could not write, so a later successful sync proves nothing.
    #[tokio::test]
    async fn after_a_failed_sync_all_later_syncs_fail() {
        let folder = tempfile::tempdir().unwrap();
        let syncer = WalSyncer::new(&folder.path().join("a.db"));
        for _ in 0..2 {
            let (request, answer) = empty_request();
            syncer.try_sync_and_answer(vec![request]);
            let error = answer.await.unwrap().unwrap_err();
            assert_eq!(error.code(), "STORE_UNAVAILABLE");
            assert!(error.to_string().contains("failed to sync"), "{error}");
            std::fs::write(folder.path().join("a.db-wal"), "log").unwrap();
        }
    }
}
