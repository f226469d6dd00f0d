//! Authentication and authorization.

mod authenticator;
mod caller;
mod owner;
mod scope;
mod token;

pub use authenticator::Access;
pub(crate) use authenticator::{Authenticator, Quota, StreamAccess, enter, must_not_be_cross_site, token_in};
pub(crate) use caller::{Admin, Caller, Operator, Reader, RequiredRole, Worker};
pub(crate) use owner::{LeaseUse, Owners, TaskOwners};
pub(crate) use scope::{Identity, STATE_LOCKS};
pub use scope::{Role, Scope};
pub use token::{FixedToken, NewToken, TokenStatus, TokenStore};
pub(crate) use token::{Hash, TokenName};
