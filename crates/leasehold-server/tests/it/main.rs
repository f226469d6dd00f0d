//! The server as its clients see it: over a real connection.

mod basics;
mod cut;
mod deploy;
mod early;
mod events;
mod lab;
mod locks;
mod metrics;
mod openapi;
mod otlp;
mod owners;
mod roles;
mod store;
mod tasks;
mod terraform;
mod terraform_fence;
mod waiting;
mod webhooks;
mod wire;
mod workflows;
