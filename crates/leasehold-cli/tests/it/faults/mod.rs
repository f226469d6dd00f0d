//! Faults of engines under the load of `leasehold torture`: what the tests of all engines share.

pub(crate) mod fake_clock;
pub(crate) mod load;
pub(crate) mod relay;
mod sqlite;
mod worker_clocks;
