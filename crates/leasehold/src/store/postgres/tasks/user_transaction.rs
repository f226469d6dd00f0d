//! Adding tasks in a transaction of the caller: they exist if, and only if, the transaction is
//! committed.

use std::sync::Arc;

use async_trait::async_trait;
use tokio_postgres::{GenericClient, Row};

use super::enqueue;
use super::insert_batcher::{insert, sorted_by_id};
use super::notifier::{QueueChange, WorkerNotifier};
use super::pool::{Executor, Pool};
use super::store::PostgresTasks;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Enqueued, NewTask};
use crate::store::postgres::columns::Param;
use crate::store::postgres::sql::{Sql, SqlTexts};

/// Result of adding tasks in a transaction that is not committed yet.
#[derive(Debug)]
#[must_use = "workers learn of the tasks at once only if they are woken after the commit"]
#[non_exhaustive]
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
    notifier: Arc<WorkerNotifier>,
    changes: Vec<QueueChange>,
}

impl NotifyWorkers {
    /// Notifies the workers of this and other processes. Has no use before the commit. Without it,
    /// workers find the tasks at their next poll, within a second or two.
    pub fn after_commit(self) {
        self.notifier.notify(&self.pool, &self.changes);
    }
}

impl PostgresTasks {
    pub(crate) async fn enqueue_in_transaction<C: GenericClient + Sync>(
        &self,
        client: &C,
        new: &[NewTask],
    ) -> Result<PendingEnqueue> {
        // Queues are created outside of the caller's transaction: otherwise other callers that add
        // to a new queue would wait for the end of this transaction.
        self.create_queues(new).await?;
        let executor = UserTransaction { client, texts: &self.pool.connector.texts };
        let now = self.pool.connector.now();
        let outcome = if new.iter().all(enqueue::is_simple) {
            let since = insert(&executor, &sorted_by_id(new), now).await;
            since.map(|since| Some(enqueue::all_enqueued(new, since)))
        } else {
            enqueue::enqueue_in(&executor, new, now).await
        };
        let Some((answers, changes)) = self.pool.connector.map_error(outcome)? else {
            let message = "one of these tasks was added concurrently by another session";
            let hint = "roll back and retry the transaction";
            return Err(Error::store(StoreErrorKind::Unavailable, message, hint));
        };
        let wake = NotifyWorkers { pool: self.pool.clone(), notifier: self.notifier.clone(), changes };
        Ok(PendingEnqueue { answers, wake })
    }
}

struct UserTransaction<'a, C> {
    client: &'a C,
    texts: &'a SqlTexts,
}

#[async_trait]
impl<C: GenericClient + Sync> Executor for UserTransaction<'_, C> {
    async fn query(
        &self,
        sql: &'static Sql,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let text = self.texts.get(sql);
        let params: Vec<_> = params.iter().copied().zip(text.types.iter().cloned()).collect();
        self.client.query_typed(&text.sql, &params).await
    }
}
