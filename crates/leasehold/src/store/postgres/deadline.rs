//! Until when a statement may begin, for where a connection that was given up cannot be ended: behind a pooler.
//!
//! What may take a lock, a place in a queue or a task carries a deadline on the server's clock. The client knows a reading of
//! that clock and the moment at which it arrived; from then on the server's clock has gone on at least as far as its own,
//! less what two clocks drift apart. So it can name a time that the server's clock will have passed when the client
//! gives up. A statement that comes too late does nothing. Neither does one after the server's clock was set ahead: of a
//! lock, the way under a row lock decides then, which needs no deadline, as the row is locked from its first statement
//! to its last; tasks are leased again after the next reading.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_postgres::Client;

use crate::store::Moment;

/// Whether a statement has come in time: `$until` is the latest time of the server, in µs, at which it may begin.
pub(super) const IN_TIME: &str =
    "($until::bigint IS NULL OR (extract(epoch FROM clock_timestamp()) * 1000000)::bigint <= $until::bigint)";

/// A statement may begin for this long after it was sent: its client gives up later, see [`STEP`](super::session::STEP).
const BEGIN_WITHIN: Duration = Duration::from_secs(4);
/// No two clocks drift apart faster than one part in this many.
const DRIFT: u32 = 1000;
/// A reading of the server's clock is used for this long.
const FRESH: Duration = Duration::from_secs(15);

/// What is known of the server's clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock(Mutex<Option<Reading>>);

/// A reading of the server's clock in µs, and the moment at which it arrived.
#[derive(Debug, Clone, Copy)]
struct Reading {
    server: i64,
    at: Moment,
}

impl ServerClock {
    /// The server's time that will have passed when a statement that is sent now is given up.
    pub(super) async fn until(&self, client: &Client) -> Result<i64, tokio_postgres::Error> {
        let sent = Moment::now();
        let known = self.known().filter(|known| sent.after(known.at) < FRESH);
        let reading = match known {
            Some(known) => known,
            None => self.read(client).await?,
        };
        Ok(reading.until(sent))
    }

    /// Forgets what is known: the server's clock may have been set.
    pub(super) fn forget(&self) {
        *self.known() = None;
    }

    async fn read(&self, client: &Client) -> Result<Reading, tokio_postgres::Error> {
        let now = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let rows = client.query_typed(now, &[]).await?;
        let server = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        let reading = Reading { server, at: Moment::now() };
        *self.known() = Some(reading);
        Ok(reading)
    }

    fn known(&self) -> MutexGuard<'_, Option<Reading>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reading {
    /// For a statement that was begun at `sent`, perhaps before the reading arrived.
    fn until(self, sent: Moment) -> i64 {
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
        // It was 100 s on the server when the answer was made, some time before it arrived at 7 s.
        let reading = Reading { server: 100_000_000, at: Moment::from_micros(7_000_000) };
        let sent = Moment::from_micros(9_000_000);
        let until = reading.until(sent);
        // The client's clock is as much too fast as a clock can be.
        let given_up = BEGIN_WITHIN + Duration::from_secs(2);
        let server =
            100_000_000 + i64::try_from(given_up.saturating_sub(given_up / DRIFT).as_micros()).unwrap();
        assert!(until <= server, "{until} is after {server}");
        assert!(until > 105_900_000, "{until} leaves no time");
        // The reading came with the statement itself: its time counts from before it was asked for.
        assert!(reading.until(Moment::from_micros(6_500_000)) <= 103_500_000);
    }
}
