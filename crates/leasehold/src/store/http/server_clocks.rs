//! Clocks of the servers, so that a request can carry a deadline until which it may begin.
//!
//! Each response carries a reading of the clock of the server that sent it. Since the response
//! arrived, that clock has advanced at least as far as the clock of this machine, minus the possible
//! drift between two clocks. So a request can name a reading that every server will certainly have
//! passed when the call's deadline has passed on this machine.

use std::sync::Mutex;
use std::time::Duration;

use uuid::Uuid;

use crate::store::BootInstant;
use crate::store::protocol::Tick;
use crate::store::support::mutex::lock;

/// Maximum drift between two clocks: one part in this number.
const DRIFT: u64 = 1000;
/// Time after which a server that has not responded, while another has, is dropped: it has
/// exited, or it no longer serves this address.
const STALE_AFTER: Duration = Duration::from_mins(1);
/// Maximum number of servers behind one address that are tracked.
const MAX_SERVERS: usize = 8;

/// Latest clock readings of the servers behind one address, newest first.
#[derive(Debug, Default)]
pub(super) struct ServerClocks(Mutex<Vec<ClockReading>>);

/// Reading of a server's clock, and an instant after that reading.
#[derive(Debug)]
struct ClockReading {
    tick: Tick,
    at: BootInstant,
}

/// Deadline until which a request may begin, on the clocks of the servers that could begin it.
#[derive(Debug, Default)]
pub(super) struct StartDeadline {
    pub(super) header: String,
    pub(super) servers: Vec<Uuid>,
}

impl ServerClocks {
    /// Records a clock reading that a server has just sent.
    pub(super) fn observe(&self, tick: Tick, at: BootInstant) {
        let mut readings = lock(&self.0);
        readings
            .retain(|reading| reading.tick.instance != tick.instance && at.after(reading.at) < STALE_AFTER);
        readings.insert(0, ClockReading { tick, at });
        readings.truncate(MAX_SERVERS);
    }

    /// Whether a server has answered at this address.
    pub(super) fn has_reading(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Returns the clock readings that let no server begin a request after `deadline` of this machine.
    pub(super) fn start_deadline(&self, deadline: BootInstant) -> StartDeadline {
        let readings = lock(&self.0);
        let servers = readings.iter().map(|reading| reading.tick.instance).collect();
        let ticks: Vec<_> = readings.iter().map(|reading| reading.at_deadline(deadline).write()).collect();
        StartDeadline { header: ticks.join(","), servers }
    }
}

impl ClockReading {
    /// Returns the reading that this clock has certainly passed at `deadline` of this machine.
    fn at_deadline(&self, deadline: BootInstant) -> Tick {
        let elapsed = u64::try_from(deadline.after(self.at).as_micros()).unwrap_or(u64::MAX);
        let elapsed = elapsed - elapsed.div_ceil(DRIFT);
        Tick { instance: self.tick.instance, micros: self.tick.micros.saturating_add(elapsed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_passed_its_tick_once_the_deadline_has_passed_here() {
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let clocks = ServerClocks::default();
        assert!(clocks.start_deadline(BootInstant::now()).servers.is_empty() && !clocks.has_reading());
        let at = BootInstant::from_micros(50_000_000);
        clocks.observe(Tick { instance: first, micros: 7_000_000 }, at);
        clocks.observe(Tick { instance: second, micros: 100 }, at);
        let deadline = clocks.start_deadline(at.plus(Duration::from_secs(5)));
        assert_eq!(deadline.servers, [second, first]);
        let ticks = Tick::read(&deadline.header);
        assert_eq!(ticks[1].micros, 7_000_000 + 4_995_000, "a little less than five seconds later");
        // A new reading replaces the older one, and a silent server is dropped.
        clocks.observe(Tick { instance: first, micros: 90_000_000 }, at.plus(Duration::from_secs(70)));
        assert_eq!(clocks.start_deadline(at).servers, [first]);
    }
}
