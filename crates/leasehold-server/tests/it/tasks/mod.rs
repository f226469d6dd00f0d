//! Tasks over HTTP.

mod admin;
mod enqueue;
mod examples;
mod lease;
mod openapi;
mod rejected;
mod roles;
mod schedules;
mod settle;
