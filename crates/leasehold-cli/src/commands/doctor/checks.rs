//! Individual checks of `doctor`.

use std::time::Duration;

use leasehold::model::Timestamp;
use leasehold::store::{Capabilities, Hosts, this_process};

use super::report::Check;
use crate::config::Choice;
use crate::output::short;

/// Maximum difference between the store's clock and the wall clock without a warning.
const CLOCK_APART: Duration = Duration::from_secs(1);
/// Maximum response time of a store without a warning.
const SLOW: Duration = Duration::from_millis(500);

pub(super) fn version() -> Check {
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    // Not named "version": the engine may report its own version.
    Check::ok("leasehold", format!("{}, {system}", env!("CARGO_PKG_VERSION")))
}

pub(super) fn chosen(store: &Choice) -> Check {
    Check::ok("store", format!("{} ({})", store.shown(), store.origin))
}

pub(super) fn reachable(url: &str) -> Check {
    Check::ok("reachable", format!("opened {url}"))
}

pub(super) fn round_trip(took: Duration) -> Check {
    let millis = took.as_secs_f64() * 1000.0;
    if took < SLOW {
        return Check::ok("round trip", format!("{millis:.2} ms"));
    }
    let hint = "use a ttl of many round trips, or a store that is nearer";
    Check::warning("round trip", format!("{millis:.0} ms is slow"), hint)
}

/// Compares the clocks. Leases end by the store's clock alone, so a difference matters only to
/// people who compare times.
pub(super) fn clock(store: Timestamp, wall: jiff::Timestamp) -> Check {
    let wall = Timestamp::from_micros(u64::try_from(wall.as_microsecond()).unwrap_or(0));
    let (ahead, behind) = (store.since(wall), wall.since(store));
    let apart = ahead.max(behind);
    if apart <= CLOCK_APART {
        return Check::ok("clock", "the store's clock agrees with this machine's");
    }
    let side = if ahead > behind { "ahead of" } else { "behind" };
    let detail = format!("the store's clock is {} {side} this machine's", short(apart));
    Check::warning("clock", detail, "leases are not affected; only the times that are shown are")
}

pub(super) fn engine(capabilities: &Capabilities) -> Check {
    let hosts = match capabilities.hosts {
        Hosts::OneProcess => "this process only",
        Hosts::OneMachine => "every process of this machine",
        Hosts::Many => "many machines",
    };
    let wakes = if capabilities.wakes { "are woken, and look" } else { "look" };
    let detail = format!(
        "{}, for {hosts}; a ttl of {} or more; waiters {wakes} every {}",
        capabilities.engine,
        capabilities.min_ttl,
        short(capabilities.poll)
    );
    if capabilities.lasting {
        return Check::ok("engine", detail);
    }
    let hint = "use it for tests; a store that lasts is sqlite:";
    Check::warning("engine", format!("{detail}; forgets everything with this process"), hint)
}

pub(super) fn processes(capabilities: &Capabilities) -> Check {
    if capabilities.detects_dead_processes && this_process().is_some() {
        return Check::ok("processes", "a lock whose process has died is free at once");
    }
    let detail = "a lock whose process has died is free when its ttl is over";
    match capabilities.hosts {
        Hosts::OneMachine => {
            Check::warning("processes", detail, "this system does not tell enough of its processes")
        }
        _ => Check::ok("processes", detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(check: &Check) -> String {
        serde_json::to_string(check).unwrap()
    }

    #[test]
    fn clocks_that_differ_are_told_apart() {
        let wall = jiff::Timestamp::from_second(100).unwrap();
        let at = |seconds: u64| text(&clock(Timestamp::from_micros(seconds * 1_000_000), wall));
        assert!(at(100).contains("agrees"));
        assert!(at(107).contains("7s ahead of"));
        assert!(at(40).contains("1m behind"));
    }

    #[test]
    fn a_slow_store_is_worth_a_word() {
        assert!(text(&round_trip(Duration::from_micros(150))).contains("\"0.15 ms\""));
        assert!(text(&round_trip(Duration::from_secs(2))).contains("2000 ms is slow"));
    }
}
