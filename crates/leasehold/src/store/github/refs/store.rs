//! Store on git refs: the compare-and-set loop, and the display on its issue after each change of a
//! lock that is an issue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::super::api::Api;
use super::super::issues;
use super::super::options::GithubOptions;
use super::super::trouble;
use super::docs::RefDocs;
use super::shown::Shown;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, Outcome, Status, Swept, Timestamp};
use crate::store::background::Background;
use crate::store::{
    Capabilities, Cas, DocStore, HealthCheck, LeaseObservations, ListEvents, ListLocks, LockStore, Page,
    RateLimit, Store, WaiterSubscription,
};

/// Opens the repository that the options name. Fails if refs cannot be written there.
pub(in super::super) async fn connect(
    background: Background,
    options: GithubOptions,
) -> Result<Arc<dyn Store>> {
    let sights =
        if options.alone { LeaseObservations::default() } else { LeaseObservations::of_this_process() };
    let docs = background
        .run(async move {
            let api = Api::new(options)?;
            let repository = api.look_at_repository().await?;
            let may_push = repository.permissions.is_none_or(|permissions| permissions.push);
            if repository.archived || !may_push {
                let what = if repository.archived { "is archived" } else { "does not let this token push" };
                let message = format!("the GitHub repository {} {what}", api.repository());
                return Err(Error::store(StoreErrorKind::NotPermitted, message, trouble::NO_CONTENTS));
            }
            let docs = RefDocs::new(api);
            docs.tree().await?;
            Ok(docs)
        })
        .await?;
    let cas = Cas::on(background, docs.clone(), sights);
    let shown = Arc::new(Shown::new(docs.clone()));
    Ok(Arc::new(RefStore { locks: RefLocks { cas, shown, docs } }))
}

/// Maximum time that a caller waits for its display on the issue.
const PATIENCE: Duration = Duration::from_secs(15);

struct RefStore {
    locks: RefLocks,
}

/// Locks on git refs.
struct RefLocks {
    cas: Cas<RefDocs>,
    shown: Arc<Shown>,
    docs: RefDocs,
}

#[async_trait]
impl Store for RefStore {
    fn capabilities(&self) -> Capabilities {
        self.locks.docs.capabilities()
    }

    fn url(&self) -> String {
        self.locks.docs.url()
    }

    fn locks(&self) -> &dyn LockStore {
        &self.locks
    }

    /// Returns documents for tests only. Each write is two requests with a second between them: too
    /// slow for a server, which writes often.
    fn docs(&self) -> Option<&dyn DocStore> {
        self.locks.docs.0.api.options.shows_docs.then_some(&self.locks.docs)
    }

    fn budget(&self) -> Option<RateLimit> {
        self.locks.docs.0.api.pace.budget()
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
            && lease.asked.is_none()
        {
            // The number of leases of this process is not known here. Counting only this lease
            // never requests a release without need.
            lease.asked = self.docs.0.api.pace.asks_to_stop(1, lease.ask.ttl, lease.renewed_at);
            if lease.asked.is_some() {
                lease.status = Status::Releasing;
            }
        }
        if let Some(number) = issues::number(name)
            && self.shown.is_news(name, &outcome)
        {
            self.show(name, number, &outcome).await;
        }
        Ok(outcome)
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        self.cas.locks().get(name).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        self.cas.locks().list(ask).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        self.cas.locks().history(ask).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.cas.locks().now().await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.cas.locks().changes(lock, waiter)
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        self.cas.locks().sweep(limit).await
    }
}

impl RefLocks {
    /// Shows people the holder. Errors are only logged: the display decides nothing.
    async fn show(&self, name: &LockName, number: u64, outcome: &Outcome) {
        let (mine, patience) = match outcome {
            // The lease has begun: most of its time is for the holder.
            Outcome::Granted(lease) | Outcome::Renewed(lease) => {
                (Some(lease.token), PATIENCE.min(lease.ask.ttl.as_duration() / 4))
            }
            _ => (None, PATIENCE),
        };
        let work = async {
            let record = self.cas.locks().get(name).await?;
            let (shown, name) = (self.shown.clone(), name.clone());
            self.cas.run(async move { shown.show(&name, number, record.as_ref(), mine).await }).await
        };
        let shown = tokio::time::timeout(patience, work).await;
        self.shown.shown(name, matches!(shown, Ok(Ok(()))));
        match shown {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(lock = %name, %error, "who holds this lock could not be shown on its issue");
            }
            Err(_) => tracing::warn!(lock = %name, "who holds this lock is not shown on its issue yet"),
        }
    }
}
