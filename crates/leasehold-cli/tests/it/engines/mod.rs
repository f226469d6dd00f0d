//! The binary on engines that are not at hand everywhere.

#[cfg(feature = "github")]
mod github;
#[cfg(feature = "github")]
mod support;
