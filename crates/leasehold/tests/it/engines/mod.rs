//! Every engine against the conformance suite and against the bare rules.

mod cas;
mod memory;
mod sqlite;
mod support;
