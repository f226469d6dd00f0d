//! Times before which purges have left no task. The finished tasks of all queues are in one list, in the order of
//! their ends: a purge of one queue that always began at the first would examine all tasks that the others keep.
//!
//! Tasks get behind such a time only if the clock is set back, or if another process archives a task in the middle
//! of a search. So everything is periodically examined from the beginning.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::model::{FinishedFilter, QueueName, TaskState, Timestamp};
use crate::store::BootInstant;
use crate::store::sqlite::schema::micros;
use crate::store::support::mutex::lock;

/// Interval at which a purge begins at the first task.
const REWIND: Duration = Duration::from_mins(10);
/// Maximum delay with which a task appears in the list after the time of its end was read.
const MAX_COMMIT_DELAY: Duration = Duration::from_secs(10);

/// Queue and state that a purge names.
type Filter = (Option<QueueName>, Option<TaskState>);

/// Cursors of the purges of this process.
#[derive(Debug, Default)]
pub(super) struct PurgeCursors(Mutex<HashMap<Filter, Cursor>>);

#[derive(Debug, Clone, Copy)]
struct Cursor {
    /// No task that finished before this time is left.
    until: i64,
    /// Time of the last purge that began at the first task.
    rewound: BootInstant,
}

/// Beginning of a purge.
#[derive(Debug, Clone, Copy)]
pub(super) struct PurgeStart {
    /// Time before which no task is examined.
    pub(super) since: i64,
    now: Timestamp,
    rewound: BootInstant,
}

impl PurgeCursors {
    /// Returns where a purge begins, at this time of the store.
    pub(super) fn start(&self, filter: &FinishedFilter, now: Timestamp) -> PurgeStart {
        let boot = BootInstant::now();
        let known = lock(&self.0).get(&(filter.queue.clone(), filter.state)).copied();
        match known {
            Some(Cursor { until, rewound })
                if until <= micros(filter.before) && boot < rewound.plus(REWIND) =>
            {
                PurgeStart { since: until, now, rewound }
            }
            _ => PurgeStart { since: i64::MIN, now, rewound: boot },
        }
    }

    /// Records that a purge has deleted all tasks that match.
    pub(super) fn finish(&self, filter: &FinishedFilter, start: PurgeStart) {
        let until = micros(filter.before.min(start.now.minus(MAX_COMMIT_DELAY)));
        let cursor = Cursor { until, rewound: start.rewound };
        lock(&self.0).insert((filter.queue.clone(), filter.state), cursor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    #[test]
    fn a_purge_begins_where_the_last_one_of_its_queue_has_ended() {
        let cursors = PurgeCursors::default();
        let at = |minute: u64| Timestamp::from_micros(minute * MINUTE);
        let filter = |queue: &str, before| FinishedFilter {
            queue: QueueName::new(queue).ok(),
            state: None,
            before: at(before),
            limit: 9,
        };
        let since = |filter: &FinishedFilter| cursors.start(filter, at(100)).since;
        cursors.finish(&filter("q", 40), cursors.start(&filter("q", 40), at(100)));
        assert_eq!(since(&filter("q", 41)), micros(at(40)));
        assert_eq!(since(&filter("q", 39)), i64::MIN, "a longer retention, or a clock that was set back");
        assert_eq!(since(&filter("r", 41)), i64::MIN);
        assert_eq!(since(&FinishedFilter { state: Some(TaskState::Failed), ..filter("q", 41) }), i64::MIN);
        // Tasks may still finish now.
        cursors.finish(&filter("q", 200), cursors.start(&filter("q", 200), at(100)));
        assert_eq!(since(&filter("q", 200)), micros(at(100).minus(MAX_COMMIT_DELAY)));
    }
}
