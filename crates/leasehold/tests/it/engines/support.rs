//! What the tests of the engines share.

use leasehold::model::Timestamp;
use leasehold::store::Clock;

/// A clock that begins on an ordinary day.
pub(super) fn clock() -> Clock {
    Clock::manual(Timestamp::from_micros(1_700_000_000_000_000))
}
