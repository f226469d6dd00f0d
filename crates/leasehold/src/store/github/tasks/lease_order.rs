//! Which task is leased next. The order is that of the urgency classes of the labels, then that of the
//! rules in leasehold-model. The client reads the comments of an issue only when it is that issue's turn.
//!
//! Issues that a call has tried to lease in vain are left out by the next calls, so that each call gets
//! further than the one before, however long these issues take.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::labels;
use super::task_view::TaskView;
use crate::model::{QueueName, Task, TaskId, TaskOp, TaskState, Timestamp};
use crate::store::BootInstant;
use crate::store::github::api::Issue;
use crate::store::github::locks::GRACE;

/// Maximum time for which an issue is left out.
const MAX_AGE: Duration = Duration::from_mins(10);
/// Time for which an issue that has made a call late is left out, in times of what its step took. Each change
/// of the issue makes its comments be read again, and strangers may change it.
const PAUSE_FACTOR: u32 = 30;
/// Minimum time for which an issue is left out at which several calls in a row have failed.
const FAILURE_PAUSE: Duration = Duration::from_mins(1);
/// Number of calls in a row that fail at an issue before it is left out.
const MAX_FAILURES: u32 = 3;
/// Time after which a refused issue may be tried again although no pass has ended: a candidate of a client that
/// has died ends within it.
const REFUSED_FOR: Duration = Duration::from_secs(65);
/// Number of such issues for each call that has leased a task.
const RETRIED_PER_CALL: usize = 4;

/// Issues in the order in which they are leased.
#[derive(Default)]
pub(super) struct PendingIssues(BTreeMap<SortKey, PendingIssue>);

#[derive(Debug, Clone)]
pub(super) struct PendingIssue {
    pub(super) queue: QueueName,
    pub(super) issue: Issue,
    /// Whether the comments of the issue were read, or there are none.
    pub(super) is_known: bool,
    /// Whether a person has requested a retry on the issue.
    pub(super) retry_requested: bool,
}

/// Position of a task among those of its urgency class.
pub(super) type Order = (i64, Timestamp, TaskId);

/// Position of an issue, which ends with its number. The smallest is next.
type SortKey = (i32, Order, u64);

#[derive(Debug)]
pub(super) enum NextStep {
    /// The task can be leased; this is its position among others.
    Lease(Order),
    /// The task is not due before this time.
    NotDue(Timestamp),
    /// The issue does not match the record of its task.
    UpdateIssue,
    /// Nothing: a worker holds the task, or the task has ended.
    Skip,
}

impl PendingIssues {
    /// Adds an issue at the earliest position that it can have.
    pub(super) fn add(&mut self, queue: &QueueName, issue: Issue, issue_task: &Task, is_known: bool) {
        let key = sort_key(&issue, issue_task.order());
        let queue = queue.clone();
        self.0.insert(key, PendingIssue { queue, issue, is_known, retry_requested: false });
    }

    /// Adds an issue again, now that its position is known.
    pub(super) fn reinsert(&mut self, mut entry: PendingIssue, order: Order) {
        entry.is_known = true;
        self.0.insert(sort_key(&entry.issue, order), entry);
    }

    pub(super) fn next(&mut self) -> Option<PendingIssue> {
        self.0.pop_first().map(|(_, entry)| entry)
    }
}

fn sort_key(issue: &Issue, order: Order) -> SortKey {
    (-labels::urgency(issue).0, order, issue.number)
}

impl NextStep {
    pub(super) fn of(task_view: &TaskView, issue: &Issue) -> Self {
        let mut task = task_view.task.clone();
        if task_view.is_lease_expired() {
            task.apply(&TaskOp::Expire, task_view.now);
            return Self::Lease(task.order());
        }
        match task.state {
            TaskState::Pending => Self::Lease(task.order()),
            TaskState::Scheduled => Self::NotDue(task.run_at),
            _ if task_view.is_issue_outdated(issue) => Self::UpdateIssue,
            _ => Self::Skip,
        }
    }
}

/// Issues that the next call leaves out, by number.
#[derive(Default)]
pub(super) struct TriedIssues {
    issues: HashMap<u64, TriedIssue>,
    /// Issue at which the last calls have failed, and their number.
    failing: Option<(u64, u32)>,
}

struct TriedIssue {
    queue: QueueName,
    reason: Reason,
    since: BootInstant,
    /// Time until which the issue is left out whether or not it changes.
    paused_until: BootInstant,
    /// Time of the service until which a change of the issue may be one by the attempt itself.
    unchanged_until: Timestamp,
}

