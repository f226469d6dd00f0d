//! Authentication and authorization.

mod authenticator;
mod caller;
mod owner;
mod scope;
mod token;
mod token_store;

pub use authenticator::Access;
pub(crate) use authenticator::{Authenticator, Quota};
pub(crate) use caller::{Admin, Caller, Operator, Reader, RequiredRole, Worker};
pub(crate) use owner::{Owners, TaskOwners};
pub(crate) use scope::{Identity, STATE_LOCKS};
pub use scope::{Role, Scope};
pub use token::FixedToken;
pub(crate) use token::Hash;
pub use token_store::{NewToken, TokenStatus, TokenStore};
