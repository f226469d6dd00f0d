//! The dashboard's side of HTTP: browsers, sessions, viewers, assets and compression.

pub(super) mod assets;
pub(super) mod browser;
pub(super) mod gzip;
pub(super) mod session;
pub(super) mod viewer;
