//! Data that open pages share, and the stream that says when they changed.

pub(super) mod deadlocks;
pub(super) mod pollers;
pub(super) mod snapshots;
pub(super) mod updates;
