//! Writes of tasks and documents: the calls of several callers share one transaction.

use tokio::sync::oneshot;

use super::database::Database;
use crate::error::{Error, Result};
use crate::store::sqlite::options::Durability;
use crate::store::sqlite::tasks::{PendingWakeups, TaskTransaction};

/// Writing call: runs in a transaction and is answered when that transaction has been synced.
pub(super) trait WriteRequest: Send {
    /// Runs the call. May run again if the transaction was rolled back.
    fn run(&mut self, tx: &mut TaskTransaction<'_>) -> rusqlite::Result<()>;

    fn options(&self) -> WriteOptions;

    fn answer(self: Box<Self>, done: Result<(), Error>);
}

pub(super) type Batch = Vec<Box<dyn WriteRequest>>;

#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteOptions {
    /// Approximate number of tasks of the call.
    pub(crate) weight: usize,
    /// Whether the answer depends on what other callers may have written just before: it must be
    /// synced even if this call has changed nothing.
    pub(crate) always_sync: bool,
}

/// Remaining work after a transaction.
pub(super) struct CommitOutcome {
    pub(super) wakeups: PendingWakeups,
    /// Whether the answers must wait for the sync.
    pub(super) needs_sync: bool,
}

impl Database {
    /// Runs requests in one transaction, which is not synced yet when this returns. After an error
    /// none of them is applied, as far as can be determined.
    pub(super) fn run_batch(&mut self, batch: &mut Batch) -> rusqlite::Result<CommitOutcome> {
        let always_sync = batch.iter().any(|request| request.options().always_sync);
        let before = self.conn.total_changes();
        let wakeups = self.commit_work(Durability::Holders, |database, now| {
            database.leased.check(&database.conn)?;
            let tx = TaskTransaction::new(&database.conn, &mut database.queues, now);
            let mut tx = tx.with_leased(&mut database.leased);
            for request in batch {
                request.run(&mut tx)?;
            }
            tx.finish()
        });
        let wakeups = wakeups.inspect_err(|_| {
            self.queues.clear();
            self.leased.clear();
        })?;
        Ok(CommitOutcome { wakeups, needs_sync: always_sync || self.conn.total_changes() > before })
    }
}

/// Work of a caller, with the channel for its result.
struct CallerRequest<T, F> {
    options: WriteOptions,
    work: F,
    result: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

/// Returns a request and the receiver of its answer.
pub(super) fn write_request<T: Send + 'static>(
    options: WriteOptions,
    work: impl FnMut(&mut TaskTransaction<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (Box<dyn WriteRequest>, oneshot::Receiver<Result<T>>) {
    let (reply, answer) = oneshot::channel();
    (Box::new(CallerRequest { options, work, result: None, reply }), answer)
}

impl<T: Send, F> WriteRequest for CallerRequest<T, F>
where
    F: FnMut(&mut TaskTransaction<'_>) -> rusqlite::Result<T> + Send,
{
    fn run(&mut self, tx: &mut TaskTransaction<'_>) -> rusqlite::Result<()> {
        self.result = Some((self.work)(tx)?);
        Ok(())
    }

    fn options(&self) -> WriteOptions {
        self.options
    }

    fn answer(self: Box<Self>, done: Result<(), Error>) {
        let Self { result, reply, .. } = *self;
        if let Some(answer) = done.map(|()| result).transpose() {
            // A caller that has dropped its future is treated like one whose answer was lost.
            let _ = reply.send(answer);
        }
    }
}

/// Sends the same result to all requests.
pub(super) fn answer_all(batch: Batch, done: &Result<(), Error>) {
    for request in batch {
        request.answer(done.clone());
    }
}
