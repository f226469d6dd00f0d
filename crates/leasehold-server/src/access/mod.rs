//! Who may do what.
//!
//! | file | idea |
//! |---|---|
//! | `role.rs` | the roles, each with all that those below it may do |
//! | `token.rs` | a token: its text, and what is kept of it |
//! | `desk.rs` | the tokens in the store: making, listing, revoking, finding |
//! | `gate.rs` | who a request comes from |
//! | `owner.rs` | whose a lease is |
//! | `caller.rs` | what a handler asks for: a caller with at least this role |

mod caller;
mod desk;
mod gate;
mod owner;
mod role;
mod token;

pub(crate) use caller::{Admin, Caller, Operator, Reader, Worker};
pub use desk::{NewToken, TokenDesk, TokenStatus};
pub use gate::Access;
pub(crate) use gate::{Gatekeeper, Who};
pub(crate) use owner::Owners;
pub use role::Role;
pub use token::FixedToken;
pub(crate) use token::Hash;
