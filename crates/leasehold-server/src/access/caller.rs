//! Extractor for handlers that require a caller with at least a given role.

use std::marker::PhantomData;
use std::ops::Deref;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::http::request::Parts;
use leasehold::model::Holder;

use super::Role;
use super::authenticator::enter;
use super::scope::Identity;
use crate::problem::Problem;
use crate::server::App;
use crate::sync::InProgress;

/// Authenticated caller with at least the role `R`. A handler with this argument is reached only by
/// such callers.
pub(crate) struct Caller<R> {
    identity: Identity,
    role: PhantomData<R>,
    /// Counts the request until the handler has ended; `None` on a server without tokens.
    in_progress: Option<InProgress<String>>,
}

/// Role as a type parameter.
pub(crate) trait RequiredRole: Send + Sync {
    const ROLE: Role;
}

macro_rules! required_roles {
    ($($role:ident)*) => {$(
        pub(crate) struct $role;
        impl RequiredRole for $role {
            const ROLE: Role = Role::$role;
        }
    )*};
}
required_roles!(Reader Worker Operator Admin);

impl<R> Caller<R> {
    /// Returns the count of the request, for a response that goes on after the handler has ended.
    pub(crate) fn into_in_progress(self) -> Option<InProgress<String>> {
        self.in_progress
    }
}

impl<R> Deref for Caller<R> {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl Identity {
    /// Returns the caller's name, the default holder of leases that the caller acquires.
    pub(crate) fn holder(&self) -> Result<Holder, Problem> {
        Ok(Holder::new(self.name.as_str())?)
    }

    /// Returns the problem `FORBIDDEN` unless the caller has this role.
    pub(crate) fn must_be(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        let detail =
            format!("'{}' has the role {}; this operation requires the role {role}", self.name, self.role);
        Err(Problem::new("FORBIDDEN", detail))
    }
}

impl<R: RequiredRole> FromRequestParts<App> for Caller<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let identity = app.authenticator.authenticate(parts).await?;
        identity.must_be(R::ROLE)?;
        if identity.is_scoped() {
            let params = RawPathParams::from_request_parts(parts, app).await;
            let params = params.map_err(|error| Problem::invalid(error.body_text()))?;
            identity.must_reach_path(parts.extensions.get::<MatchedPath>(), &params)?;
        }
        let max = app.options.limits.requests_per_token;
        let in_progress = identity.has_token.then(|| enter(&app.quota, &identity.name, max)).transpose()?;
        Ok(Self { identity, role: PhantomData, in_progress })
    }
}