/// Attempt that was in vain.
pub(super) struct Attempt {
    pub(super) number: u64,
    pub(super) queue: QueueName,
    /// Time at which it ended, by the service's clock.
    pub(super) ended_at: Timestamp,
    /// Time that it took, if that has made a call late.
    pub(super) delayed_by: Option<Duration>,
    /// Time until the task is due, if it is not due yet.
    pub(super) due_in: Option<Duration>,
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

impl TriedIssue {
    fn is_paused(&self, now: BootInstant) -> bool {
        now < self.paused_until
    }

    fn is_old(&self, now: BootInstant) -> bool {
        now.after(self.since) >= MAX_AGE
    }
}

impl TriedIssues {
    /// Whether the issue was tried and has not changed since, or is paused.
    pub(super) fn contains(&self, issue: &Issue) -> bool {
        let now = BootInstant::now();
        self.issues.get(&issue.number).is_some_and(|tried| {
            tried.is_paused(now) || (issue.updated_at <= tried.unchanged_until && !tried.is_old(now))
        })
    }

    /// Adds an issue; returns whether the next call gets further because of that.
    pub(super) fn insert(&mut self, reason: Reason, attempt: Attempt) -> bool {
        let longest = attempt.due_in.unwrap_or(MAX_AGE).min(MAX_AGE);
        let pause = attempt.delayed_by.map(|took| (PAUSE_FACTOR * took).min(longest)).unwrap_or_default();
        let is_new = self.insert_paused(reason, attempt, pause);
        is_new || !pause.is_zero()
    }

    fn insert_paused(&mut self, reason: Reason, attempt: Attempt, pause: Duration) -> bool {
        let now = BootInstant::now();
        self.issues.retain(|_, tried| tried.is_paused(now) || !tried.is_old(now));
        let Attempt { number, queue, ended_at, .. } = attempt;
        let (paused_until, unchanged_until) = (now.plus(pause), ended_at.plus(GRACE));
        let tried = TriedIssue { queue, reason, since: now, paused_until, unchanged_until };
        self.issues.insert(number, tried).is_none()
    }

    /// Records that a call fails at this issue, and that the next one would fail there again. If several calls
    /// in a row do, the issue is left out for a while.
    pub(super) fn record_failure(&mut self, attempt: Attempt) {
        let before =
            self.failing.filter(|(number, _)| *number == attempt.number).map_or(0, |(_, calls)| calls);
        if before + 1 < MAX_FAILURES {
            self.failing = Some((attempt.number, before + 1));
            return;
        }
        self.failing = None;
        let pause = PAUSE_FACTOR * attempt.delayed_by.unwrap_or_default();
        self.insert_paused(Reason::Refused, attempt, pause.clamp(FAILURE_PAUSE, MAX_AGE));
    }

    /// Ends a call without an error. After one that has leased a task (`has_leased`), some of the issues that were
    /// refused a while ago are tried again: in a busy queue no pass ends.
    pub(super) fn end_call(&mut self, has_leased: bool) {
        self.failing = None;
        if !has_leased {
            return;
        }
        let now = BootInstant::now();
        let is_due = |tried: &TriedIssue| {
            tried.reason == Reason::Refused && !tried.is_paused(now) && now.after(tried.since) >= REFUSED_FOR
        };
        let mut due: Vec<_> = self
            .issues
            .iter()
            .filter(|(_, tried)| is_due(tried))
            .map(|(number, tried)| (tried.since, *number))
            .collect();
        due.sort_unstable();
        for (_, number) in due.into_iter().take(RETRIED_PER_CALL) {
            self.issues.remove(&number);
        }
    }

