//! Commands for locks: `leasehold locks …`.

mod acquire;
mod dispatch;
mod queries;
mod release;

pub(super) use dispatch::locks;
pub(super) use queries::is_held;
