//! Parts of the client.

pub mod tasks;
