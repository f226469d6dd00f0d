//! The binary on engines that are not available everywhere.

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "github")]
mod github;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
pub(crate) mod support;
