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

/// Number of history positions per lease.
const POSITIONS_PER_LEASE: u64 = 16;
/// Number of a lease's end within the numbers of that lease; its release requests have lower
/// numbers.
const LAST_POSITION: u64 = POSITIONS_PER_LEASE - 1;

impl View {
    /// Returns the history in order, each event with a number that does not change.
    pub(in crate::store::github) fn events(&self, name: &LockName) -> Vec<(u64, Event)> {
        let mut leases: BTreeMap<Token, LeaseHistory> = BTreeMap::new();
        for post in &self.posts {
            if let Some(CommentContent::Held(claim) | CommentContent::Released(claim)) = &post.content {
                let end = matches!(post.content, Some(CommentContent::Released(_))).then(|| LeaseEvent {
                    kind: EventKind::Released,
                    at: post.updated_at,
                    until: claim.until,
                    by: None,
                    reason: None,
                });
                leases.insert(
                    claim.token,
                    LeaseHistory::new(claim.lease_id, &claim.holder, claim.acquired_at, claim.renewals, end),
                );
            }
        }
        for ended in self.ended_leases() {
            let kind = match ended.how {
                EndKind::Expired => EventKind::Expired,
                EndKind::Stolen => EventKind::Stolen,
                EndKind::Forced => EventKind::Forced,
            };
            let end = LeaseEvent {
                kind,
                at: ended.at,
                until: None,
                by: ended.by.clone(),
                reason: ended.reason.clone(),
            };
            leases.insert(
                ended.token,
                LeaseHistory::new(
                    ended.lease_id,
                    &ended.holder,
                    ended.acquired_at,
                    ended.renewals,
                    Some(end),
                ),
            );
        }
        let mut events = Vec::new();
        for (token, lease) in &leases {
            let requests = self.stop_requests().filter(|(_, stop_request)| stop_request.token == *token);
            let requests = requests.map(|(post, stop_request)| LeaseEvent {
                kind: EventKind::ReleaseRequested,
                at: post.created_at,
                until: None,
                by: Some(stop_request.by.clone()),
                reason: stop_request.reason.clone(),
            });
            // The last number of a lease is reserved for its end. Release requests that exceed the
            // numbers in between are left out.
            let requests = (1..LAST_POSITION).zip(requests);
            let acquired = LeaseEvent {
                kind: EventKind::Acquired,
                at: lease.since,
                until: None,
                by: None,
                reason: None,
            };
            let all = [(0, acquired)]
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

/// Event of a lease.
#[derive(Clone)]
struct LeaseEvent {
    kind: EventKind,
    at: Timestamp,
    until: Option<Timestamp>,
    by: Option<Holder>,
    reason: Option<Reason>,
}

impl LeaseHistory {
    fn new(id: LeaseId, holder: &Holder, since: Timestamp, renewals: u64, end: Option<LeaseEvent>) -> Self {
        Self { id, holder: holder.clone(), since, renewals, end }
    }

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
            let after = u64::try_from(created_at.since(from).as_micros()).unwrap_or(u64::MAX);
            let event = Event {
                at: created_at,
                lock: name.clone(),
                kind,
                token: Token::default(),
                lease_id: LeaseId::from_uuid(Uuid::nil()),
                holder: person_holder(&user.login, from).holder,
                mode: Mode::Exclusive,
                slots: Slots::default(),
                after_micros: after,
                renewals: 0,
                until: None,
                by: None,
                reason: None,
            };
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
pub(in crate::store::github) fn page(
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
    let last = events.last().map(|(position, _)| position.cursor());
    let next = match range {
        EventRange::After(after) => Some(last.unwrap_or_else(|| after.clone())),
        _ => last.filter(|_| events.len() == limit),
    };
    Page { items: events.into_iter().map(|(_, event)| event).collect(), next }
}
