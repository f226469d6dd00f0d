//! Benchmarks of tasks: enqueue, drain, and the time from enqueue to start.

mod depth;
mod drain;
mod peers;
mod plan;
mod raw;
mod report;
mod run;
mod worker;

pub(crate) use run::run;
pub(crate) use worker::serve;
