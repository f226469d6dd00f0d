//! `postgres:`: the suite, and what only a server far away can do: be slow, restart, cut the line, refuse.

mod busy;
mod doctor;
mod faults;
mod hot;
mod idle;
mod near;
mod private;
mod queue;
mod refused;
mod server;
mod start;
mod suite;
mod tasks;
mod upkeep;
mod wake;
mod wire;
mod workflows;
