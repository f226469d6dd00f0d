//! Parts of the Redis engine.

pub mod connection;
