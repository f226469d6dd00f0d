//! Implementation of `LockStore` on issues.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::acquire::AcquireAttempt;
use super::claim::{CommentContent, ParsedComment};
use super::history::{HistoryPosition, page};
use super::issues;
use super::protocol::{Protocol, person_lease};
use crate::Result;
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, NotHeld, Outcome, Swept, Timestamp, Token};
use crate::store::background::Background;
use crate::store::github::api::{Comment, Read};
use crate::store::in_order::InOrder;
use crate::store::lock_store::page_size;
use crate::store::wake::Waiters;
use crate::store::{BootInstant, Cursor, ListEvents, ListLocks, LockStore, Page, WaiterSubscription};

pub(crate) struct GithubLocks {
    pub(crate) protocol: Arc<Protocol>,
    pub(crate) background: Arc<Background>,
    in_order: InOrder<LockName>,
    waiters: Waiters,
}

pub(crate) const POLL: Duration = Duration::from_secs(10);

impl GithubLocks {
    pub(crate) fn new(protocol: Arc<Protocol>, background: Arc<Background>) -> Self {
        Self { protocol, background, in_order: InOrder::default(), waiters: Waiters::default() }
    }
}

#[async_trait]
impl LockStore for GithubLocks {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        // A call sends nothing before its turn. From then on it runs to completion even if its
        // caller is dropped, and later calls for this lock wait for it.
        let turn = match op {
            // The lease would end behind the polls of many waiters of this process.
            LockOp::Renew(_) | LockOp::RenewLogged(_) | LockOp::Release(_) => {
                self.in_order.enter_first(name.clone()).await
            }
            _ => self.in_order.enter(name.clone()).await,
        };
        let (protocol, name, op) = (self.protocol.clone(), name.clone(), op.clone());
        let work = async move {
            let outcome = protocol.apply(&name, &op).await;
            drop(turn);
            outcome
        };
        self.background.run(work).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let (protocol, name) = (self.protocol.clone(), name.clone());
        self.background.run(async move { protocol.get(&name).await }).await
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let (protocol, query) = (self.protocol.clone(), query.clone());
        self.background.run(async move { protocol.list(&query).await }).await
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let (protocol, query) = (self.protocol.clone(), query.clone());
        self.background.run(async move { protocol.history(&query).await }).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let protocol = self.protocol.clone();
        self.background.run(async move { protocol.now().await }).await
    }

    fn subscribe_waiter(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
        self.waiters.polling(lock, *waiter, POLL.mul_f64(0.75 + fastrand::f64() / 4.0))
    }

    async fn sweep(&self, limit: u32) -> Result<Swept> {
        let protocol = self.protocol.clone();
        self.background.run(async move { protocol.sweep_all(limit).await }).await
    }
}

