//! The store protocol: how leasehold itself speaks to a server, exactly and in the model's own words. People and other
//! languages use the other endpoints. See `docs/decisions/0017-http-store.md`.

mod board;
mod described;
mod desk;
mod docs;
mod line;
mod locks;
mod routes;
mod stamp;
mod tasks;
mod wakes;

pub(crate) use described::{DocCallName, ListenArguments, LockCallName, ProtocolVersion, TaskCallName};
pub(crate) use desk::StoreDesk;
pub(crate) use routes::routes;
pub(crate) use stamp::stamp;
