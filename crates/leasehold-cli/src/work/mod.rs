//! `leasehold tasks work QUEUE… -- CMD ARGS…`: runs any program as a fenced worker.
//!
//! The worker of the client library takes tasks and renews their leases; for each task the command
//! runs once, under a monitor of its own (`crate::run`, folder `attempt/`).

mod attempt;
mod context;
mod executions;
mod outcome;
mod output;
mod worker;

pub(crate) use context::KEPT_OUTPUT;
pub(crate) use executions::{ExecutionPlan, Executions};
pub(crate) use output::escape_line;
pub(crate) use worker::{StopCondition, StopSignals, WorkPlan, work, write_in_time};
