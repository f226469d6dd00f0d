//! Shared by the programs of both peers: settings, measurements, and a separate database.

pub mod database;
pub mod measure;
