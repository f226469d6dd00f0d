//! What `leasehold doctor` tells about a repository.

use super::api::Api;
use crate::error::Result;
use crate::store::{Finding, Moment};

/// With less than so much of the hour's budget left, leases are in danger.
const LITTLE: u64 = 10;

pub(super) async fn examine(api: &Api) -> Result<Vec<Finding>> {
    let repository = api.look_at_repository().await?;
    let mut findings = Vec::new();
    findings.push(match repository.permissions {
        Some(permissions) if !permissions.push => Finding::concern(
            "repository",
            format!("{}: this token has no push access", api.repository()),
            "GITHUB_NO_PUSH",
            "locks work, but their holders are not shown as assignees; give the token's login push access",
        ),
        Some(_) => {
            Finding::ok("repository", format!("{}: issues are on, and can be assigned", api.repository()))
        }
        None => Finding::ok("repository", format!("{}: issues are on", api.repository())),
    });
    findings.push(requests(api).await?);
    findings.push(match api.dates.ahead(Moment::now()) {
        Some(seconds) if seconds.abs() >= 5 => Finding::ok(
            "lease clock",
            format!("the service's; this machine's is {seconds} s off, which changes nothing"),
        ),
        _ => Finding::ok("lease clock", "the service's; this machine's agrees"),
    });
    Ok(findings)
}

/// What is left of the hour's requests.
pub(super) async fn requests(api: &Api) -> Result<Finding> {
    api.now().await?;
    Ok(match api.pace.budget() {
        Some(budget) if budget.remaining * LITTLE < budget.limit => Finding::concern(
            "requests",
            format!("{} of {} are left in this hour", budget.remaining, budget.limit),
            "GITHUB_BUDGET_LOW",
            "use a longer ttl, fewer locks, or a token that nothing else uses",
        ),
        Some(budget) => {
            Finding::ok("requests", format!("{} of {} are left in this hour", budget.remaining, budget.limit))
        }
        None => Finding::ok("requests", "this server does not count them"),
    })
}
