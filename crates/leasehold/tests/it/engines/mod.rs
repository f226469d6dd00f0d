//! Tests of the engines: the conformance suite, the comparison with the model, and faults of each engine.

mod cas;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "github")]
mod github;
mod instrumented;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
mod process;
mod proxy;
mod queue_differential;
mod race;
#[cfg(feature = "redis")]
mod redis;
mod sqlite;
mod support;
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod wire;
