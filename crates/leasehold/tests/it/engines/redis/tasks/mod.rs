//! Tasks on Redis: the conformance suite on one server and on a Cluster; costs, faults, many
//! processes.

mod batching;
mod cost;
mod errors;
mod faults;
mod lost_records;
mod moving_slot;
mod notifications;
mod processes;
mod restart;
mod retention;
mod suite;
mod support;
