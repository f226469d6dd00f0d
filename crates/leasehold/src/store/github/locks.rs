//! Implementation of `LockStore` on issues.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::answers::Comment;
use super::api::Read;
use super::claim::{Found, Says};
use super::issues;
use super::lanes::Lanes;
use super::protocol::{Protocol, Wish, lease_of};
use crate::Result;
use crate::model::{Event, LeaseId, LockName, LockOp, LockRecord, NotHeld, Outcome, Swept, Timestamp, Token};
use crate::store::background::Background;
use crate::store::lock_store::page_size;
use crate::store::wake::Waiters;
use crate::store::{
    BootInstant, Cursor, EventRange, ListEvents, ListLocks, LockStore, Page, WaiterSubscription,
};

/// Locks on issues.
pub(super) struct GithubLocks {
    pub(super) protocol: Arc<Protocol>,
    pub(super) background: Arc<Background>,
    lanes: Lanes,
    waiters: Waiters,
}

/// Polling interval of waiters.
pub(super) const POLL: Duration = Duration::from_secs(10);

impl GithubLocks {
    pub(super) fn new(protocol: Arc<Protocol>, background: Arc<Background>) -> Self {
        Self { protocol, background, lanes: Lanes::default(), waiters: Waiters::default() }
    }
}

#[async_trait]
impl LockStore for GithubLocks {
    async fn apply(&self, name: &LockName, op: &LockOp) -> Result<Outcome> {
        // A call sends nothing before its turn. From then on it runs to completion even if its
        // caller is dropped, and later calls for this lock wait for it.
        let lane = self.lanes.enter(name).await;
        let (protocol, name, op) = (self.protocol.clone(), name.clone(), op.clone());
        let work = async move {
            let outcome = protocol.apply(&name, &op).await;
            drop(lane);
            outcome
        };
        self.background.run(work).await
    }

    async fn get(&self, name: &LockName) -> Result<Option<LockRecord>> {
        let (protocol, name) = (self.protocol.clone(), name.clone());
        self.background.run(async move { protocol.get(&name).await }).await
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let (protocol, ask) = (self.protocol.clone(), ask.clone());
        self.background.run(async move { protocol.list(&ask).await }).await
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let (protocol, ask) = (self.protocol.clone(), ask.clone());
        self.background.run(async move { protocol.history(&ask).await }).await
    }

    async fn now(&self) -> Result<Timestamp> {
        let protocol = self.protocol.clone();
        self.background.run(async move { protocol.now().await }).await
    }

