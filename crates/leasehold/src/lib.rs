//! leasehold: work that runs in one place at a time, across processes, machines and engines.

pub mod model;
