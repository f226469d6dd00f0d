//! Positions from which the index of pending tasks is read.
//!
//! Entries of leased tasks stay in the index until VACUUM removes them, which a long transaction
//! anywhere on the server delays. A read that always started at the first entry would walk over all
//! of them. So each process remembers its position. A task that becomes ready later has a later
//! position, but tasks do not become visible in that order: a transaction may commit late. A
//! process that makes tasks pending reports since when, locally and by a notification to other
//! processes; in addition, everything is periodically read from the beginning. Tasks that become
//! pending before others, because they were blocked behind the head of their lock or were returned,
//! are in a separate part of the index, which is always read from its beginning.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

use uuid::Uuid;

use crate::model::{QueueName, Task};
use crate::store::BootInstant;
use crate::store::postgres::columns::micros;
use crate::store::support::mutex::lock;

/// Interval at which everything is read from the beginning.
const REWIND: Duration = Duration::from_secs(1);
/// Interval at which all leases that may have expired are checked, not only those after the cursor.
const REWIND_EXPIRED: Duration = Duration::from_mins(10);
/// Interval at which all due tasks are checked. A process that leases from a queue checks that
/// queue more often.
const REWIND_DUE: Duration = Duration::from_mins(1);
/// Overlap of a recovery with the range before the cursor, in microseconds: a lease may be
/// committed a while after its time was read.
const MAX_COMMIT_DELAY: i64 = 10_000_000;
/// Maximum number of arrivals that are remembered for lease calls in flight.
const MAX_ARRIVALS: usize = 256;

#[derive(Debug)]
pub(super) struct Cursors(Mutex<State>);

#[derive(Debug)]
struct State {
    /// By queue and priority: the position before which all runnable tasks have been leased, and
    /// the generation for which it is valid.
    priorities: HashMap<(QueueName, i32), (Position, i64)>,
    /// By queue: the time up to which all due tasks have been made pending.
    due: HashMap<QueueName, i64>,
    /// Whether the last lease call found due tasks: there may be more.
    expects_due: bool,
    /// Queues whose next tasks are not plain, until everything is read from the beginning.
    not_plain: HashSet<QueueName>,
    rewound: BootInstant,
    /// Recent arrivals, with their numbers.
    arrivals: VecDeque<(u64, QueueName, i64)>,
    arrived: u64,
    /// Time up to which all leases have been checked for expiry.
    expired: ScanProgress,
    /// Time up to which a recovery has made the due tasks of all queues pending.
    all_due: ScanProgress,
}

/// Progress of the scans over all queues.
#[derive(Debug, Clone, Copy)]
struct ScanProgress {
    until: i64,
    rewound: BootInstant,
}

impl ScanProgress {
    fn new() -> Self {
        Self { until: 0, rewound: BootInstant::now() }
    }

    /// Returns the time from which a recovery starts.
    fn start(&mut self, rewind: Duration) -> i64 {
        let now = BootInstant::now();
        if self.rewound.plus(rewind) <= now {
            *self = Self { until: 0, rewound: now };
        }
        (self.until - MAX_COMMIT_DELAY).max(0)
    }

    /// Records the progress of a scan. Calls end in any order; an earlier position is as valid as a
    /// later one. If the server's clock was set back, everything is scanned again.
    const fn finish(&mut self, until: i64, now: i64) {
        self.until = if now.saturating_add(MAX_COMMIT_DELAY) < self.until { 0 } else { until };
    }
}

/// Position in the index of pending tasks.
#[derive(Debug, Clone, Copy)]
struct Position {
    since: i64,
    run_at: i64,
    id: Uuid,
}

impl Position {
    /// Returns the first position of this time.
    const fn first(since: i64) -> Self {
        Self { since, run_at: 0, id: Uuid::nil() }
    }

    /// Returns the position behind a leased task. If the task was leased at the very time at which
    /// it became ready, others may still be added before it.
    fn after(task: &Task) -> Self {
        let since = micros(task.ready_at);
        if task.leased_at.is_none_or(|at| at <= task.ready_at) {
            return Self::first(since);
        }
        Self { since, run_at: micros(task.run_at), id: *task.id.as_uuid() }
    }

    fn not_after(self, since: i64) -> Self {
        if since <= self.since { Self::first(since) } else { self }
    }
}

