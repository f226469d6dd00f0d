//! Store protocol: the internal protocol between the leasehold library and a server, with the exact
//! types of the model. Other clients use the other endpoints. See
//! `docs/decisions/0017-http-store.md`.

mod deadline;
mod docs;
mod locks;
mod routes;
mod state;
mod tasks;

pub(crate) use deadline::{
    DocCallName, ListenArguments, LockCallName, ProtocolVersion, TaskCallName, add_protocol_headers,
};
pub(crate) use routes::routes;
pub(crate) use state::ProtocolState;
