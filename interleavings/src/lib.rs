//! The concurrent parts of the library, compiled a second time with simulated primitives, and checks of
//! them under many schedules.
//!
//! The parts are the library's own files, in modules `subject`; `build.rs` copies them without their
//! tests. They take their primitives from `store::support::sync`, which is simulated here:
//! [shuttle](https://docs.rs/shuttle) decides at each operation which task runs next. A module `checks`
//! has the properties; `tests/` runs them, and shows that they find mutants, which `build.rs` makes from
//! the same files.

#![expect(dead_code, reason = "the checks do not call all of the library's functions")]
#![expect(unreachable_pub, reason = "what the library exports is not exported here")]
#![expect(clippy::duplicate_mod, reason = "the checks run on the parts and on their mutants")]
#![expect(missing_docs, reason = "the names of the checks are sentences")]

/// Test for a planted mistake of the simulation: none is planted here.
macro_rules! is_planted {
    ($mutant:ident) => {
        false
    };
}

pub mod client;
mod run;
mod simulated;
pub mod store;

use leasehold::model;

pub use run::{check, is_found};
