//! Authentication and authorization.

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
