//! Prevention of statements that take effect late.
//!
//! A statement that is delayed on the wire until its client has given up must not take effect after
//! the client's next operation: an acquire that arrives after the release or the withdrawal that
//! follows it would hold a lock that no caller knows of. Therefore a connection that the client
//! abandoned while a statement may have been in flight is terminated on the server before the next
//! operation is sent on any other connection.
//!
//! Behind a pooler the client cannot know which server process a connection uses. There, a statement
//! that may acquire a lock, join a queue or lease a task carries a deadline on the server's clock,
//! until which it may begin. The client keeps a reading of that clock and the instant at which the
//! reading arrived; since then the server's clock has advanced at least as far as the client's, less
//! the maximum drift between two clocks. So the client can compute a time that the server's clock
//! will have passed when the client gives up. A statement that starts after its deadline does
//! nothing. Neither does a statement that starts after the server's clock was set ahead: operations
//! on locks then take the slow path under a row lock, which needs no deadline because the row is
//! locked from the first statement to the last; tasks are leased again after the next reading.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use crate::store::BootInstant;
use crate::store::postgres::columns::Param;
use crate::store::postgres::error::PgError;
use crate::store::support::mutex::lock;

/// Poll interval while waiting for the server to terminate a connection.
const TERMINATE_POLL: Duration = Duration::from_millis(5);
/// Condition that a statement starts in time: `$until` is the latest server time, in µs, at which
/// it may begin.
pub(crate) const IN_TIME: &str =
    "($until::bigint IS NULL OR (extract(epoch FROM clock_timestamp()) * 1000000)::bigint <= $until::bigint)";

/// Time after sending within which a statement may begin; its client gives up later, see
/// [`STATEMENT_TIMEOUT`](super::session::STATEMENT_TIMEOUT).
const BEGIN_WITHIN: Duration = Duration::from_secs(4);
/// Maximum drift between two clocks, as one part in this many.
const MAX_DRIFT: u32 = 1000;
/// Maximum age of a reading of the server's clock.
const MAX_READING_AGE: Duration = Duration::from_secs(15);

/// Process of the server. The start time is part of the identity because the server may reuse a
/// pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pid: i32,
    started: String,
}

impl Backend {
    /// Returns a setting of this connection, if it has it, and the process that serves the connection, or
    /// `None` if the server does not report its start time: without a start time the process cannot be
    /// distinguished from a later one with the same pid.
    pub(crate) async fn current(
        client: &Client,
        setting: &str,
    ) -> Result<(Option<String>, Option<Self>), tokio_postgres::Error> {
        let sql = "SELECT current_setting($1, true), p.pid, extract(epoch FROM a.backend_start)::text
                   FROM (SELECT pg_backend_pid() AS pid) p LEFT JOIN pg_stat_activity a ON a.pid = p.pid";
        let rows = client.query_typed(sql, &[(&setting, Type::TEXT)]).await?;
        let Some(row) = rows.first() else { return Ok((None, None)) };
        let (pid, started) = (row.try_get(1)?, row.try_get::<_, Option<String>>(2)?);
        Ok((row.try_get(0)?, started.map(|started| Self { pid, started })))
    }

