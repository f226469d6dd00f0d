//! Health checks of a repository, for `leasehold doctor`.

use super::api::Api;
use crate::error::Result;
use crate::store::{BootInstant, HealthCheck};

/// Leases are in danger if fewer requests are left than the hour's limit divided by this number.
const LOW_RATE_LIMIT_DIVISOR: u64 = 10;

pub(super) async fn check_health(api: &Api) -> Result<Vec<HealthCheck>> {
    let repository = api.get_repository().await?;
    let mut checks = Vec::new();
    checks.push(match repository.permissions {
        Some(permissions) if !permissions.push => HealthCheck::issue(
            "repository",
            format!("{}: this token has no push access", api.repository()),
            "GITHUB_NO_PUSH",
            "locks of existing issues work, but their holders are not shown as assignees; give the token's login push access",
        ),
        Some(_) => assignee(api).await?,
        None => HealthCheck::ok("repository", format!("{}: issues are on", api.repository())),
    });
    checks.push(requests(api).await?);
    checks.push(match api.dates.skew(BootInstant::now()) {
        Some(seconds) if seconds.abs() >= 5 => HealthCheck::ok(
            "lease clock",
            format!("the service's; this machine's is {seconds} s off, which changes nothing"),
        ),
        _ => HealthCheck::ok("lease clock", "the service's; this machine's agrees"),
    });
    Ok(checks)
}

/// Checks whether holders can be shown as assignees of their issues.
async fn assignee(api: &Api) -> Result<HealthCheck> {
    let repository = api.repository();
    Ok(match api.login().await? {
        Some(login) if api.is_assignable(&login).await? => HealthCheck::ok(
            "repository",
            format!("{repository}: issues are on, and can be assigned to {login}"),
        ),
        Some(login) => HealthCheck::issue(
            "repository",
            format!("{repository}: issues cannot be assigned to {login}"),
            "GITHUB_NOT_ASSIGNABLE",
            "locks work, but their holders are not shown as assignees; make this login a collaborator",
        ),
        None => HealthCheck::ok(
            "repository",
            format!(
                "{repository}: issues are on; GitHub assigns none to an App, so holders are seen in comments alone"
            ),
        ),
    })
}

/// Checks how many requests are left in this hour.
pub(super) async fn requests(api: &Api) -> Result<HealthCheck> {
    api.now().await?;
    Ok(match api.rate_limiter.rate_limit() {
        Some(rate_limit) if rate_limit.remaining * LOW_RATE_LIMIT_DIVISOR < rate_limit.limit => {
            HealthCheck::issue(
                "requests",
                format!("{} of {} are left in this hour", rate_limit.remaining, rate_limit.limit),
                "GITHUB_RATE_LIMIT_LOW",
                "use a longer ttl, fewer locks, or a token that nothing else uses",
            )
        }
        Some(rate_limit) => HealthCheck::ok(
            "requests",
            format!("{} of {} are left in this hour", rate_limit.remaining, rate_limit.limit),
        ),
        None => HealthCheck::ok("requests", "this server does not count them"),
    })
}
