//! Every engine against the conformance suite and against the bare rules.

mod cas;
mod memory;
mod sqlite;

use leasehold::model::Timestamp;
use leasehold::store::Clock;

/// A clock that begins on an ordinary day.
fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}
