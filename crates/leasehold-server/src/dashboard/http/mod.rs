//! The dashboard's side of HTTP: browsers, viewers and their sessions, assets and compression.

pub(super) mod assets;
pub(super) mod browser;
pub(super) mod gzip;
pub(super) mod session;
