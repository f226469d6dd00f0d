//! Every engine against the conformance suite and against the bare rules.

mod cas;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod memory;
mod race;
mod sqlite;
mod support;
