//! Extractor for handlers that require a caller with at least a given role.

use std::marker::PhantomData;

use axum::extract::{FromRequestParts, MatchedPath, RawPathParams};
use axum::http::request::Parts;
use leasehold::model::Holder;

use super::Role;
use super::gate::Who;
use super::quota::InFlight;
use crate::problem::Problem;
use crate::server::App;

/// Authenticated caller with at least the role `R`. A handler with this argument is reached only by
/// such callers.
pub(crate) struct Caller<R> {
    who: Who,
    role: PhantomData<R>,
    /// Counts the request until the handler has ended; `None` on a server without tokens.
    _in_flight: Option<InFlight>,
}

/// A role as a type.
pub(crate) trait Rank: Send + Sync {
    const ROLE: Role;
}

macro_rules! ranks {
    ($($rank:ident)*) => {$(
        pub(crate) struct $rank;
        impl Rank for $rank {
            const ROLE: Role = Role::$rank;
        }
    )*};
}
ranks!(Reader Worker Operator Admin);

impl<R> Caller<R> {
    /// Returns the caller's name, the default holder of leases that the caller acquires.
    pub(crate) fn holder(&self) -> Result<Holder, Problem> {
        Ok(Holder::new(self.who.name.as_str())?)
    }

    /// Returns the caller's identity.
    pub(crate) fn who(&self) -> &Who {
        &self.who
    }

    /// Returns the problem `FORBIDDEN` unless the caller also has this role.
    pub(crate) fn must_be(&self, role: Role) -> Result<(), Problem> {
        self.who.must_be(role)
    }
}

impl Who {
    fn must_be(&self, role: Role) -> Result<(), Problem> {
        if self.role >= role {
            return Ok(());
        }
        let detail = format!("'{}' has the role {}; this needs the role {role}", self.name, self.role);
        Err(Problem::new("FORBIDDEN", detail))
    }
}

impl<R: Rank> FromRequestParts<App> for Caller<R> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let who = app.gate().admit(parts).await?;
        who.must_be(R::ROLE)?;
        if who.is_scoped() {
            let params = RawPathParams::from_request_parts(parts, app).await;
            let params = params.map_err(|error| Problem::invalid(error.body_text()))?;
            who.must_reach_path(parts.extensions.get::<MatchedPath>(), &params)?;
        }
        let most = app.limits().requests_per_token;
        let in_flight = who.has_token.then(|| app.quota().enter(&who.name, most)).transpose()?;
        Ok(Self { who, role: PhantomData, _in_flight: in_flight })
    }
}
