//! The servers' own clocks, so that a request can say until when it may begin.
//!
//! Each answer carries a reading of the clock of the server that gave it. From the moment it arrived, that clock has gone
//! on at least as far as ours has, less what two clocks may drift apart. So a request can name a reading that every
//! server will have passed for certain when the call's time is over here.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::store::Moment;
use crate::store::protocol::Tick;

/// No two clocks drift apart faster than one part in so many.
const DRIFT: u64 = 1000;
/// A server that has said nothing for so long, while another has, is gone or was another's.
const HEARD: Duration = Duration::from_mins(1);
/// So many servers behind one address are kept apart.
const SERVERS: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Clocks(Mutex<Vec<Heard>>);

/// What a server's clock said, and a moment after that.
#[derive(Debug)]
struct Heard {
    tick: Tick,
    at: Moment,
}

/// Until when a request may begin, by the clocks of those servers that could begin it.
#[derive(Debug, Default)]
pub(super) struct Until {
    pub(super) header: String,
    pub(super) servers: Vec<Uuid>,
}

impl Clocks {
    /// What a server said, just now.
    pub(super) fn hear(&self, tick: Tick, at: Moment) {
        let mut heard = self.heard();
        heard.retain(|one| one.tick.instance != tick.instance && at.after(one.at) < HEARD);
        heard.insert(0, Heard { tick, at });
        heard.truncate(SERVERS);
    }

    /// What to say so that no server begins when it is `deadline` here.
    pub(super) fn until(&self, deadline: Moment) -> Until {
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
    fn end(&self, deadline: Moment) -> Tick {
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
        assert!(clocks.until(Moment::now()).servers.is_empty());
        let at = Moment::from_micros(50_000_000);
        clocks.hear(Tick { instance: one, micros: 7_000_000 }, at);
        clocks.hear(Tick { instance: two, micros: 100 }, at);
        let until = clocks.until(at.plus(Duration::from_secs(5)));
        assert_eq!(until.servers, [two, one]);
        let ticks = Tick::read(&until.header);
        assert_eq!(ticks[1].micros, 7_000_000 + 4_995_000, "a little less than five seconds later");
        // Heard again: the older reading counts no more. And whoever is silent is forgotten.
        clocks.hear(Tick { instance: one, micros: 90_000_000 }, at.plus(Duration::from_secs(70)));
        assert_eq!(clocks.until(at).servers, [one]);
    }
}
