//! `redis://`: the conformance suite on one server and on a Cluster, and cases that only a remote
//! server has: restarts, lost data, full memory, refused access, cut connections, failover.

mod batching;
mod cluster;
mod demotion;
mod errors;
mod faults;
mod health;
mod moving_slot;
mod notifications;
mod queries;
mod queue;
mod replicas;
mod restart;
mod sentinel;
mod server;
mod slow_path;
mod suite;
mod support;
mod tasks;
mod upgrade;
mod wire;
mod workflows;
