//! Every engine against the conformance suite and against the bare rules.

mod cas;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod proxy;
mod race;
mod sqlite;
mod support;
