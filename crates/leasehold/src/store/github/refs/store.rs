//! Store on git refs: the compare-and-set loop, and then the display of a lock on its issue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::documents::RefDocuments;
use super::issue_mirror::IssueMirror;
use crate::error::Result;
use crate::model::{Event, LeaseId, LeaseStatus, LockName, LockOp, LockRecord, Outcome, Swept, Timestamp};
use crate::store::background::Background;
use crate::store::github::api::{Api, REQUESTS_PER_RENEWAL};
use crate::store::github::locks::issue_number;
use crate::store::github::options::GithubOptions;
use crate::store::{
    Capabilities, Cas, DocumentStore, HealthCheck, LeaseObservations, ListEvents, ListLocks, LockStore, Page,
    RateLimit, Store, WaiterSubscription,
};

/// Opens the repository that the options name. Fails if refs cannot be written there.
pub(crate) async fn connect(background: Background, options: GithubOptions) -> Result<Arc<dyn Store>> {
    let observations =
        if options.alone { LeaseObservations::default() } else { LeaseObservations::of_this_process() };
    let documents = background
        .run(async move {
            let api = Api::new(options)?;
            let repository = api.get_repository().await?;
            let may_push = repository.permissions.is_none_or(|permissions| permissions.push);
            if repository.archived || !may_push {
                let problem =
                    if repository.archived { "is archived" } else { "denies push access to this token" };
                return Err(api.no_contents(problem));
            }
            let documents = RefDocuments::new(api);
            documents.tree().await?;
            Ok(documents)
        })
        .await?;
    let cas = Cas::on(background, documents.clone(), observations);
    let mirror = Arc::new(IssueMirror::new(documents.clone()));
    Ok(Arc::new(RefStore { locks: RefLocks { cas, mirror, documents } }))
}

/// Maximum time that a caller waits for its display on the issue.
const DISPLAY_TIMEOUT: Duration = Duration::from_secs(15);

struct RefStore {
    locks: RefLocks,
}

struct RefLocks {
    cas: Cas<RefDocuments>,
    mirror: Arc<IssueMirror>,
    documents: RefDocuments,
}

#[async_trait]
impl Store for RefStore {
    fn capabilities(&self) -> Capabilities {
        self.locks.documents.capabilities()
    }

    fn url(&self) -> String {
        self.locks.documents.url()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    /// Returns documents for tests only. Each write is two requests with a second between them: too
    /// slow for a server, which writes often.
    fn documents(&self) -> Option<&dyn DocumentStore> {
        self.locks.documents.0.api.options.exposes_documents.then_some(&self.locks.documents)
    }

    fn rate_limit(&self) -> Option<RateLimit> {
        self.locks.documents.0.api.rate_limiter.rate_limit()
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        self.locks.cas.check_health().await
    }
}

#[async_trait]
impl LockStore for RefLocks {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let mut outcome = self.cas.locks().apply(name, op).await?;
        if let Outcome::Renewed(lease) = &mut outcome
            && lease.release_request.is_none()
        {
            // The number of leases of this process is not known here. Counting only this lease
            // never requests a release without need.
            let (limiter, ttl) = (&self.documents.0.api.rate_limiter, lease.request.ttl);
            lease.release_request = limiter.release_request(REQUESTS_PER_RENEWAL, ttl, lease.renewed_at);
            if lease.release_request.is_some() {
                lease.status = LeaseStatus::Releasing;
            }
        }
        if let Some(number) = issue_number(name)
            && self.mirror.needs_update(name, &outcome)
        {
            self.show(name, number, &outcome).await;
        }
        Ok(outcome)
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.cas.locks().get(name).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        self.cas.locks().list(query).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        self.cas.locks().history(query).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.cas.locks().now().await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.cas.locks().subscribe_waiter(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.cas.locks().sweep(limit).await
    }
}

impl RefLocks {
    /// Shows people the holder. Errors are only logged: the display decides nothing.
    async fn show(&self, name: &LockName, number: u64, outcome: &Outcome) {
        let (own_token, timeout) = match outcome {
            // The lease has begun: most of its time is for the holder.
            Outcome::Granted(lease) | Outcome::Renewed(lease) => {
                (Some(lease.token), DISPLAY_TIMEOUT.min(lease.request.ttl.as_duration() / 4))
            }
            _ => (None, DISPLAY_TIMEOUT),
        };
        let work = async {
            let record = self.cas.locks().get(name).await?;
            let (mirror, name) = (self.mirror.clone(), name.clone());
            self.cas.run(async move { mirror.update(&name, number, record.as_ref(), own_token).await }).await
        };
        let result = tokio::time::timeout(timeout, work).await;
        self.mirror.record_result(name, matches!(result, Ok(Ok(()))));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(lock = %name, %error, "failed to show the holder of this lock on its issue");
            }
            Err(_) => tracing::warn!(lock = %name, "the holder of this lock is not shown on its issue yet"),
        }
    }
}
