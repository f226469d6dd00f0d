//! `leasehold serve`: the process that is always there.
//!
//! | file | idea |
//! |---|---|
//! | `plan.rs` | what to serve, checked before anything happens |
//! | `process.rs` | from the first connection to the last, and the signals in between |
//! | `opening.rs` | the store: waiting for it, who is let in, what the settings put into it |
//! | `address.rs` | where to listen, and why that may fail |
//! | `tls.rs` | certificates: the flags, the settings, warnings |

mod address;
mod opening;
mod plan;
mod process;
mod tls;

pub(crate) use plan::ServePlan;
pub(crate) use process::serve;
pub(crate) use tls::{Validity, chosen as chosen_tls, validity};
