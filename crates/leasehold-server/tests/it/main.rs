//! The server as its clients see it: over a real connection.

mod basics;
mod deploy;
mod lab;
mod metrics;
mod terraform;
mod terraform_fence;
