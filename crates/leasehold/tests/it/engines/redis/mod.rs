//! `redis://`: the suite on one server and on a Cluster, and what only a server far away can do: restart, forget, be
//! full, refuse, be cut off, fail over.

mod doctor;
mod faults;
mod group;
mod private;
mod queue;
mod reading;
mod refused;
mod restart;
mod sentinel;
mod suite;
mod support;
mod tasks;
mod wakes;
mod wire;
mod workflows;
