//! The binary on engines that are not available everywhere.

#[cfg(feature = "github")]
mod github;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "github", feature = "postgres"))]
mod support;
