//! A server under load: what a lock costs over HTTP beside a handler that does nothing, how soon the next of many waiters
//! has the lock, and what ten thousand waiters take up.
//!
//! | file | idea |
//! |---|---|
//! | `run.rs` | the rounds |
//! | `server.rs` | the servers, each in a process of its own |
//! | `line.rs` | one connection of a client |
//! | `cycles.rs` | taking and giving back over a few connections |
//! | `waiters.rs` | many who wait for one lock, and very many who wait |
//! | `report.rs` | medians, ratios within rounds, and aims |

mod cycles;
mod line;
mod report;
mod run;
mod server;
mod waiters;

pub(crate) use run::run;
pub(crate) use server::{Kind, serve};
