//! Calls of several callers in one transaction.

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::shelf::{News, Shelf};
use crate::error::{Error, Result};
use crate::model::Timestamp;
use crate::store::sqlite::batch::Ledger;

/// A call that writes: done in a transaction, and answered when that has reached the disk.
pub(in crate::store::sqlite) trait Errand: Send {
    /// Does it. It may be done again if the transaction came to nothing.
    fn run(&mut self, tables: &mut Shelf<'_>) -> rusqlite::Result<()>;

    /// About how many tasks it is about.
    fn weight(&self) -> usize;

    /// Whether its answer promises something about what others may have written just before.
    fn promises(&self) -> bool;

    /// Tells the caller what came of it.
    fn answer(self: Box<Self>, done: Result<(), Error>);
}

/// Those that share a transaction.
pub(in crate::store::sqlite) type Errands = Vec<Box<dyn Errand>>;

/// What is left to do after a transaction.
pub(in crate::store::sqlite) struct Aftermath {
    pub(in crate::store::sqlite) news: News,
    /// Whether the answers have to wait for the disk.
    pub(in crate::store::sqlite) waits: bool,
}

impl Ledger {
    /// Does errands in one transaction. It has not reached the disk when this returns. On an error none of them has
    /// happened, as far as can be known.
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

    /// Looks at the tables of tasks.
    pub(in crate::store::sqlite) fn look<T>(
        &mut self,
        look: impl FnOnce(&mut Shelf<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let (conn, queues, now): (&Connection, _, Timestamp) = self.parts();
        look(&mut Shelf::new(conn, queues, now))
    }
}

/// What kind of call it is.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::sqlite) struct Call {
    /// About how many tasks it is about.
    pub(in crate::store::sqlite) weight: usize,
    /// Whether its answer promises something about what others may have written just before.
    pub(in crate::store::sqlite) promises: bool,
}

/// What a caller wants done, and where it waits for the answer.
struct Order<T, F> {
    call: Call,
    work: F,
    found: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

/// An errand, and where its answer will be.
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
            // A caller that has gone away is as one whose answer was lost.
            let _ = reply.send(answer);
        }
    }
}

/// Tells all of them the same.
pub(in crate::store::sqlite) fn answer_all(errands: Errands, done: &Result<(), Error>) {
    for errand in errands {
        errand.answer(done.clone());
    }
}