    /// Ends a pass over all issues of these queues: the next one tries them again, except those that have
    /// failed or are paused.
    pub(super) fn end_pass(&mut self, queues: &[QueueName]) {
        let now = BootInstant::now();
        self.issues.retain(|_, tried| {
            tried.reason == Reason::Failed || tried.is_paused(now) || !queues.contains(&tried.queue)
        });
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

    fn attempt(number: u64, name: &str) -> Attempt {
        Attempt { number, queue: queue(name), ended_at: NOW, delayed_by: None, due_in: None }
    }

    /// Lets time pass for all issues.
    fn advance(tried: &mut TriedIssues, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap();
        let earlier = |at: BootInstant| BootInstant::from_micros(at.as_micros().saturating_sub(micros));
        for tried in tried.issues.values_mut() {
            (tried.since, tried.paused_until) = (earlier(tried.since), earlier(tried.paused_until));
        }
    }

    #[test]
    fn an_issue_is_left_out_until_it_changes() {
        let mut tried = TriedIssues::default();
        assert!(!tried.contains(&issue(1, NOW)));
        assert!(tried.insert(Reason::Refused, attempt(1, "a")));
        assert!(tried.contains(&issue(1, NOW)) && !tried.contains(&issue(2, NOW)));
        let changed = issue(1, NOW.plus(GRACE).plus(GRACE));
        assert!(!tried.contains(&changed));
        let again = Attempt { ended_at: changed.updated_at, ..attempt(1, "a") };
        assert!(!tried.insert(Reason::Refused, again), "it is not a new one");
        assert!(tried.contains(&changed));
    }

    #[test]
    fn an_issue_that_has_made_a_call_late_is_left_out_whether_or_not_it_changes() {
        let mut tried = TriedIssues::default();
        let changed = issue(1, NOW.plus(GRACE).plus(GRACE));
        let slow = || Attempt { delayed_by: Some(Duration::from_secs(6)), ..attempt(1, "a") };
        for _ in 0..2 {
            assert!(tried.insert(Reason::Refused, slow()), "the next call gets further");
            tried.end_pass(&[queue("a")]);
            advance(&mut tried, Duration::from_secs(170));
            assert!(tried.contains(&changed));
            advance(&mut tried, Duration::from_secs(20));
            assert!(!tried.contains(&changed));
        }
    }

    #[test]
    fn an_issue_that_has_made_a_call_late_is_read_again_when_it_is_due() {
        let mut tried = TriedIssues::default();
        let (took, due_in) = (Some(Duration::from_secs(6)), Some(Duration::from_secs(10)));
        tried.insert(Reason::Refused, Attempt { delayed_by: took, due_in, ..attempt(1, "a") });
        let changed = issue(1, NOW.plus(GRACE).plus(GRACE));
        advance(&mut tried, Duration::from_secs(9));
        assert!(tried.contains(&changed));
        advance(&mut tried, Duration::from_secs(1));
        assert!(!tried.contains(&changed));
        tried.end_pass(&[queue("a")]);
        assert!(!tried.contains(&issue(1, NOW)));
    }

    #[test]
    fn an_issue_at_which_calls_fail_is_left_out_for_a_while() {
        let mut tried = TriedIssues::default();
        for _ in 0..2 {
            tried.record_failure(attempt(1, "a"));
            tried.record_failure(attempt(2, "a"));
            tried.record_failure(attempt(2, "a"));
            assert!(!tried.contains(&issue(2, NOW)), "two calls in a row");
            tried.end_call(false);
        }
        for _ in 0..3 {
            assert!(!tried.contains(&issue(1, NOW)));
            tried.record_failure(attempt(1, "a"));
        }
        tried.end_pass(&[queue("a")]);
        assert!(tried.contains(&issue(1, NOW.plus(GRACE).plus(GRACE))));
        advance(&mut tried, FAILURE_PAUSE);
        tried.end_pass(&[queue("a")]);
        assert!(!tried.contains(&issue(1, NOW)));
    }

    #[test]
    fn the_end_of_a_pass_concerns_its_queues_and_no_issue_that_has_failed() {
        let mut tried = TriedIssues::default();
        for (number, name, reason) in
            [(1, "a", Reason::Refused), (2, "a", Reason::Failed), (3, "b", Reason::Refused)]
        {
            tried.insert(reason, attempt(number, name));
        }
        tried.end_pass(&[queue("a")]);
        assert_eq!([1, 2, 3].map(|number| tried.contains(&issue(number, NOW))), [false, true, true]);
    }

    #[test]
    fn in_a_busy_queue_the_oldest_refused_issues_are_tried_again() {
        let mut tried = TriedIssues::default();
        let contained =
            |tried: &TriedIssues| (1..=8).filter(|number| tried.contains(&issue(*number, NOW))).count();
        for number in 1..=6 {
            tried.insert(Reason::Refused, attempt(number, "a"));
        }
        tried.insert(Reason::Failed, attempt(7, "a"));
        tried.end_call(true);
        assert_eq!(contained(&tried), 7, "they have just been tried");
        advance(&mut tried, REFUSED_FOR);
        tried.insert(Reason::Refused, attempt(8, "a"));
        tried.end_call(false);
        assert_eq!(contained(&tried), 8, "no task was leased");
        for left in [4, 2, 2] {
            tried.end_call(true);
            assert_eq!(contained(&tried), left);
        }
    }

    #[test]
    fn an_issue_that_has_failed_is_tried_again_in_the_end() {
        let mut tried = TriedIssues::default();
        tried.insert(Reason::Failed, attempt(1, "a"));
        advance(&mut tried, MAX_AGE);
        assert!(!tried.contains(&issue(1, NOW)));
        assert!(tried.insert(Reason::Failed, attempt(1, "a")), "it was forgotten");
    }
}
