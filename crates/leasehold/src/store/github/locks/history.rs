//! History of a lock: the leases that its comments show, and the assignments of people.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::claim::{CommentContent, EndKind};
use super::protocol::{Protocol, person_holder};
use super::view::View;
use crate::Result;
use crate::model::{Event, EventKind, Holder, LeaseId, LockName, Mode, Reason, Slots, Timestamp, Token};
use crate::store::github::api::IssueEvent;
use crate::store::{Cursor, EventRange, Page};

const POSITIONS_PER_LEASE: u64 = 16;
/// Position of a lease's end within those of the lease; its release requests come before.
const LAST_POSITION: u64 = POSITIONS_PER_LEASE - 1;

impl View {
    /// Returns the history in order, each event with a number that does not change.
    pub(crate) fn events(&self, name: &LockName) -> Vec<(u64, Event)> {
        let mut leases: BTreeMap<Token, LeaseHistory> = BTreeMap::new();
        for post in &self.posts {
            if let Some(CommentContent::Held(claim) | CommentContent::Released(claim)) = &post.content {
                let end = matches!(post.content, Some(CommentContent::Released(_))).then(|| LeaseEvent {
                    until: claim.until,
                    ..LeaseEvent::new(EventKind::Released, post.updated_at)
                });
                let (id, holder) = (claim.lease_id, claim.holder.clone());
                let (since, renewals) = (claim.acquired_at, claim.renewals);
                leases.insert(claim.token, LeaseHistory { id, holder, since, renewals, end });
            }
        }
        for ended in self.ended_leases() {
            let kind = match ended.how {
                EndKind::Expired => EventKind::Expired,
                EndKind::Stolen => EventKind::Stolen,
                EndKind::Forced => EventKind::Forced,
            };
            let (by, reason) = (ended.by.clone(), ended.reason.clone());
            let end = Some(LeaseEvent { by, reason, ..LeaseEvent::new(kind, ended.at) });
            let (id, holder) = (ended.lease_id, ended.holder.clone());
            let (since, renewals) = (ended.acquired_at, ended.renewals);
            leases.insert(ended.token, LeaseHistory { id, holder, since, renewals, end });
        }
        let mut events = Vec::new();
        for (token, lease) in &leases {
            let requests = self.stop_requests().filter(|(_, stop_request)| stop_request.token == *token);
            let requests = requests.map(|(post, stop_request)| LeaseEvent {
                by: Some(stop_request.by.clone()),
                reason: stop_request.reason.clone(),
                ..LeaseEvent::new(EventKind::ReleaseRequested, post.created_at)
            });
            // The last number of a lease is reserved for its end. Release requests that exceed the
            // numbers in between are left out.
            let requests = (1..LAST_POSITION).zip(requests);
            let all = [(0, LeaseEvent::new(EventKind::Acquired, lease.since))]
                .into_iter()
                .chain(requests)
                .chain(lease.end.clone().map(|end| (LAST_POSITION, end)));
            events.extend(all.map(|(number, event)| {
                (token.get() * POSITIONS_PER_LEASE + number, lease.event(name, *token, event))
            }));
        }
        events
    }
}

/// Start, renewals and end of one lease, for the history.
struct LeaseHistory {
    id: LeaseId,
    holder: Holder,
    since: Timestamp,
    renewals: u64,
    end: Option<LeaseEvent>,
}

#[derive(Clone)]
struct LeaseEvent {
    kind: EventKind,
    at: Timestamp,
    until: Option<Timestamp>,
    by: Option<Holder>,
    reason: Option<Reason>,
}

impl LeaseEvent {
    fn new(kind: EventKind, at: Timestamp) -> Self {
        Self { kind, at, until: None, by: None, reason: None }
    }
}

impl LeaseHistory {
    fn event(&self, name: &LockName, token: Token, event: LeaseEvent) -> Event {
        let after = u64::try_from(event.at.since(self.since).as_micros()).unwrap_or(u64::MAX);
        Event {
            at: event.at,
            lock: name.clone(),
            kind: event.kind,
            token,
            lease_id: self.id,
            holder: self.holder.clone(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            after_micros: after,
            renewals: if event.kind == EventKind::Acquired { 0 } else { self.renewals },
            until: event.until,
            by: event.by,
            reason: event.reason,
        }
    }
}

impl Protocol {
    /// Returns the assignments of people, each with a number among those of the leases. Leaves out
    /// logins that have a claim on this issue: they belong to programs, and their comments contain
    /// more.
    pub(super) async fn assignment_events(
        &self,
        name: &LockName,
        issue: u64,
        view: &View,
    ) -> Result<Vec<(u64, Event)>> {
        let mut events = Vec::new();
        let mut since: Vec<(String, Timestamp)> = Vec::new();
        for IssueEvent { event, assignee, created_at, .. } in self.api.events(issue).await? {
            let Some(user) = assignee.filter(|user| !user.is_bot() && !self.is_program(&user.login, view))
            else {
                continue;
            };
            let open = since.iter().position(|(login, _)| *login == user.login);
            let (kind, from) = match (event.as_str(), open) {
                ("assigned", None) => {
                    since.push((user.login.clone(), created_at));
                    (EventKind::Acquired, created_at)
                }
                ("unassigned", Some(position)) => (EventKind::Released, since.remove(position).1),
                _ => continue,
            };
            let (id, holder) = (LeaseId::from_uuid(Uuid::nil()), person_holder(&user.login, from).holder);
            let assignment = LeaseHistory { id, holder, since: from, renewals: 0, end: None };
            let event = assignment.event(name, Token::default(), LeaseEvent::new(kind, created_at));
            // Tokens are times as long as no two leases begin in the same second, so this number
            // places the event approximately where it belongs.
            events.push((created_at.as_micros().saturating_mul(POSITIONS_PER_LEASE), event));
        }
        Ok(events)
    }
}

/// Position in the history, which is in the order of leases, that is, of their tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HistoryPosition {
    pub(super) number: u64,
    pub(super) lock: LockName,
}

impl HistoryPosition {
    fn cursor(&self) -> Cursor {
        Cursor(format!("{}/{}", self.number, self.lock))
    }

    /// Compares this position with a cursor: `Less` if it is before the cursor, `Greater` if after.
    fn compare(&self, cursor: &Cursor) -> std::cmp::Ordering {
        let (number, lock) = cursor.0.split_once('/').unwrap_or((&cursor.0, ""));
        (self.number, self.lock.as_str()).cmp(&(number.parse().unwrap_or(0), lock))
    }
}

/// Returns the part of the sorted events that a query asks for.
pub(crate) fn page(
    mut events: Vec<(HistoryPosition, Event)>,
    range: &EventRange,
    limit: usize,
) -> Page<Event> {
    match range {
        EventRange::Newest => events.reverse(),
        EventRange::Before(cursor) => {
            events.retain(|(position, _)| position.compare(cursor).is_lt());
            events.reverse();
        }
        EventRange::After(cursor) => events.retain(|(position, _)| position.compare(cursor).is_gt()),
    }
    events.truncate(limit);
    Page::of_events(events, range, limit, HistoryPosition::cursor)
}
