//! Retention of finished tasks.

use serde::{Deserialize, Serialize};

use super::TaskState;
use crate::{QueueName, Timestamp, Ttl, ValidationError, WorkflowName, parse_duration};

/// Retention times of the finished tasks of a queue, by final state. `None` keeps tasks forever.
///
/// The key of a task is removed with the task, and so is the record of a schedule's tick: keep both
/// for longer than the maximum delay of a repeated delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Retention {
    /// Retention of tasks that succeeded.
    pub succeeded: Option<Ttl>,
    /// Retention of tasks that failed.
    pub failed: Option<Ttl>,
    /// Retention of tasks that were aborted.
    pub aborted: Option<Ttl>,
}

impl Retention {
    /// Default retention: seven days.
    pub const DEFAULT: Self = Self::all(Some(Ttl::from_secs(7 * 24 * 3600)));
    /// Minimum retention of workflow executions: an event may be delivered again this late. Shorter
    /// times are raised to this value.
    pub const EXECUTIONS: Ttl = Ttl::from_secs(30 * 24 * 3600);

    /// Creates a retention with the same time for every state.
    pub const fn all(keep: Option<Ttl>) -> Self {
        Self { succeeded: keep, failed: keep, aborted: keep }
    }

    /// Parses a retention time: a duration, or `forever`.
    pub fn parse_keep(text: &str) -> Result<Option<Ttl>, ValidationError> {
        if text == "forever" {
            return Ok(None);
        }
        let keep = parse_duration(text).and_then(Ttl::new);
        keep.map(Some)
            .map_err(|error| error.map_message(|wrong| format!("{wrong} (forever is possible too)")))
    }

    /// Returns the effective retention of this queue: executions of workflows are kept for at least
    /// [`EXECUTIONS`](Self::EXECUTIONS).
    #[must_use]
    pub fn of_queue(self, queue: &QueueName) -> Self {
        if WorkflowName::of_queue(queue).is_none() {
            return self;
        }
        let longer = |keep: Option<Ttl>| keep.map(|keep| keep.max(Self::EXECUTIONS));
        Self { succeeded: longer(self.succeeded), failed: longer(self.failed), aborted: longer(self.aborted) }
    }

    /// Returns the tasks to purge at `now`: pairs of a final state (`None`: any) and the time
    /// before which a task must have finished.
    pub fn cutoffs(self, now: Timestamp) -> Vec<(Option<TaskState>, Timestamp)> {
        let before = |keep: Ttl| now.minus(keep.as_duration());
        if self == Self::all(self.succeeded) {
            return self.succeeded.map(|keep| (None, before(keep))).into_iter().collect();
        }
        let states = [
            (TaskState::Succeeded, self.succeeded),
            (TaskState::Failed, self.failed),
            (TaskState::Aborted, self.aborted),
        ];
        states.into_iter().filter_map(|(state, keep)| Some((Some(state), before(keep?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Ttl = Ttl::from_secs(3600);

    #[test]
    fn executions_are_kept_for_a_month_at_least() {
        let (mail, deploy) = (QueueName::new("mail").unwrap(), WorkflowName::new("deploy").unwrap().queue());
        let short = Retention { failed: None, ..Retention::all(Some(HOUR)) };
        assert_eq!(short.of_queue(&mail), short);
        let month = Retention { failed: None, ..Retention::all(Some(Retention::EXECUTIONS)) };
        assert_eq!(short.of_queue(&deploy), month);
        let long = Retention::all(Some(Ttl::MAX));
        assert_eq!(long.of_queue(&deploy), long);
    }

    #[test]
    fn one_time_for_all_states_is_one_cutoff() {
        let (now, then) = (Timestamp::from_micros(5_000_000_000), Timestamp::from_micros(1_400_000_000));
        assert_eq!(Retention::all(Some(HOUR)).cutoffs(now), [(None, then)]);
        assert_eq!(Retention::all(None).cutoffs(now), []);
        let mixed = Retention { failed: None, ..Retention::all(Some(HOUR)) };
        let states = [(Some(TaskState::Succeeded), then), (Some(TaskState::Aborted), then)];
        assert_eq!(mixed.cutoffs(now), states);
    }
}
