//! `leasehold serve`: the long-running server process.

mod plan;
mod process;
mod startup;
mod tls;

pub(crate) use plan::ServePlan;
pub(crate) use process::serve;
pub(crate) use tls::{Validity, chosen as chosen_tls, validity};
