//! Connections that the client abandoned while a statement may have been in flight.
//!
//! A statement that is delayed on the wire until its client has given up must not take effect after
//! the client's next operation: an acquire that arrives after the release or the leave that follows
//! it would hold a lock that no caller knows of. Therefore an abandoned connection is terminated on
//! the server before the next operation is sent on any other connection. Behind a pooler the client
//! cannot know which server process a connection uses; there a statement carries a deadline, see
//! [`super::deadline`].

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::trouble::Fail;

/// Poll interval while waiting for the server to end a connection.
const LOOK: Duration = Duration::from_millis(5);

/// Process of the server. The start time is part of the identity because the server may reuse a
/// pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Backend {
    pid: i32,
    started: String,
}

impl Backend {
    /// Returns the process that serves this connection, or `None` if the server does not report its
    /// start time: without a start time the process cannot be distinguished from a later one with
    /// the same pid.
    pub(super) async fn of(client: &Client) -> Result<Option<Self>, tokio_postgres::Error> {
        let me = "SELECT pid, extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = pg_backend_pid()";
        let rows = client.query_typed(me, &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (pid, started) = (row.try_get(0)?, row.try_get::<_, Option<String>>(1)?);
        Ok(started.map(|started| Self { pid, started }))
    }

    /// Terminates this process through another connection, and returns once the process has exited
    /// and none of its statements can take effect.
    pub(super) async fn end(&self, by: &Client) -> Result<(), Fail> {
        let params: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&self.pid, Type::INT4), (&self.started, Type::TEXT)];
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2";
        while !by.query_typed(end, &params).await?.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Abandoned connections that have not been ended on the server yet.
#[derive(Debug, Default)]
pub(super) struct Abandoned {
    list: Mutex<Vec<Backend>>,
    count: AtomicUsize,
    /// Held while the connections are ended, so that no caller proceeds before that.
    ending: tokio::sync::Mutex<()>,
}

impl Abandoned {
    /// Records a connection that is abandoned while a statement may be in flight.
    pub(super) fn add(&self, backend: Option<&Backend>) {
        let Some(backend) = backend else { return };
        let mut list = self.list();
        if !list.contains(backend) {
            list.push(backend.clone());
            self.count.store(list.len(), Ordering::Release);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Ends all of them through another connection. Must complete before any statement is sent that
    /// an abandoned one must not follow.
    pub(super) async fn end_all(&self, by: &Client) -> Result<(), Fail> {
        if self.is_empty() {
            return Ok(());
        }
        let _ending = self.ending.lock().await;
        loop {
            let next = self.list().last().cloned();
            let Some(backend) = next else { return Ok(()) };
            match backend.end(by).await {
                // Retrying does not help: the role lacks the privilege.
                Err(Fail::Said(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                    tracing::warn!(%error, "a connection that was given up cannot be ended on the server");
                }
                ended => ended?,
            }
            let mut list = self.list();
            list.retain(|other| *other != backend);
            self.count.store(list.len(), Ordering::Release);
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Backend>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
