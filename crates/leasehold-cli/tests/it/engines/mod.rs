//! The binary on engines that are not available everywhere.

#[cfg(feature = "github")]
mod github;
#[cfg(feature = "postgres")]
mod postgres;
pub(crate) mod support;
