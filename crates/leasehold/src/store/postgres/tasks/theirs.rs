//! Adding tasks in a transaction of the caller: they are there if, and only if, it is committed.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::{GenericClient, Row};

use super::add::{self, Added};
use super::link::Line;
use super::pool::Pool;
use super::sql::Sql;
use super::store::PostgresTasks;
use super::text::Texts;
use super::wakes::{Stir, Wakes};
use crate::error::{Error, Result, Trouble};
use crate::model::{Enqueued, NewTask};
use crate::store::postgres::session::Param;

/// What came of adding tasks in a transaction that is yet to be committed.
#[derive(Debug)]
#[must_use = "workers learn of the tasks at once only if they are woken after the commit"]
pub struct EnqueuedInside {
    /// What came of each task, in their order.
    pub answers: Vec<Enqueued>,
    /// Wakes the workers; to be used after the commit.
    pub wake: WakeWorkers,
}

/// Wakes workers for tasks that were added in a transaction of the caller.
#[derive(Debug)]
pub struct WakeWorkers {
    pool: Arc<Pool>,
    wakes: Arc<Wakes>,
    stirs: Vec<Stir>,
}

impl WakeWorkers {
    /// Tells workers, here and elsewhere, that there is something to do. Before the commit it is of no use. Left out, they
    /// find the tasks when they next look, within a second or two.
    pub fn after_commit(self) {
        self.wakes.tell(&self.pool, &self.stirs);
    }
}

impl PostgresTasks {
    pub(in crate::store::postgres) async fn enqueue_inside<C: GenericClient + Sync>(
        &self,
        client: &C,
        new: &[NewTask],
    ) -> Result<EnqueuedInside> {
        // Queues are made known outside: others who add to a new one would wait for the end of this transaction.
        self.make_known(new).await?;
        let line = Theirs { client, texts: &self.pool.texts };
        let now = self.pool.gate.now();
        let added = if new.iter().all(add::is_plain) {
            let since = add::plain(&line, &add::in_order(new), now).await;
            since.map(|since| Some(add::all_added(new, since)))
        } else {
            add::by_the_rules(&line, new, now).await
        };
        let added = added.map_err(|fail| fail.explain(&self.pool.gate.place))?;
        let Some((answers, stirs)): Option<Added> = added else {
            let message = "one of these tasks was added by somebody else at the same time";
            return Err(Error::store(Trouble::Unavailable, message, "roll back and try again"));
        };
        let wake = WakeWorkers { pool: self.pool.clone(), wakes: self.wakes.clone(), stirs };
        Ok(EnqueuedInside { answers, wake })
    }
}

/// A connection of the caller.
struct Theirs<'a, C> {
    client: &'a C,
    texts: &'a Texts,
}

#[async_trait]
impl<C: GenericClient + Sync> Line for Theirs<'_, C> {
    async fn ask(&self, what: Sql, params: &[Param<'_>]) -> Result<Vec<Row>, tokio_postgres::Error> {
        let text = self.texts.get(what);
        let params: Vec<_> = params.iter().copied().zip(text.types.iter().cloned()).collect();
        self.client.query_typed(&text.sql, &params).await
    }
}
