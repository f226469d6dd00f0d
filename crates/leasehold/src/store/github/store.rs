//! Store of this engine: locks and tasks on the issues of a repository.

use std::sync::Arc;

use async_trait::async_trait;

use super::api::Api;
use super::locks::{GRACE, GithubLocks, POLL, Protocol};
use super::options::{Arbiter, GithubOptions};
use super::tasks::{GithubTasks, TASK_CAPABILITIES};
use super::{health, refs};
use crate::error::Result;
use crate::model::Ttl;
use crate::store::background::Background;
use crate::store::{Capabilities, HealthCheck, Hosts, LockStore, RateLimit, Store, TaskStore};

/// Opens the repository that the options name. Fails if it does not exist or is archived; with
/// [`Arbiter::Comment`] also if it has no issues, with [`Arbiter::Ref`] also if the token may not
/// push or the repository has no commit.
pub async fn connect(options: GithubOptions) -> Result<Arc<dyn Store>> {
    let background = Background::start("leasehold-github")?;
    if options.arbiter == Arbiter::Ref {
        return refs::connect(background, options).await;
    }
    let api = background
        .run(async move {
            let api = Api::new(options)?;
            let repository = api.get_repository().await?;
            if !repository.has_issues || repository.archived {
                return Err(api.error_status(410, "the repository has no issues, or is archived"));
            }
            Ok(api)
        })
        .await?;
    let (protocol, background) = (Arc::new(Protocol::new(api)), Arc::new(background));
    let tasks = GithubTasks::new(protocol.clone(), background.clone());
    Ok(Arc::new(GithubStore { locks: GithubLocks::new(protocol, background), tasks }))
}

struct GithubStore {
    locks: GithubLocks,
    tasks: GithubTasks,
}

#[async_trait]
impl Store for GithubStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            min_ttl: Ttl::from_secs(30),
            poll: POLL,
            clock_uncertainty: GRACE.as_duration(),
            ttl: self.locks.protocol.api.options.ttl,
            tasks: TASK_CAPABILITIES,
            ..Capabilities::new("github", Hosts::Many)
        }
    }

    fn url(&self) -> String {
        self.locks.protocol.api.options.url.clone()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    fn tasks(&self) -> Option<&dyn TaskStore> {
        Some(&self.tasks)
    }

    fn rate_limit(&self) -> Option<RateLimit> {
        self.locks.protocol.api.rate_limiter.rate_limit()
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        let protocol = self.locks.protocol.clone();
        self.locks.background.run(async move { health::check_health(&protocol.api).await }).await
    }
}