/// Positions from which a lease call starts to read.
#[derive(Debug, Default)]
pub(super) struct Positions {
    pub(super) queues: Vec<String>,
    pub(super) due: Vec<i64>,
    pub(super) cursor_queue: Vec<String>,
    pub(super) cursor_priority: Vec<i32>,
    pub(super) cursor_since: Vec<i64>,
    pub(super) cursor_generation: Vec<i64>,
    pub(super) cursor_run_at: Vec<i64>,
    pub(super) cursor_id: Vec<Uuid>,
    /// Whether due tasks may have to be made pending first.
    pub(super) expects_due: bool,
    /// Whether the statement for plain tasks is tried first.
    pub(super) tries_plain: bool,
    /// Time from which leases are checked for expiry.
    pub(super) expired_since: i64,
    /// Number of the last arrival before the call.
    arrived: u64,
}

impl Cursors {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            priorities: HashMap::new(),
            due: HashMap::new(),
            expects_due: false,
            not_plain: HashSet::new(),
            rewound: BootInstant::now(),
            arrivals: VecDeque::new(),
            arrived: 0,
            expired: ScanProgress::new(),
            all_due: ScanProgress::new(),
        }))
    }

    /// Returns the times from which a recovery checks for expired leases and for due tasks.
    pub(super) fn recovery_start(&self) -> (i64, i64) {
        let mut state = lock(&self.0);
        (state.expired.start(REWIND_EXPIRED), state.all_due.start(REWIND_DUE))
    }

    /// Records that all leases up to `until` have been checked for expiry, at `now`.
    pub(super) fn set_expired_until(&self, until: i64, now: i64) {
        lock(&self.0).expired.finish(until, now);
    }

    /// Records that all tasks due up to `until` have been made pending, at `now`.
    pub(super) fn set_promoted_until(&self, until: i64, now: i64) {
        lock(&self.0).all_due.finish(until, now);
    }

    pub(super) fn positions(&self, queues: &[QueueName]) -> Positions {
        let mut state = lock(&self.0);
        let now = BootInstant::now();
        if state.rewound.plus(REWIND) <= now {
            state.rewound = now;
            state.priorities.clear();
            state.due.clear();
            state.not_plain.clear();
        }
        let mut positions = Positions {
            arrived: state.arrived,
            expects_due: state.expects_due,
            expired_since: state.expired.until,
            ..Positions::default()
        };
        for queue in queues.iter().collect::<std::collections::BTreeSet<_>>() {
            positions.queues.push(queue.as_str().to_owned());
            positions.due.push(state.due.get(queue).copied().unwrap_or(0));
        }
        for ((queue, priority), (position, generation)) in &state.priorities {
            if queues.contains(queue) {
                positions.cursor_queue.push(queue.as_str().to_owned());
                positions.cursor_priority.push(*priority);
                positions.cursor_since.push(position.since);
                positions.cursor_run_at.push(position.run_at);
                positions.cursor_id.push(position.id);
                positions.cursor_generation.push(*generation);
            }
        }
        positions.tries_plain = match queues {
            [queue] => {
                !state.expects_due && positions.cursor_queue.len() <= 1 && !state.not_plain.contains(queue)
            }
            _ => false,
        };
        positions
    }

    /// Records that the next tasks of this queue are not plain.
    pub(super) fn set_not_plain(&self, queue: &QueueName) {
        lock(&self.0).not_plain.insert(queue.clone());
    }

    /// Advances the cursors behind these leased tasks, the last of their queues and priorities, each
    /// with the generation of its priority. Tasks that were read without a cursor are not among them.
    pub(super) fn advance<'a>(&self, positions: &Positions, last: impl IntoIterator<Item = (&'a Task, i64)>) {
        let mut state = lock(&self.0);
        for (task, generation) in last {
            let position = Position::after(task);
            if let Some(position) = state.limit_advance(positions, &task.queue, position) {
                let priority = (task.queue.clone(), task.priority.get());
                state.priorities.insert(priority, (position, generation));
            }
        }
    }

    /// Records that all tasks of these queues that were due at `now` have been made pending.
    pub(super) fn set_queues_promoted(&self, positions: &Positions, queues: &[QueueName], now: i64) {
        let mut state = lock(&self.0);
        for queue in queues {
            if let Some(position) = state.limit_advance(positions, queue, Position::first(now)) {
                state.due.insert(queue.clone(), position.since);
            }
        }
    }

    /// Records whether due tasks had to be made pending.
    pub(super) fn set_expects_due(&self, due: bool) {
        lock(&self.0).expects_due = due;
    }

    /// Moves the cursors of a queue back because a task became pending at `since` and is visible
    /// only now.
    pub(super) fn arrived(&self, queue: &QueueName, since: i64) {
        let mut state = lock(&self.0);
        for ((name, _), (position, _)) in &mut state.priorities {
            if name == queue {
                *position = position.not_after(since);
            }
        }
        if let Some(until) = state.due.get_mut(queue) {
            *until = since.min(*until);
        }
        state.arrived += 1;
        if state.arrivals.len() == MAX_ARRIVALS {
            state.arrivals.pop_front();
        }
        let number = state.arrived;
        state.arrivals.push_back((number, queue.clone(), since));
    }

    /// Resets all cursors because any change may have been missed.
    pub(super) fn rewind(&self) {
        let mut state = lock(&self.0);
        state.priorities.clear();
        state.due.clear();
        // Lease calls in flight have not seen the change.
        state.arrived += MAX_ARRIVALS as u64 + 1;
        state.arrivals.clear();
    }
}

