//! Commands for locks: `leasehold locks …`.

pub(super) mod acquire;
pub(super) mod queries;
pub(super) mod release;
