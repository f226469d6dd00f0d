//! The server as its clients see it: over a real connection.

mod basics;
mod deploy;
mod lab;
mod metrics;
#[cfg(feature = "otlp")]
mod otlp;
mod terraform;
mod terraform_fence;
