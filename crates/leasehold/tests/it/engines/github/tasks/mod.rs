//! Tasks on issues.

mod support;
mod thread;
