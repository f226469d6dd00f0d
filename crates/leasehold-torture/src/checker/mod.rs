//! Checks of a recorded history against the promises.

mod exclusion;
mod fencing;
mod findings;
mod parts;
mod queue;
mod spans;
mod stream;
mod tasks;

pub use findings::{Checked, Property, Violation};
pub(crate) use stream::Summary;
pub use stream::{Checker, Operations};
