//! Connections to a simulated server.

pub mod batcher;
mod scripts;
