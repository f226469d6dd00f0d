//! The server as its clients see it: over a real connection.

mod basics;
mod early;
mod lab;
mod webhooks;
mod workflows;
