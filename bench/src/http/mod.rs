//! Benchmarks of the server: locks over HTTP next to a handler that does nothing, hand-over between many
//! waiters, and memory of ten thousand waiters.

mod cycles;
mod run;
mod server;

pub(crate) use run::run;
pub(crate) use server::{Kind, ServerProcess, serve};
