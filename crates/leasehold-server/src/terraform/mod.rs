//! The HTTP backend of Terraform and `OpenTofu`: state with a lock, under `/tf/{name}`.
//!
//! The lock is an ordinary lock with the name `tf/{name}`. A state is a *head* and *pieces*, all documents of the store:
//! the pieces of a version are written first, under an id that is used once, and then the head that names them, if it is
//! still as it was read. The head carries a token. LOCK raises it to the token of the new lease before it answers, and
//! a write is made only with a token that is not below it; so whoever holds the lock is safe from writes of those who held it before,
//! also from one that was on its way when its lease ended.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs` | what can be set |
//! | `info.rs` | the client's `LockInfo`, and how a lease keeps it |
//! | `lock.rs` | locking, unlocking, unlocking by force |
//! | `head.rs` | what is known of a state: its versions, its token |
//! | `pieces.rs` | the text of a version, in pieces that every engine takes |
//! | `state.rs` | reading and writing a state, fenced |
//! | `routes.rs` | the paths and methods |
//! | `history.rs` | looking at earlier versions |
//! | `quiet.rs` | problems as this client wants them |

mod head;
mod history;
mod info;
mod lock;
mod options;
mod pieces;
mod quiet;
mod routes;
mod state;

pub use options::TerraformOptions;
pub(crate) use routes::routes;