impl State {
    /// Returns how far a lease call that reached this position may advance the cursor, or `None` if
    /// that is unknown: the call may not have seen tasks that arrived while it was in flight.
    fn limit_advance(
        &self,
        positions: &Positions,
        queue: &QueueName,
        position: Position,
    ) -> Option<Position> {
        let new = self.arrived - positions.arrived;
        let known = u64::try_from(self.arrivals.len()).is_ok_and(|known| new <= known);
        let missed =
            self.arrivals.iter().filter(|(number, of, _)| *number > positions.arrived && of == queue);
        known.then(|| missed.map(|(_, _, at)| *at).min().map_or(position, |at| position.not_after(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn a_task_that_arrives_during_a_lease_call_is_not_skipped() {
        let (cursors, q) = (Cursors::new(), [queue("q")]);
        let positions = cursors.positions(&q);
        cursors.arrived(&q[0], 5);
        cursors.arrived(&queue("other"), 1);
        cursors.set_queues_promoted(&positions, &q, 10);
        assert_eq!(cursors.positions(&q).due, [5]);
        let positions = cursors.positions(&q);
        cursors.set_queues_promoted(&positions, &q, 10);
        assert_eq!(cursors.positions(&q).due, [10]);
        cursors.arrived(&q[0], 7);
        assert_eq!(cursors.positions(&q).due, [7]);
    }

    #[test]
    fn a_scan_continues_from_its_position_unless_the_clock_was_set_back() {
        let mut progress = ScanProgress::new();
        progress.finish(90 * MAX_COMMIT_DELAY, 90 * MAX_COMMIT_DELAY);
        assert_eq!(
            (progress.until, progress.start(REWIND_EXPIRED)),
            (90 * MAX_COMMIT_DELAY, 89 * MAX_COMMIT_DELAY)
        );
        // A scan that began earlier, and one that found a lease whose row another session had
        // locked.
        progress.finish(90 * MAX_COMMIT_DELAY - 1, 90 * MAX_COMMIT_DELAY - 1);
        assert_eq!(progress.until, 90 * MAX_COMMIT_DELAY - 1);
        progress.finish(80 * MAX_COMMIT_DELAY, 91 * MAX_COMMIT_DELAY);
        assert_eq!(progress.until, 80 * MAX_COMMIT_DELAY);
        progress.finish(70 * MAX_COMMIT_DELAY, 70 * MAX_COMMIT_DELAY);
        assert_eq!(progress.until, 0);
    }

    #[test]
    fn a_call_that_may_have_missed_arrivals_advances_no_cursor() {
        let (cursors, q) = (Cursors::new(), [queue("q")]);
        let positions = cursors.positions(&q);
        for at in 0..=i64::try_from(MAX_ARRIVALS).unwrap() {
            cursors.arrived(&q[0], at);
        }
        cursors.set_queues_promoted(&positions, &q, 1000);
        assert_eq!(cursors.positions(&q).due, [0]);
        let positions = cursors.positions(&q);
        cursors.rewind();
        cursors.set_queues_promoted(&positions, &q, 1000);
        assert_eq!(cursors.positions(&q).due, [0]);
    }
}
