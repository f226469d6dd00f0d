//! The server as its clients see it: over a real connection.

mod basics;
mod cut;
mod events;
mod lab;
mod locks;
mod roles;
mod tasks;
mod waiting;
mod wire;
