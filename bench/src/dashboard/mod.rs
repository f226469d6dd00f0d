//! Benchmark of the dashboard: the time of each page on a large store, and the reads that many tabs cause.

mod fill;
mod run;

pub(crate) use run::run;
