//! Assignments of people in the history of a lock: which login was assigned, and until when.

use uuid::Uuid;

use super::answers::IssueEvent;
use super::protocol::{Protocol, person};
use super::view::{PLACES, View};
use crate::Result;
use crate::model::{Event, EventKind, LeaseId, LockName, Mode, Slots, Timestamp, Token};

impl Protocol {
    /// Returns the assignments of people, each with a number among those of the leases. Leaves out
    /// logins that have a claim on this issue: they belong to programs, and their comments contain
    /// more.
    pub(super) async fn told_by_people(
        &self,
        name: &LockName,
        issue: u64,
        view: &View,
    ) -> Result<Vec<(u64, Event)>> {
        let mut told = Vec::new();
        let mut since: Vec<(String, Timestamp)> = Vec::new();
        for IssueEvent { event, assignee, created_at, .. } in self.api.events(issue).await? {
            let Some(user) = assignee.filter(|user| !user.is_bot() && !self.is_program(&user.login, view))
            else {
                continue;
            };
            let begun = since.iter().position(|(login, _)| *login == user.login);
            let (kind, from) = match (event.as_str(), begun) {
                ("assigned", None) => {
                    since.push((user.login.clone(), created_at));
                    (EventKind::Acquired, created_at)
                }
                ("unassigned", Some(place)) => (EventKind::Released, since.remove(place).1),
                _ => continue,
            };
            let after = u64::try_from(created_at.since(from).as_micros()).unwrap_or(u64::MAX);
            let event = Event {
                at: created_at,
                lock: name.clone(),
                kind,
                token: Token::default(),
                lease_id: LeaseId::from_uuid(Uuid::nil()),
                holder: person(&user.login, from).holder,
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
            told.push((created_at.as_micros().saturating_mul(PLACES), event));
        }
        Ok(told)
    }
}
