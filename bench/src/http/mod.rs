//! A server under load: what a lock costs over HTTP beside a handler that does nothing, how soon the next of many waiters
//! has the lock, and what ten thousand waiters take up.

mod cycles;
mod line;
mod report;
mod run;
mod server;
mod waiters;

pub(crate) use run::run;
pub(crate) use server::{Kind, serve};