impl Protocol {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        let LockOp::Acquire(acquire) = op else {
            return match self.issues.find(&self.api, name).await? {
                Some(number) => self.apply_to(number, op).await,
                None => Ok(outcome_without_lock(op)),
            };
        };
        for tries in 0..2 {
            let number = self.issues.find_or_create(&self.api, name).await?;
            let attempt = AcquireAttempt {
                name,
                number,
                request: &acquire.request,
                steal_after: acquire.steal_after,
                update: None,
                is_admin: false,
            };
            match self.acquire(&attempt).await {
                // The issue that was created for this name has been deleted: create another one.
                Err(_)
                    if tries == 0
                        && issues::issue_number(name).is_none()
                        && self.is_deleted(number).await =>
                {
                    self.issues.forget(name);
                }
                outcome => return outcome,
            }
        }
        unreachable!("the second attempt returns")
    }

    async fn is_deleted(&self, number: u64) -> bool {
        matches!(self.api.issue(number, Read::Fresh).await, Ok(None))
    }

    async fn apply_to(&self, number: u64, op: &LockOp) -> Result<Outcome> {
        match op {
            // The claim counts its renewals; there is no history that could record each of them.
            LockOp::Renew(renew) | LockOp::RenewLogged(renew) => self.renew(number, renew).await,
            LockOp::Release(release) => self.release(number, release).await,
            LockOp::Withdraw(leave) => self.withdraw(number, &leave.lease_id).await,
            LockOp::RequestRelease(request) => self.request_release(number, request).await,
            LockOp::ForceRelease(force) => self.force_release(number, force).await,
            LockOp::Sweep(sweep) => self.sweep(number, &sweep.dead).await.map(Outcome::Swept),
            // The service restarts at any time, and no process on it holds a lease.
            LockOp::Acquire(_) | LockOp::Restarted(_) => Ok(Outcome::Swept(Swept::default())),
        }
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let Some(number) = self.issues.find(&self.api, name).await? else { return Ok(None) };
        let Some(issue) = self.api.issue(number, Read::IfChanged).await? else {
            self.issues.forget(name);
            return Ok(None);
        };
        let view = self.read_cached(number).await?;
        let people: Vec<_> =
            self.assigned_people(&issue.value, &view).into_iter().map(person_lease).collect();
        let held_by_people = || (!people.is_empty()).then(|| LockRecord::new(name.clone()));
        let mut record = view.record(name).or_else(held_by_people);
        if let Some(record) = &mut record {
            record.holders.extend(people);
        }
        Ok(record)
    }

    /// Returns the locks with leasehold's label, and the locks that are named after the number of
    /// their issue, sorted by name. Reading one of them costs a request.
    async fn names(&self, prefix: &str) -> Result<Vec<(LockName, u64)>> {
        let listed = self.api.list_lock_issues().await?;
        let open = listed.value.iter().filter(|issue| !issue.is_closed());
        let mut names: Vec<_> =
            open.filter_map(|issue| issues::lock_name_of(issue).map(|name| (name, issue.number))).collect();
        if issues::may_be_numbered(prefix) {
            let labelled: HashSet<u64> = names.iter().map(|(_, number)| *number).collect();
            let numbered = self.numbered().await?;
            names.extend(numbered.into_iter().filter(|(_, number)| !labelled.contains(number)));
        }
        names.sort();
        Ok(names)
    }

    /// Returns the locks that are named after the number of their issue and are held, or whose
    /// holder has died. Such an issue does not have leasehold's label: its claim is found among the
    /// comments that changed last, because every renewal changes the claim. The claim on a task is
    /// not a lock.
    async fn numbered(&self) -> Result<Vec<(LockName, u64)>> {
        let recent = self.api.recent_comments().await?;
        let (now, mut seen) = (recent.now, HashSet::new());
        let claimed = |comment: &Comment| {
            let ParsedComment::Ours(content) =
                CommentContent::parse(comment.body.as_deref().unwrap_or_default())
            else {
                return None;
            };
            let claim = match *content {
                CommentContent::Held(claim) => claim,
                CommentContent::Released(claim) if claim.until.is_some_and(|until| now < until) => claim,
                _ => return None,
            };
            let name = LockName::new(claim.lock.clone()).ok().filter(|_| claim.task.is_none())?;
            let number = issues::issue_number(&name).filter(|number| comment.issue() == Some(*number))?;
            Some((name, number))
        };
        let ours = recent.value.iter().filter(|comment| self.is_trusted(comment)).filter_map(claimed);
        Ok(ours.filter(|(_, number)| seen.insert(*number)).collect())
    }

    async fn list(&self, query: &ListLocks) -> Result<Page<LockRecord>> {
        let (limit, prefix) = (page_size(query.limit) as usize, query.prefix.as_deref().unwrap_or_default());
        let after = query.after.as_ref().map(|after| after.0.as_str());
        let mut items = Vec::new();
        for (name, number) in self.names(prefix).await? {
            if !name.as_str().starts_with(prefix) || after.is_some_and(|after| name.as_str() <= after) {
                continue;
            }
            let view = self.read_fresh(number).await?;
            let Some(record) = view.record(&name) else { continue };
            if query.state.is_none_or(|state| state.matches(&record, view.now)) {
                items.push(record);
            }
            if items.len() == limit {
                return Ok(Page { items, next: Some(Cursor(name.as_str().to_owned())) });
            }
        }
        Ok(Page { items, next: None })
    }

    async fn history(&self, query: &ListEvents) -> Result<Page<Event>> {
        let locks = match &query.lock {
            Some(name) => {
                let number = self.issues.find(&self.api, name).await?;
                number.map(|number| (name.clone(), number)).into_iter().collect()
            }
            None => self.names("").await?,
        };
        let mut events = Vec::new();
        for (name, number) in locks {
            let view = self.read_fresh(number).await?;
            let mut events_of_lock = view.events(&name);
            events_of_lock.extend(self.assignment_events(&name, number, &view).await?);
            events.extend(
                events_of_lock
                    .into_iter()
                    .map(|(number, event)| (HistoryPosition { number, lock: name.clone() }, event)),
            );
        }
        events.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(page(events, &query.span, page_size(query.limit) as usize))
    }

    /// Returns the service's time according to earlier responses, or queries the service.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        match self.api.dates.lower_bound(BootInstant::now()) {
            Some(time) => Ok(time),
            None => self.api.now().await,
        }
    }

    async fn sweep_all(&self, limit: u32) -> Result<Swept> {
        let mut swept = Swept::default();
        for (_, number) in self.names("").await?.into_iter().take(limit as usize) {
            swept += self.sweep(number, &[]).await?;
        }
        Ok(swept)
    }
}

/// Returns the outcome of an operation on a lock that does not exist.
fn outcome_without_lock(op: &LockOp) -> Outcome {
    match op {
        LockOp::Withdraw(_) => Outcome::Withdrawn,
        LockOp::Sweep(_) | LockOp::Restarted(_) => Outcome::Swept(Swept::default()),
        _ => Outcome::NotHeld(NotHeld { token: Token::default(), holders: Vec::new() }),
    }
}
