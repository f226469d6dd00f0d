//! A lease as clients see it, and how they name a lock or a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use leasehold::client::AskedStatus;
use leasehold::model::{Lease, LeaseId, LockName, Mode, Status, Token, Ttl};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::server::App;

/// The lock that a path names.
pub(crate) struct LockPath(pub(crate) LockName);

impl FromRequestParts<App> for LockPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, app).await;
        let Path(name) = path.map_err(|error| Problem::invalid(error.body_text()))?;
        Ok(Self(LockName::new(name)?))
    }
}

/// A time in seconds, as a field of a request gives it.
pub(crate) fn seconds(field: &str, value: f64) -> Result<Duration, Problem> {
    let most = Ttl::MAX.as_duration().as_secs_f64();
    match Duration::try_from_secs_f64(value) {
        Ok(duration) if value <= most => Ok(duration),
        _ => Err(Problem::invalid(format!(
            "{field} cannot be {value}: it is a number of seconds from 0 to {most}"
        ))),
    }
}

/// How long a lease is to last, as a field of a request gives it.
pub(crate) fn ttl(field: &str, value: f64) -> Result<Ttl, Problem> {
    Ttl::new(seconds(field, value)?).map_err(|wrong| Problem::invalid(format!("{field}: {wrong}")))
}

/// The `ttlSeconds` of a lease: as long as the store wants at least.
pub(crate) fn lease_ttl(app: &App, value: f64) -> Result<Ttl, Problem> {
    let (ttl, least) = (ttl("ttlSeconds", value)?, app.leasehold().capabilities().min_ttl);
    if ttl >= least {
        return Ok(ttl);
    }
    Err(Problem::invalid(format!("ttlSeconds: {value} is too short for this store; {least} is the least")))
}

/// The `waitSeconds` of a request: no longer than the server lets one wait.
pub(crate) fn wait_time(app: &App, value: f64) -> Result<Duration, Problem> {
    let (wait, most) = (seconds("waitSeconds", value)?, app.limits().wait);
    if wait <= most {
        return Ok(wait);
    }
    Err(Problem::invalid(format!("waitSeconds cannot be {value}; {} is the most", most.as_secs_f64())))
}

/// Which lease.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LeaseBody {
    /// As acquire gave it.
    pub(crate) lease_id: LeaseId,
    /// As acquire gave it.
    pub(crate) token: Token,
}

/// A lease on a lock.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HeldLock {
    /// The lock.
    #[schema(example = "terraform/prod")]
    name: LockName,
    /// Names the lease; needed to renew and to release it.
    lease_id: LeaseId,
    /// Who has it.
    #[schema(example = "ci-runner-7")]
    holder: String,
    /// The fencing token: it rises with every grant. Give it to whatever the work writes to.
    #[schema(example = 1_730_817_135_123_456_u64)]
    token: Token,
    /// Alone or with others.
    mode: Mode,
    /// Among how many.
    slots: u32,
    /// Whether somebody has asked the holder to stop.
    status: Status,
    /// Since when.
    #[schema(format = DateTime)]
    acquired_at: String,
    /// The last sign of life.
    #[schema(format = DateTime)]
    renewed_at: String,
    /// Until when, by the store's clock. By your own clock see `remainingSeconds`.
    #[schema(format = DateTime)]
    expires_at: String,
    /// How long the lease lasts at least, from when this answer was sent. A client counts it from when it received the answer
    /// and takes off the time that the answer may have been under way, or renews first: then the lease lasts at least
    /// `ttlSeconds` from when the client sent the renewal.
    #[schema(example = 29.9)]
    remaining_seconds: f64,
    /// How long it lasts from each renewal.
    #[schema(example = 30.0)]
    ttl_seconds: f64,
    /// How often it was renewed.
    renewals: u64,
    /// Who asked the holder to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    asked: Option<AskedStatus>,
    /// Facts about it.
    metadata: BTreeMap<String, String>,
}

impl HeldLock {
    /// A lease that lasts at least for `remaining` from now.
    pub(crate) fn of(name: &LockName, lease: &Lease, remaining: Duration) -> Self {
        let ask = &lease.ask;
        let asked = lease.asked.as_ref();
        Self {
            name: name.clone(),
            lease_id: ask.lease_id,
            holder: ask.holder.to_string(),
            token: lease.token,
            mode: ask.mode,
            slots: ask.slots.get(),
            status: lease.status,
            acquired_at: format!("{:#}", lease.acquired_at),
            renewed_at: format!("{:#}", lease.renewed_at),
            expires_at: format!("{:#}", lease.expires_at),
            remaining_seconds: remaining.as_secs_f64(),
            ttl_seconds: ask.ttl.as_duration().as_secs_f64(),
            renewals: lease.renewals,
            asked: asked.map(|asked| AskedStatus {
                by: asked.by.clone(),
                reason: asked.reason.clone(),
                at: asked.at,
            }),
            metadata: ask.metadata.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        }
    }
}
