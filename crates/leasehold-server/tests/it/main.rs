//! The server as its clients see it: over a real connection.

mod basics;
mod cut;
mod events;
mod lab;
mod tasks;
mod locks;
mod roles;
mod waiting;
mod wire;
