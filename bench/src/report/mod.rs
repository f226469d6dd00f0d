//! Report over all rounds: medians, targets and tables.

mod rows;
pub(crate) mod tables;
mod targets;

pub(crate) use rows::{Report, ReportRow};
pub(crate) use targets::Target;
