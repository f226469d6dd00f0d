//! The server as its clients see it: over a real connection.

mod basics;
mod lab;
mod store;
