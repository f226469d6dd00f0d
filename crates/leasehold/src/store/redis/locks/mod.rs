//! Locks on Redis. A script does the frequent operations in one call; for any other operation the
//! client applies the rules and stores the result by compare-and-swap.

mod apply;
mod blocks;
mod call;
mod codec;
#[cfg(all(test, feature = "testing"))]
mod fuzz;
mod history;
mod queries;
mod slow_path;
mod subscriber;

pub(super) use apply::Locks;