    /// Terminates this process through another connection, and returns once the process has exited
    /// and none of its statements can take effect.
    pub(crate) async fn terminate(&self, by: &Client) -> Result<(), PgError> {
        let params: [(Param<'_>, Type); 2] = [(&self.pid, Type::INT4), (&self.started, Type::TEXT)];
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE pid = $1 AND extract(epoch FROM backend_start)::text = $2";
        while !by.query_typed(sql, &params).await?.is_empty() {
            tokio::time::sleep(TERMINATE_POLL).await;
        }
        Ok(())
    }
}

/// Abandoned connections that have not been terminated on the server yet.
#[derive(Debug, Default)]
pub(crate) struct AbandonedBackends {
    list: Mutex<Vec<Backend>>,
    count: AtomicUsize,
    /// Held while the connections are terminated, so that no caller proceeds before that.
    terminating: tokio::sync::Mutex<()>,
}

impl AbandonedBackends {
    /// Records a connection that is abandoned while a statement may be in flight.
    pub(crate) fn add(&self, backend: Option<&Backend>) {
        let Some(backend) = backend else { return };
        let mut list = lock(&self.list);
        if !list.contains(backend) {
            list.push(backend.clone());
            self.count.store(list.len(), Ordering::Release);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Terminates all of them through another connection. Must complete before any statement is sent that
    /// an abandoned one must not follow.
    pub(crate) async fn terminate_all(&self, by: &Client) -> Result<(), PgError> {
        if self.is_empty() {
            return Ok(());
        }
        let _terminating = self.terminating.lock().await;
        loop {
            let next = lock(&self.list).last().cloned();
            let Some(backend) = next else { return Ok(()) };
            match backend.terminate(by).await {
                // Retrying does not help: the role lacks the privilege.
                Err(PgError::Driver(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
                    tracing::warn!(%error, "an abandoned connection cannot be terminated on the server");
                }
                terminated => terminated?,
            }
            let mut list = lock(&self.list);
            list.retain(|other| *other != backend);
            self.count.store(list.len(), Ordering::Release);
        }
    }
}

/// Latest reading of the server's clock, if there is one.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<Option<Reading>>);

/// Reading of the server's clock in µs, and the instant at which the reading arrived.
#[derive(Debug, Clone, Copy)]
struct Reading {
    server: i64,
    at: BootInstant,
}

impl ServerClock {
    /// Returns a server time that will have passed when the client gives up a statement that is
    /// sent now.
    pub(crate) async fn deadline(&self, client: &Client) -> Result<i64, tokio_postgres::Error> {
        let sent = BootInstant::now();
        let last = lock(&self.0).filter(|last| sent.after(last.at) < MAX_READING_AGE);
        let reading = match last {
            Some(last) => last,
            None => self.read(client).await?,
        };
        Ok(reading.deadline(sent))
    }

    /// Discards the reading, because the server's clock may have been set.
    pub(crate) fn reset(&self) {
        *lock(&self.0) = None;
    }

    async fn read(&self, client: &Client) -> Result<Reading, tokio_postgres::Error> {
        let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = client.query_typed(now, &[]).await?;
        let server = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        let reading = Reading { server, at: BootInstant::now() };
        *lock(&self.0) = Some(reading);
        Ok(reading)
    }
}

impl Reading {
    /// Returns the deadline of a statement that was begun at `sent`, possibly before the reading
    /// arrived.
    fn deadline(self, sent: BootInstant) -> i64 {
        let offset = (sent.after(self.at) + BEGIN_WITHIN).saturating_sub(self.at.after(sent));
        let offset = offset.saturating_sub(offset / MAX_DRIFT);
        self.server.saturating_add(i64::try_from(offset.as_micros()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_clock_has_passed_the_deadline_when_the_client_gives_up() {
        // The server's clock read 100 s when the server produced the reading, some time before the
        // reading arrived at 7 s.
        let reading = Reading { server: 100_000_000, at: BootInstant::from_micros(7_000_000) };
        let sent = BootInstant::from_micros(9_000_000);
        let deadline = reading.deadline(sent);
        // The client's clock runs fast by the maximum drift.
        let given_up = BEGIN_WITHIN + Duration::from_secs(2);
        let server =
            100_000_000 + i64::try_from(given_up.saturating_sub(given_up / MAX_DRIFT).as_micros()).unwrap();
        assert!(deadline <= server, "{deadline} is after {server}");
        assert!(deadline > 105_900_000, "{deadline} leaves no time");
        // The reading arrived after the statement was begun: the deadline counts from before the
        // reading was requested.
        assert!(reading.deadline(BootInstant::from_micros(6_500_000)) <= 103_500_000);
    }
}
