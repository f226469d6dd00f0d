//! `leasehold serve`: the process that is always there.
//!
//! | file | idea |
//! |---|---|
//! | `plan.rs` | what to serve, checked before anything happens |
//! | `process.rs` | from the first connection to the last, and the signals in between |
//! | `opening.rs` | the store: waiting for it, who is let in, what the settings put into it |
//! | `address.rs` | where to listen, and why that may fail |

mod address;
mod opening;
mod plan;
mod process;

pub(crate) use plan::ServePlan;
pub(crate) use process::serve;
