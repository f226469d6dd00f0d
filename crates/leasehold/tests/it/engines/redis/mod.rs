//! `redis://`: the suite on one server and on a Cluster, and what only a server far away can do: restart, forget, be
//! full, refuse, be cut off.

mod suite;
mod support;
