//! Clocks of the servers, so that a request can carry a deadline until which it may begin.
//!
//! Each response carries a reading of the clock of the server that sent it. Since the response
//! arrived, that clock has advanced at least as far as the clock of this machine, minus the possible
//! drift between two clocks. So a request can name a reading that every server will certainly have
//! passed when the call's deadline has passed on this machine.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::store::BootInstant;
use crate::store::protocol::Tick;

/// Maximum drift between two clocks: one part in this number.
const DRIFT: u64 = 1000;
/// Time after which a server that has not responded, while another one has, is dropped: it has
/// exited, or it no longer serves this address.
const HEARD: Duration = Duration::from_mins(1);
/// Maximum number of servers behind one address that are tracked.
const SERVERS: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Clocks(Mutex<Vec<Heard>>);

/// Reading of a server's clock, and an instant after that reading.
#[derive(Debug)]
struct Heard {
    tick: Tick,
    at: BootInstant,
}

/// Deadline until which a request may begin, on the clocks of the servers that could begin it.
#[derive(Debug, Default)]
pub(super) struct Until {
    pub(super) header: String,
    pub(super) servers: Vec<Uuid>,
}

impl Clocks {
    /// Records a clock reading that a server has just sent.
    pub(super) fn hear(&self, tick: Tick, at: BootInstant) {
        let mut heard = self.heard();
        heard.retain(|one| one.tick.instance != tick.instance && at.after(one.at) < HEARD);
        heard.insert(0, Heard { tick, at });
        heard.truncate(SERVERS);
    }

    /// Returns the clock readings to send so that no server begins the request after `deadline` of
    /// this machine.
    pub(super) fn until(&self, deadline: BootInstant) -> Until {
        let heard = self.heard();
        let servers = heard.iter().map(|one| one.tick.instance).collect();
        let ends: Vec<_> = heard.iter().map(|one| one.end(deadline).write()).collect();
        Until { header: ends.join(","), servers }
    }

    fn heard(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Heard {
    fn end(&self, deadline: BootInstant) -> Tick {
        let passes = u64::try_from(deadline.after(self.at).as_micros()).unwrap_or(u64::MAX);
        let passes = passes - passes.div_ceil(DRIFT);
        Tick { instance: self.tick.instance, micros: self.tick.micros.saturating_add(passes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_passed_what_was_named_when_the_time_is_over_here() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let clocks = Clocks::default();
        assert!(clocks.until(BootInstant::now()).servers.is_empty());
        let at = BootInstant::from_micros(50_000_000);
        clocks.hear(Tick { instance: one, micros: 7_000_000 }, at);
        clocks.hear(Tick { instance: two, micros: 100 }, at);
        let until = clocks.until(at.plus(Duration::from_secs(5)));
        assert_eq!(until.servers, [two, one]);
        let ticks = Tick::read(&until.header);
        assert_eq!(ticks[1].micros, 7_000_000 + 4_995_000, "a little less than five seconds later");
        // A new reading replaces the older one, and a silent server is dropped.
        clocks.hear(Tick { instance: one, micros: 90_000_000 }, at.plus(Duration::from_secs(70)));
        assert_eq!(clocks.until(at).servers, [one]);
    }
}
