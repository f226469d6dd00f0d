//! Simulates clients of a store under a virtual clock, injects faults, and checks the history against
//! leasehold's promises.
//!
//! The clients are the real ones: guards, workers, schedules and workflows of the library. Virtual are
//! the clock, the network between a client and its store, and the processes, which are paused and
//! killed. A [`Plan`] is derived from a seed, and [`simulate`] runs it: the same seed gives the same
//! history, byte by byte. The history and its checkers are those of `leasehold torture`; the audit of
//! this crate adds what only a simulation can see, because it knows the state of the store and all
//! faults.

mod audit;
mod auditor;
mod documents;
mod guards;
mod mutation;
mod network;
mod plan;
mod process;
mod processes;
mod run;
mod tasks;
mod world;

pub use mutation::Mutation;
pub use plan::{EngineKind, Plan};
pub use run::{Outcome, Violation, simulate};
