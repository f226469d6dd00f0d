//! `leasehold tasks work QUEUE… -- CMD ARGS…`: any program becomes a fenced worker.
//!
//! The library's worker takes tasks and keeps their leases alive; for each of them the command runs once, under a keeper
//! of its own (`crate::run`, folder `attempt/`).
//!
//! | file | idea |
//! |---|---|
//! | `worker.rs` | from the start to the end of a worker, and the signals in between |
//! | `shop.rs` | what all attempts share |
//! | `attempt.rs` | one attempt: the command, until it has ended |
//! | `outcome.rs` | what an exit code and the output mean for the task |
//! | `capture.rs`, `mouth.rs` | what a command writes: kept, and passed on line by line |
//! | `events.rs` | what a worker reports to programs |
//! | `reports.rs` | what a command tells of how far it has come |
//! | `executions.rs`, `payload.rs` | the same for the commands of workflows, which `leasehold serve` runs |
//! | `signals.rs` | what asks a worker or a server to end |
//! | `enough.rs` | when `--once` and `--until-empty` have had enough |

mod attempt;
mod capture;
mod enough;
mod events;
mod executions;
mod mouth;
mod outcome;
mod payload;
mod reports;
mod shop;
mod signals;
mod worker;

pub(crate) use enough::Until;
pub(crate) use executions::{ExecutionPlan, Executions};
pub(crate) use signals::Signals;
pub(crate) use worker::{WorkPlan, work};
