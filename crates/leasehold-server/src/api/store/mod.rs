//! The store protocol: how leasehold itself speaks to a server, exactly and in the model's own words. People and other
//! languages use the other endpoints. See `docs/decisions/0017-http-store.md`.
//!
//! | file | idea |
//! |---|---|
//! | `routes.rs` | the paths, and what a server says of itself |
//! | `described.rs` | the arguments as schemas, as far as they are described |
//! | `stamp.rs` | what all calls have: a version, a clock, and until when they may begin |
//! | `desk.rs` | what is remembered for a while |
//! | `line.rs` | the order of calls for one lease id |
//! | `locks.rs`, `tasks.rs`, `docs.rs` | the calls, and who may make them |
//! | `wakes.rs`, `board.rs` | wake-ups for waiters and workers elsewhere |

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
