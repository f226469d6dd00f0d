//! Who may do what.
//!
//! | file | idea |
//! |---|---|
//! | `role.rs` | the roles, each with all that those below it may do |
//! | `token.rs` | a token: its text, and what is kept of it |
//! | `desk.rs` | the tokens in the store: making, listing, revoking, finding |
//! | `gate.rs` | who a request comes from |
//! | `scope.rs` | what a token reaches |
//! | `quota.rs` | how many requests of one token are answered at the same time |
//! | `owner.rs` | whose the lease of a lock is |
//! | `task_owner.rs` | whose the lease of a task is |
//! | `starter.rs` | who started an execution |
//! | `caller.rs` | what a handler asks for: a caller with at least this role |

mod caller;
mod desk;
mod gate;
mod owner;
mod quota;
mod role;
mod scope;
mod starter;
mod task_owner;
mod token;

pub(crate) use caller::{Admin, Caller, Operator, Rank, Reader, Worker};
pub use desk::{NewToken, TokenDesk, TokenStatus};
pub use gate::Access;
pub(crate) use gate::{Gatekeeper, Who};
pub(crate) use owner::Owners;
pub(crate) use quota::Quota;
pub use role::Role;
pub(crate) use scope::STATE_LOCKS;
pub use scope::Scope;
pub(crate) use task_owner::TaskOwners;
pub use token::FixedToken;
pub(crate) use token::Hash;
