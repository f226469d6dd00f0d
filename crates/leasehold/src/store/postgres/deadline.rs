//! Deadlines until which a statement may begin, for connections behind a pooler, where an abandoned
//! connection cannot be ended.
//!
//! A statement that may acquire a lock, join a queue or lease a task carries a deadline on the
//! server's clock. The client keeps a reading of that clock and the instant at which the reading
//! arrived; since then the server's clock has advanced at least as far as the client's, less the
//! maximum drift between two clocks. So the client can compute a time that the server's clock will
//! have passed when the client gives up. A statement that starts after its deadline does nothing.
//! Neither does a statement that starts after the server's clock was set ahead: operations on locks
//! then take the slow path under a row lock, which needs no deadline because the row is locked from
//! the first statement to the last; tasks are leased again after the next reading.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::Client;

use crate::store::BootInstant;

/// Condition that a statement starts in time: `$until` is the latest server time, in µs, at which
/// it may begin.
pub(super) const IN_TIME: &str =
    "($until::bigint IS NULL OR (extract(epoch FROM clock_timestamp()) * 1000000)::bigint <= $until::bigint)";

/// Time after sending within which a statement may begin; its client gives up later, see
/// [`STEP`](super::session::STEP).
const BEGIN_WITHIN: Duration = Duration::from_secs(4);
/// Maximum drift between two clocks, as one part in this many.
const DRIFT: u32 = 1000;
/// Maximum age of a reading of the server's clock.
const FRESH: Duration = Duration::from_secs(15);

/// Latest reading of the server's clock, if there is one.
#[derive(Debug, Default)]
pub(super) struct ServerClock(Mutex<Option<Reading>>);

/// Reading of the server's clock in µs, and the instant at which the reading arrived.
#[derive(Debug, Clone, Copy)]
struct Reading {
    server: i64,
    at: BootInstant,
}

impl ServerClock {
    /// Returns a server time that will have passed when the client gives up a statement that is
    /// sent now.
    pub(super) async fn until(&self, client: &Client) -> Result<i64, tokio_postgres::Error> {
        let sent = BootInstant::now();
        let known = self.known().filter(|known| sent.after(known.at) < FRESH);
        let reading = match known {
            Some(known) => known,
            None => self.read(client).await?,
        };
        Ok(reading.until(sent))
    }

    /// Discards the reading, because the server's clock may have been set.
    pub(super) fn forget(&self) {
        *self.known() = None;
    }

    async fn read(&self, client: &Client) -> Result<Reading, tokio_postgres::Error> {
        let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = client.query_typed(now, &[]).await?;
        let server = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        let reading = Reading { server, at: BootInstant::now() };
        *self.known() = Some(reading);
        Ok(reading)
    }

    fn known(&self) -> MutexGuard<'_, Option<Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// Returns the deadline of a statement that was begun at `sent`, possibly before the reading
    /// arrived.
    fn until(self, sent: BootInstant) -> i64 {
        let ahead = (sent.after(self.at) + BEGIN_WITHIN).saturating_sub(self.at.after(sent));
        let ahead = ahead.saturating_sub(ahead / DRIFT);
        self.server.saturating_add(i64::try_from(ahead.as_micros()).unwrap_or(i64::MAX))
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
        let until = reading.until(sent);
        // The client's clock runs fast by the maximum drift.
        let given_up = BEGIN_WITHIN + Duration::from_secs(2);
        let server =
            100_000_000 + i64::try_from(given_up.saturating_sub(given_up / DRIFT).as_micros()).unwrap();
        assert!(until <= server, "{until} is after {server}");
        assert!(until > 105_900_000, "{until} leaves no time");
        // The reading arrived after the statement was begun: the deadline counts from before the
        // reading was requested.
        assert!(reading.until(BootInstant::from_micros(6_500_000)) <= 103_500_000);
    }
}
