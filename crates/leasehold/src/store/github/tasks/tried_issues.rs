//! Issues that calls have tried to lease in vain. The next calls leave them out, so that each call gets
//! further than the one before, however long these issues take.

use std::collections::HashMap;
use std::time::Duration;

use crate::model::{QueueName, Timestamp};
use crate::store::BootInstant;
use crate::store::github::api::Issue;
use crate::store::github::locks::GRACE;

/// Maximum time for which an issue is left out.
const MAX_AGE: Duration = Duration::from_mins(10);

/// Issues that the next call leaves out, by number.
#[derive(Default)]
pub(super) struct TriedIssues(HashMap<u64, TriedIssue>);

struct TriedIssue {
    queue: QueueName,
    reason: Reason,
    /// Time of the service until which a change of the issue may be one by the attempt itself.
    unchanged_until: Timestamp,
    retry_at: BootInstant,
}

/// Why an attempt was in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Someone else has the issue. That may end without a change of the issue, so it is tried again after
    /// each pass.
    Refused,
    /// An error, which another attempt would most likely meet again.
    Failed,
}

impl TriedIssues {
    /// Whether the issue was tried and has not changed since.
    pub(super) fn contains(&self, issue: &Issue) -> bool {
        self.0.get(&issue.number).is_some_and(|tried| {
            issue.updated_at <= tried.unchanged_until && BootInstant::now() < tried.retry_at
        })
    }

    /// Adds an issue whose attempt ended at `now`, by the service's clock; returns whether it is a new one.
    pub(super) fn insert(&mut self, number: u64, queue: QueueName, reason: Reason, now: Timestamp) -> bool {
        let here = BootInstant::now();
        self.0.retain(|_, tried| here < tried.retry_at);
        let (unchanged_until, retry_at) = (now.plus(GRACE), here.plus(MAX_AGE));
        self.0.insert(number, TriedIssue { queue, reason, unchanged_until, retry_at }).is_none()
    }

    /// Ends a pass over all issues of these queues: the next one tries them again, except those that have
    /// failed.
    pub(super) fn end_pass(&mut self, queues: &[QueueName]) {
        self.0.retain(|_, tried| tried.reason == Reason::Failed || !queues.contains(&tried.queue));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

    fn issue(number: u64, updated_at: Timestamp) -> Issue {
        serde_json::from_value(json!({
            "number": number, "state": "open", "title": "t", "comments": 0, "labels": [],
            "created_at": "2023-01-01T00:00:00Z", "updated_at": updated_at.to_string(), "closed_at": null,
        }))
        .unwrap()
    }

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn an_issue_is_left_out_until_it_changes() {
        let mut tried = TriedIssues::default();
        assert!(!tried.contains(&issue(1, NOW)));
        assert!(tried.insert(1, queue("a"), Reason::Refused, NOW));
        assert!(tried.contains(&issue(1, NOW)) && !tried.contains(&issue(2, NOW)));
        let changed = issue(1, NOW.plus(GRACE).plus(GRACE));
        assert!(!tried.contains(&changed));
        assert!(!tried.insert(1, queue("a"), Reason::Refused, changed.updated_at), "it is not a new one");
        assert!(tried.contains(&changed));
    }

    #[test]
    fn the_end_of_a_pass_concerns_its_queues_and_no_issue_that_has_failed() {
        let mut tried = TriedIssues::default();
        for (number, name, reason) in
            [(1, "a", Reason::Refused), (2, "a", Reason::Failed), (3, "b", Reason::Refused)]
        {
            tried.insert(number, queue(name), reason, NOW);
        }
        tried.end_pass(&[queue("a")]);
        assert_eq!([1, 2, 3].map(|number| tried.contains(&issue(number, NOW))), [false, true, true]);
    }

    #[test]
    fn an_issue_that_has_failed_is_tried_again_in_the_end() {
        let mut tried = TriedIssues::default();
        tried.insert(1, queue("a"), Reason::Failed, NOW);
        tried.0.get_mut(&1).unwrap().retry_at = BootInstant::now();
        assert!(!tried.contains(&issue(1, NOW)));
        assert!(tried.insert(1, queue("a"), Reason::Failed, NOW), "it was forgotten");
    }
}
