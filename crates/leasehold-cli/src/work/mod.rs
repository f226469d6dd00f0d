//! `leasehold tasks work QUEUE… -- CMD ARGS…`: runs any program as a fenced worker.
//!
//! The worker of the client library takes tasks and renews their leases; for each task the command
//! runs once, under a keeper of its own (`crate::run`, folder `attempt/`).

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
