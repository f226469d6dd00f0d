//! Checks of a recorded history against the promises.

mod exclusion;
mod fencing;
mod findings;
mod properties;
mod queue;
mod spans;
mod tasks;

pub use findings::{Checked, Property, Violation};
pub use properties::check;
pub(crate) use spans::for_each_handover;
