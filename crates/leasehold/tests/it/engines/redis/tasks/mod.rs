//! Tasks on Redis: the suite on one server and on a Cluster, and what is special here: costs, faults, many processes.

mod cost;
mod crew;
mod earlier;
mod faults;
mod refused;
mod restart;
mod suite;
mod support;
mod wakes;
