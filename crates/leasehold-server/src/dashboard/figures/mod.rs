//! Figures of the last hours: recorded every minute in the store, and merged among servers.

pub(super) mod recorder;
pub(super) mod series;
