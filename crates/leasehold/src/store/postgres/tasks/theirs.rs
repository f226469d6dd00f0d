//! Adding tasks in a transaction of the caller: they exist if, and only if, the transaction is
//! committed.

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
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Enqueued, NewTask};
use crate::store::postgres::session::Param;

/// Result of adding tasks in a transaction that is not committed yet.
#[derive(Debug)]
#[must_use = "workers learn of the tasks at once only if they are woken after the commit"]
pub struct PendingEnqueue {
    /// Result for each task, in the order of the request.
    pub answers: Vec<Enqueued>,
    /// Notifies the workers; to be used after the commit.
    pub wake: NotifyWorkers,
}

/// Notification of workers about tasks that were added in a transaction of the caller.
#[derive(Debug)]
pub struct NotifyWorkers {
    pool: Arc<Pool>,
    wakes: Arc<Wakes>,
    stirs: Vec<Stir>,
}

impl NotifyWorkers {
    /// Notifies the workers of this and other processes. Has no use before the commit. Without it,
    /// workers find the tasks at their next poll, within a second or two.
    pub fn after_commit(self) {
        self.wakes.tell(&self.pool, &self.stirs);
    }
}

impl PostgresTasks {
    pub(in crate::store::postgres) async fn enqueue_in_transaction<C: GenericClient + Sync>(
        &self,
        client: &C,
        new: &[NewTask],
    ) -> Result<PendingEnqueue> {
        // Queues are created outside of the caller's transaction: otherwise other callers that add
        // to a new queue would wait for the end of this transaction.
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
            return Err(Error::store(StoreErrorKind::Unavailable, message, "roll back and try again"));
        };
        let wake = NotifyWorkers { pool: self.pool.clone(), wakes: self.wakes.clone(), stirs };
        Ok(PendingEnqueue { answers, wake })
    }
}

/// Connection of the caller.
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
