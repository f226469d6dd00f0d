//! Authentication and authorization.

mod authenticator;
mod caller;
mod owner;
mod quota;
mod role;
mod scope;
mod starter;
mod task_owner;
mod token;
mod token_store;

pub use authenticator::Access;
pub(crate) use authenticator::{Authenticator, Identity};
pub(crate) use caller::{Admin, Caller, Operator, Reader, RequiredRole, Worker};
pub(crate) use owner::Owners;
pub(crate) use quota::Quota;
pub use role::Role;
pub(crate) use scope::STATE_LOCKS;
pub use scope::Scope;
pub(crate) use task_owner::TaskOwners;
pub use token::FixedToken;
pub(crate) use token::Hash;
pub use token_store::{NewToken, TokenStatus, TokenStore};
