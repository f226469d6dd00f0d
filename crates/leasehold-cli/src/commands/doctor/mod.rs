//! `doctor`: whether the store can be used, check by check, and what to do if not.
//!
//! | file | idea |
//! |---|---|
//! | `examine.rs` | the checks in their order, from the outside in |
//! | `checks.rs` | what each check looks at |
//! | `containment.rs` | what keeps the processes of commands together on this machine |
//! | `report.rs` | the answer, for people and programs |

mod checks;
mod containment;
mod examine;
mod report;

pub(super) use examine::doctor;
