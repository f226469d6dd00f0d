//! Batches calls of several callers into one transaction.

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::shelf::{News, Shelf};
use crate::error::{Error, Result};
use crate::model::Timestamp;
use crate::store::sqlite::batch::Ledger;

/// Writing call: runs in a transaction and is answered when that transaction has been synced.
pub(in crate::store::sqlite) trait Errand: Send {
    /// Runs the call. May run again if the transaction was rolled back.
    fn run(&mut self, tables: &mut Shelf<'_>) -> rusqlite::Result<()>;

    /// Approximate number of tasks of the call.
    fn weight(&self) -> usize;

    /// Whether the answer depends on what other callers may have written just before.
    fn promises(&self) -> bool;

    /// Sends the result to the caller.
    fn answer(self: Box<Self>, done: Result<(), Error>);
}

/// Errands that share a transaction.
pub(in crate::store::sqlite) type Errands = Vec<Box<dyn Errand>>;

/// Remaining work after a transaction.
pub(in crate::store::sqlite) struct Aftermath {
    pub(in crate::store::sqlite) news: News,
    /// Whether the answers must wait for the sync.
    pub(in crate::store::sqlite) waits: bool,
}

impl Ledger {
    /// Runs errands in one transaction, which is not synced yet when this returns. After an error
    /// none of them is applied, as far as can be determined.
    pub(in crate::store::sqlite) fn do_errands(
        &mut self,
        errands: &mut Errands,
    ) -> rusqlite::Result<Aftermath> {
        let promises = errands.iter().any(|errand| errand.promises());
        let before = self.conn().total_changes();
        let news = self.transact(|conn, queues, now| {
            let mut tables = Shelf::new(conn, queues, now);
            for errand in errands {
                errand.run(&mut tables)?;
            }
            tables.close()
        })?;
        Ok(Aftermath { news, waits: promises || self.conn().total_changes() > before })
    }

    /// Reads the tables of tasks.
    pub(in crate::store::sqlite) fn look<T>(
        &mut self,
        look: impl FnOnce(&mut Shelf<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let (conn, queues, now): (&Connection, _, Timestamp) = self.parts();
        look(&mut Shelf::new(conn, queues, now))
    }
}

/// Properties of a call.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::sqlite) struct Call {
    /// Approximate number of tasks of the call.
    pub(in crate::store::sqlite) weight: usize,
    /// Whether the answer depends on what other callers may have written just before.
    pub(in crate::store::sqlite) promises: bool,
}

/// Work of a caller, with the channel for its result.
struct Order<T, F> {
    call: Call,
    work: F,
    found: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

/// Returns an errand and the receiver of its answer.
pub(in crate::store::sqlite) fn errand<T: Send + 'static>(
    call: Call,
    work: impl FnMut(&mut Shelf<'_>) -> rusqlite::Result<T> + Send + 'static,
) -> (Box<dyn Errand>, oneshot::Receiver<Result<T>>) {
    let (reply, answer) = oneshot::channel();
    (Box::new(Order { call, work, found: None, reply }), answer)
}

impl<T: Send, F: FnMut(&mut Shelf<'_>) -> rusqlite::Result<T> + Send> Errand for Order<T, F> {
    fn run(&mut self, tables: &mut Shelf<'_>) -> rusqlite::Result<()> {
        self.found = Some((self.work)(tables)?);
        Ok(())
    }

    fn weight(&self) -> usize {
        self.call.weight
    }

    fn promises(&self) -> bool {
        self.call.promises
    }

    fn answer(self: Box<Self>, done: Result<(), Error>) {
        let Self { found, reply, .. } = *self;
        if let Some(answer) = done.map(|()| found).transpose() {
            // A caller that has dropped its future is treated like one whose answer was lost.
            let _ = reply.send(answer);
        }
    }
}

/// Sends the same result to all errands.
pub(in crate::store::sqlite) fn answer_all(errands: Errands, done: &Result<(), Error>) {
    for errand in errands {
        errand.answer(done.clone());
    }
}