    fn changes(&self, lock: Option<&LockName>, waiter: &LeaseId) -> WaiterSubscription {
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
                None => Ok(nobody(op)),
            };
        };
        for again in 0..2 {
            let number = self.issues.find_or_make(&self.api, name).await?;
            let wish = Wish {
                name,
                number,
                ask: &acquire.ask,
                steal_after: acquire.steal_after,
                errand: None,
                by_hand: false,
            };
            match self.acquire(&wish).await {
                // The issue that was created for this name has been deleted: create another one.
                Err(_) if again == 0 && issues::number(name).is_none() && self.is_deleted(number).await => {
                    self.issues.forget(name);
                }
                outcome => return outcome,
            }
        }
        unreachable!("the second time ends it")
    }

    async fn is_deleted(&self, number: u64) -> bool {
        matches!(self.api.issue(number, Read::Anew).await, Ok(None))
    }

    async fn apply_to(&self, number: u64, op: &LockOp) -> Result<Outcome> {
        match op {
            // The claim counts its renewals; there is no history that could record each of them.
            LockOp::Renew(renew) | LockOp::RenewLogged(renew) => self.renew(number, renew).await,
            LockOp::Release(release) => self.release(number, release).await,
            LockOp::Leave(leave) => self.leave(number, &leave.lease_id).await,
            LockOp::RequestRelease(ask) => self.ask_release(number, ask).await,
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
        let view = self.glance(number).await?;
        let people: Vec<_> = self.people(&issue.what, &view).into_iter().map(lease_of).collect();
        let record = view.record(name);
        let record = if people.is_empty() {
            record
        } else {
            Some(record.unwrap_or_else(|| LockRecord::new(name.clone())))
        };
        Ok(record.map(|mut record| {
            record.holders.extend(people);
            record
        }))
    }

    /// Returns the locks with leasehold's label, and the locks that are named after the number of
    /// their issue, sorted by name. Reading one of them costs a request.
    async fn names(&self, prefix: &str) -> Result<Vec<(LockName, u64)>> {
        let listed = self.api.labelled().await?;
        let open = listed.what.iter().filter(|issue| !issue.is_closed());
        let mut names: Vec<_> =
            open.filter_map(|issue| issues::lock_of(issue).map(|name| (name, issue.number))).collect();
        if issues::may_be_number(prefix) {
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
            let Found::Ours(says) = Says::read(comment.body.as_deref().unwrap_or_default()) else {
                return None;
            };
            let claim = match *says {
                Says::Held(claim) => claim,
                Says::Released(claim) if claim.until.is_some_and(|until| now < until) => claim,
                _ => return None,
            };
            let name = LockName::new(claim.lock.clone()).ok().filter(|_| claim.task.is_none())?;
            let number = issues::number(&name).filter(|number| comment.issue() == Some(*number))?;
            Some((name, number))
        };
        let ours = recent.what.iter().filter(|comment| self.is_trusted(comment)).filter_map(claimed);
        Ok(ours.filter(|(_, number)| seen.insert(*number)).collect())
    }

    async fn list(&self, ask: &ListLocks) -> Result<Page<LockRecord>> {
        let (limit, prefix) = (page_size(ask.limit) as usize, ask.prefix.as_deref().unwrap_or_default());
        let after = ask.after.as_ref().map(|after| after.0.as_str());
        let mut items = Vec::new();
        for (name, number) in self.names(prefix).await? {
            if !name.as_str().starts_with(prefix) || after.is_some_and(|after| name.as_str() <= after) {
                continue;
            }
            let view = self.look(number).await?;
            let Some(record) = view.record(&name) else { continue };
            if ask.state.is_none_or(|state| state.matches(&record, view.now)) {
                items.push(record);
            }
            if items.len() == limit {
                return Ok(Page { items, next: Some(Cursor(name.as_str().to_owned())) });
            }
        }
        Ok(Page { items, next: None })
    }

    async fn history(&self, ask: &ListEvents) -> Result<Page<Event>> {
        let locks = match &ask.lock {
            Some(name) => {
                let number = self.issues.find(&self.api, name).await?;
                number.map(|number| (name.clone(), number)).into_iter().collect()
            }
            None => self.names("").await?,
        };
        let mut events = Vec::new();
        for (name, number) in locks {
            let view = self.look(number).await?;
            let mut told = view.events(&name);
            told.extend(self.told_by_people(&name, number, &view).await?);
            events.extend(
                told.into_iter().map(|(number, event)| (Place { number, lock: name.clone() }, event)),
            );
        }
        events.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(page(events, &ask.span, page_size(ask.limit) as usize))
    }

    /// Returns the service's time according to earlier responses; queries the service if there were
    /// none.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        match self.api.dates.told(BootInstant::now()) {
            Some(told) => Ok(told),
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
fn nobody(op: &LockOp) -> Outcome {
    match op {
        LockOp::Leave(_) => Outcome::Left,
        LockOp::Sweep(_) | LockOp::Restarted(_) => Outcome::Swept(Swept::default()),
        _ => Outcome::NotHeld(NotHeld { token: Token::default(), holders: Vec::new() }),
    }
}

/// Position in the history, which is in the order of leases, that is, of their tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    number: u64,
    lock: LockName,
}

impl Place {
    fn cursor(&self) -> Cursor {
        Cursor(format!("{}/{}", self.number, self.lock))
    }

    /// Compares this position with a cursor: `Less` if it is before the cursor, `Greater` if after.
    fn compare(&self, cursor: &Cursor) -> std::cmp::Ordering {
        let (number, lock) = cursor.0.split_once('/').unwrap_or((&cursor.0, ""));
        (self.number, self.lock.as_str()).cmp(&(number.parse().unwrap_or(0), lock))
    }
}

fn page(mut events: Vec<(Place, Event)>, span: &EventRange, limit: usize) -> Page<Event> {
    match span {
        EventRange::Newest => events.reverse(),
        EventRange::Before(cursor) => {
            events.retain(|(place, _)| place.compare(cursor).is_lt());
            events.reverse();
        }
        EventRange::After(cursor) => events.retain(|(place, _)| place.compare(cursor).is_gt()),
    }
    events.truncate(limit);
    let last = events.last().map(|(place, _)| place.cursor());
    let next = match span {
        EventRange::After(after) => Some(last.unwrap_or_else(|| after.clone())),
        _ => last.filter(|_| events.len() == limit),
    };
    Page { items: events.into_iter().map(|(_, event)| event).collect(), next }
}
