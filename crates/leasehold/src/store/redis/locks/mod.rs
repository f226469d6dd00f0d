//! Locks on Redis. Scripts apply the rules, so that each operation is atomic and takes one call.

mod apply;
mod call;
mod codec;
mod history;
mod maintenance;
mod queries;
mod subscriber;

pub(super) use apply::Locks;
