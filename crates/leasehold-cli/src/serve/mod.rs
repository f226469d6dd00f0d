//! `leasehold serve`: the long-running server process.

mod process;
mod startup;

pub(crate) use process::serve;
pub(crate) use startup::{ServePlan, Validity, chosen as chosen_tls, validity};
