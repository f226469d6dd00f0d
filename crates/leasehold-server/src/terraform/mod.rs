//! HTTP backend of Terraform and `OpenTofu`: state with a lock, under `/tf/{name}`.
//!
//! The lock is an ordinary lock with the name `tf/{name}`. A state consists of an *index* and
//! *chunks*, all of which are documents of the store. A write first stores the chunks of a version
//! under an id that is never reused, and then stores the index that names them, provided that the
//! index is unchanged since it was read. The index carries a token. LOCK raises that token to the
//! token of the new lease before it responds, and a write succeeds only with a token that is not
//! lower. Thus the holder of the lock is safe from writes of earlier holders, including a write
//! that was in flight when its lease ended.

mod lock;
mod routes;
mod state;
mod state_index;
mod writes;

pub(crate) use routes::routes;
pub(crate) use writes::StateWrites;
