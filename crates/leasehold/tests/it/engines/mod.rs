//! Every engine against the conformance suite and against the bare rules.

mod cas;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "github")]
mod github;
mod memory;
mod metered;
#[cfg(feature = "postgres")]
mod postgres;
mod proxy;
mod race;
#[cfg(feature = "redis")]
mod redis;
mod sqlite;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod story;
mod support;
#[cfg(any(feature = "postgres", feature = "redis", feature = "dynamodb"))]
mod wire;
