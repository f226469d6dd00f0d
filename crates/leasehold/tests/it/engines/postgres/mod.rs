//! `postgres:`: the suite, and what only a server far away can do: be slow, restart, cut the line, refuse.

mod server;
mod suite;
