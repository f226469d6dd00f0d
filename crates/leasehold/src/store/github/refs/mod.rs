//! `arbiter=ref`: a lock is a git ref, and each step of it a commit on the tip that was read. GitHub moves a ref to a
//! commit only if the tip is an ancestor of it, and makes a ref only if there is none: that compares and sets. So reads
//! may be as old as they like; `docs/decisions/0020-github-refs.md` says why that is safe.
//!
//! | file | idea |
//! |---|---|
//! | `calls.rs` | the calls on refs and commits |
//! | `message.rs` | what a commit says: a few lines for people, and a document |
//! | `memory.rs` | what was seen of tips and commits |
//! | `docs.rs` | documents as refs, for the loop in [`Cas`](crate::store::Cas) |
//! | `store.rs` | the engine: connecting, the calls of the traits |
//! | `shown.rs` | holders as people see them on issues, which decides nothing |

mod calls;
mod docs;
mod memory;
mod message;
mod shown;
mod store;

pub(super) use store::connect;
