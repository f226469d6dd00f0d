//! Every engine against the conformance suite and against the bare rules.

mod cas;
mod memory;
mod proxy;
mod race;
#[cfg(feature = "redis")]
mod redis;
mod sqlite;
mod support;
