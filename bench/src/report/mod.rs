//! What all rounds together say, and how it is shown.

mod aims;
pub(crate) mod json;
mod lines;
pub(crate) mod tables;

pub(crate) use aims::Aim;
pub(crate) use lines::{Line, Report};
