//! Waits for the disk while other transactions continue.
//!
//! A commit that waits for the disk keeps all other writers from writing meanwhile. So task
//! transactions are committed without a sync, and the log is synced from here afterwards: one sync
//! covers everything that was committed meanwhile, and callers whose answers need no sync, such as
//! most lock operations, do not wait at all. This is safe: the log is a sequence, so synced data
//! includes all data before it; and data was synced before a checkpoint moved it from the log into
//! the database.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::errand::{Errands, answer_all};
use crate::error::{Error, Result, StoreErrorKind};

/// Syncs the log, on a thread of its own once there is other work to do meanwhile.
pub(in crate::store::sqlite) struct Syncer {
    disk: Arc<Mutex<Disk>>,
    thread: Mutex<Option<mpsc::Sender<Errands>>>,
}

impl Syncer {
    /// Returns a syncer for the log of the database at `path`.
    pub(in crate::store::sqlite) fn new(path: &Path) -> Self {
        let mut log = path.as_os_str().to_owned();
        log.push("-wal");
        let disk = Disk { log: log.into(), file: None, failed: None };
        Self { disk: Arc::new(Mutex::new(disk)), thread: Mutex::default() }
    }

    /// Syncs the log on this thread and then answers errands whose transaction is committed.
    /// Returns the errands if another thread is already syncing.
    pub(in crate::store::sqlite) fn answer_here(&self, errands: Errands) -> Option<Errands> {
        match self.disk.try_lock() {
            Ok(mut disk) => {
                answer_all(errands, &disk.sync());
                None
            }
            Err(_) => Some(errands),
        }
    }

    /// Answers errands whose transaction is committed, as soon as that has been synced.
    pub(in crate::store::sqlite) fn answer(&self, errands: Errands) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match &*thread {
            Some(jobs) => jobs.send(errands),
            None => match start(self.disk.clone()) {
                Ok(jobs) => {
                    let sent = jobs.send(errands);
                    *thread = Some(jobs);
                    sent
                }
                Err(error) => return answer_all(errands, &Err(error)),
            },
        };
        if let Err(mpsc::SendError(errands)) = sent {
            let error =
                Error::store(StoreErrorKind::Broken, "the store's thread has ended", "please report this");
            answer_all(errands, &Err(error));
        }
    }
}

fn start(disk: Arc<Mutex<Disk>>) -> Result<mpsc::Sender<Errands>> {
    let (jobs, queue) = mpsc::channel::<Errands>();
    let thread = std::thread::Builder::new().name("leasehold-sync".to_owned());
    let work = move || {
        while let Ok(mut errands) = queue.recv() {
            let mut disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
            errands.extend(queue.try_iter().flatten());
            answer_all(errands, &disk.sync());
        }
    };
    thread.spawn(work).map_err(|error| {
        let hint = "let this user have more threads";
        Error::store(StoreErrorKind::Unavailable, "the store's thread cannot be started", hint).because(error)
    })?;
    Ok(jobs)
}

/// Log file. SQLite's locks depend only on descriptors of the database itself, so opening the log
/// again is harmless; and the log stays the same file as long as a connection is open.
struct Disk {
    log: PathBuf,
    file: Option<File>,
    failed: Option<Error>,
}

impl Disk {
    fn sync(&mut self) -> Result<()> {
        // The system may drop data that it could not write, and the next sync would succeed without
        // it.
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.try_sync().map_err(|cause| {
            let message = format!("the disk did not take what was written to {}", self.log.display());
            let hint = "look at the disk and the system's log, then start this program again";
            let error = Error::store(StoreErrorKind::Unavailable, message, hint).because(cause);
            self.failed.insert(error).clone()
        })
    }

    fn try_sync(&mut self) -> std::io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(OpenOptions::new().read(true).write(true).open(&self.log)?),
        };
        file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Timestamp;
    use crate::store::sqlite::tasks::{Call, Errand, Queues, Shelf, errand};

    fn nothing() -> (Box<dyn Errand>, tokio::sync::oneshot::Receiver<Result<()>>) {
        let (mut errand, answer) = errand(Call { weight: 1, promises: true }, |_| Ok(()));
        let (conn, mut queues) = (rusqlite::Connection::open_in_memory().unwrap(), Queues::default());
        errand.run(&mut Shelf::new(&conn, &mut queues, Timestamp::default())).unwrap();
        (errand, answer)
    }

    #[tokio::test]
    async fn answers_come_after_the_disk_here_or_from_the_thread() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.db-wal"), "log").unwrap();
        let syncer = Syncer::new(&folder.path().join("a.db"));
        let (errand, answer) = nothing();
        assert!(syncer.answer_here(vec![errand]).is_none());
        answer.await.unwrap().unwrap();
        let (errand, answer) = nothing();
        syncer.answer(vec![errand]);
        answer.await.unwrap().unwrap();
        // Another thread is already syncing.
        let _busy = syncer.disk.lock().unwrap();
        assert!(syncer.answer_here(vec![nothing().0]).is_some());
    }

    /// The system may drop data that it could not write, so a later successful sync proves nothing.
    #[tokio::test]
    async fn a_sync_that_failed_is_never_made_good_by_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let syncer = Syncer::new(&folder.path().join("a.db"));
        for _ in 0..2 {
            let (errand, answer) = nothing();
            syncer.answer_here(vec![errand]);
            let error = answer.await.unwrap().unwrap_err();
            assert_eq!(error.code(), "STORE_UNAVAILABLE");
            assert!(error.to_string().contains("did not take what was written"), "{error}");
            std::fs::write(folder.path().join("a.db-wal"), "log").unwrap();
        }
    }
}
