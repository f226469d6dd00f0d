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
        Some(_) => assignee(api).await?,
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

/// Whether holders are shown as assignees of their issues.
async fn assignee(api: &Api) -> Result<Finding> {
    let repository = api.repository();
    Ok(match api.login().await? {
        Some(login) if api.is_assignable(&login).await? => {
            Finding::ok("repository", format!("{repository}: issues are on, and can be assigned to {login}"))
        }
        Some(login) => Finding::concern(
            "repository",
            format!("{repository}: issues cannot be assigned to {login}"),
            "GITHUB_NOT_ASSIGNABLE",
            "locks work, but their holders are not shown as assignees; make this login a collaborator",
        ),
        None => Finding::ok(
            "repository",
            format!(
                "{repository}: issues are on; GitHub assigns none to an App, so holders are seen in comments alone"
            ),
        ),
    })
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
