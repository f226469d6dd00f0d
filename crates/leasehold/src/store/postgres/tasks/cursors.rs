//! From where on the index of pending tasks is read.
//!
//! Entries of tasks that were leased stay in the index until they are vacuumed away, which a long transaction anywhere on
//! the server puts off. Whoever began at the first entry each time would walk over all of them. So each process remembers
//! how far it has come. What is ready later stands later, but not all is seen in that order: a transaction may take its
//! time to commit. Whoever puts something in line says since when, here and by a wake-up elsewhere; and every now and then
//! everything is read from the beginning. Tasks that become pending in a place before others, because they have waited behind
//! the head of their lock or were given back, stand in a part of the index of their own, which is always read from its
//! beginning.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use crate::model::{QueueName, Task};
use crate::store::Moment;
use crate::store::postgres::gate::micros;

/// So often everything is read from the beginning.
const REWIND: Duration = Duration::from_secs(1);
/// So often all leases are looked at that may have run out, not only those from the cursor on…
const REWIND_EXPIRED: Duration = Duration::from_mins(10);
/// …and everything that is due. Whoever leases from a queue looks at its own more often.
const REWIND_DUE: Duration = Duration::from_mins(1);
/// A recovery looks so far back behind the cursor, in microseconds: a lease may be committed a while after its time was read.
const LATE: i64 = 10_000_000;
/// So many arrivals are remembered for leases that are under way.
const MAX_ARRIVALS: usize = 256;

/// How far this process has come.
#[derive(Debug)]
pub(super) struct Cursors(Mutex<State>);

#[derive(Debug)]
struct State {
    /// By queue and priority: up to when everything that could run has been leased, and the level's count of moves.
    levels: HashMap<(QueueName, i32), (Place, i64)>,
    /// By queue: up to when everything that was due has been put in line.
    due: HashMap<QueueName, i64>,
    /// Something was due when it was last looked: so it may be again.
    expects_due: bool,
    rewound: Moment,
    /// What has arrived lately, with its number.
    arrivals: VecDeque<(u64, QueueName, i64)>,
    arrived: u64,
    /// Up to when every lease that was to be looked at has been.
    expired: Sweep,
    /// Up to when a recovery has put in line what was due in any queue.
    all_due: Sweep,
}

/// How far looks over all queues have come.
#[derive(Debug, Clone, Copy)]
struct Sweep {
    until: i64,
    rewound: Moment,
}

impl Sweep {
    fn new() -> Self {
        Self { until: 0, rewound: Moment::now() }
    }

    /// Where a recovery begins.
    fn begin(&mut self, rewind: Duration) -> i64 {
        let now = Moment::now();
        if self.rewound.plus(rewind) <= now {
            *self = Self { until: 0, rewound: now };
        }
        (self.until - LATE).max(0)
    }

    /// Calls end in any order; an earlier place is as true as a later one. If the server's clock was set back, everything is
    /// looked at again.
    const fn end(&mut self, until: i64, now: i64) {
        self.until = if now.saturating_add(LATE) < self.until { 0 } else { until };
    }
}

/// A place in the line.
#[derive(Debug, Clone, Copy)]
struct Place {
    since: i64,
    run_at: i64,
    id: Uuid,
}

impl Place {
    /// The first of those that came then.
    const fn first(since: i64) -> Self {
        Self { since, run_at: 0, id: Uuid::nil() }
    }

    /// Behind a task that has been leased. If that was at the very time at which it came, others may still come to stand
    /// before it.
    fn behind(task: &Task) -> Self {
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

/// Where a lease begins to read.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) queues: Vec<String>,
    pub(super) due: Vec<i64>,
    pub(super) level_queue: Vec<String>,
    pub(super) level_priority: Vec<i32>,
    pub(super) level_since: Vec<i64>,
    pub(super) level_moved: Vec<i64>,
    pub(super) level_run_at: Vec<i64>,
    pub(super) level_id: Vec<Uuid>,
    /// Whether something may have to be put in line first.
    pub(super) expects_due: bool,
    /// From when on leases are looked at that may have run out.
    pub(super) expired_since: i64,
    /// What had arrived by then.
    arrived: u64,
}

impl Cursors {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            levels: HashMap::new(),
            due: HashMap::new(),
            expects_due: false,
            rewound: Moment::now(),
            arrivals: VecDeque::new(),
            arrived: 0,
            expired: Sweep::new(),
            all_due: Sweep::new(),
        }))
    }

    /// Where a recovery begins to look for leases that have run out, and for what is due.
    pub(super) fn recovery(&self) -> (i64, i64) {
        let mut state = self.state();
        (state.expired.begin(REWIND_EXPIRED), state.all_due.begin(REWIND_DUE))
    }

    /// Every lease that was to be looked at up to `until` has been, at `now`.
    pub(super) fn expired(&self, until: i64, now: i64) {
        self.state().expired.end(until, now);
    }

    /// Everything that was due up to `until` has been put in line, at `now`.
    pub(super) fn all_due(&self, until: i64, now: i64) {
        self.state().all_due.end(until, now);
    }

    /// Where to begin in these queues.
    pub(super) fn places(&self, queues: &[QueueName]) -> Places {
        let mut state = self.state();
        let now = Moment::now();
        if state.rewound.plus(REWIND) <= now {
            state.rewound = now;
            state.levels.clear();
            state.due.clear();
        }
        let mut places = Places {
            arrived: state.arrived,
            expects_due: state.expects_due,
            expired_since: state.expired.until,
            ..Places::default()
        };
        for queue in queues.iter().collect::<std::collections::BTreeSet<_>>() {
            places.queues.push(queue.as_str().to_owned());
            places.due.push(state.due.get(queue).copied().unwrap_or(0));
        }
        for ((queue, priority), (place, moved)) in &state.levels {
            if queues.contains(queue) {
                places.level_queue.push(queue.as_str().to_owned());
                places.level_priority.push(*priority);
                places.level_since.push(place.since);
                places.level_run_at.push(place.run_at);
                places.level_id.push(place.id);
                places.level_moved.push(*moved);
            }
        }
        places
    }

    /// These were leased, each with the moves of its level. They come in order. Tasks that are read without a cursor are not
    /// among them.
    pub(super) fn leased(&self, places: &Places, tasks: &[(Task, i64)]) {
        let mut state = self.state();
        for (task, moved) in tasks {
            let place = Place::behind(task);
            if let Some(place) = state.not_after(places, &task.queue, place) {
                let level = (task.queue.clone(), task.priority.get());
                state.levels.insert(level, (place, *moved));
            }
        }
    }

    /// Everything in these queues that was due at `now` has been put in line.
    pub(super) fn promoted(&self, places: &Places, queues: &[QueueName], now: i64) {
        let mut state = self.state();
        for queue in queues {
            if let Some(place) = state.not_after(places, queue, Place::first(now)) {
                state.due.insert(queue.clone(), place.since);
            }
        }
    }

    /// Whether something was due that had to be put in line.
    pub(super) fn expect_due(&self, due: bool) {
        self.state().expects_due = due;
    }

    /// Something was put in line at `since`, and is seen only now.
    pub(super) fn arrived(&self, queue: &QueueName, since: i64) {
        let mut state = self.state();
        for ((level, _), (place, _)) in &mut state.levels {
            if level == queue {
                *place = place.not_after(since);
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

    /// Anything may have happened.
    pub(super) fn rewind(&self) {
        let mut state = self.state();
        state.levels.clear();
        state.due.clear();
        // Leases that are under way have not seen it.
        state.arrived += MAX_ARRIVALS as u64 + 1;
        state.arrivals.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// How far a lease has come that got to this place, if one knows: what arrived while it was under way it may not have seen.
    fn not_after(&self, places: &Places, queue: &QueueName, place: Place) -> Option<Place> {
        let new = self.arrived - places.arrived;
        let known = u64::try_from(self.arrivals.len()).is_ok_and(|known| new <= known);
        let missed = self.arrivals.iter().filter(|(number, of, _)| *number > places.arrived && of == queue);
        known.then(|| missed.map(|(_, _, at)| *at).min().map_or(place, |at| place.not_after(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).unwrap()
    }

    #[test]
    fn what_arrives_while_a_lease_is_under_way_is_not_passed_over() {
        let (cursors, q) = (Cursors::new(), queue("q"));
        let places = cursors.places(std::slice::from_ref(&q));
        cursors.arrived(&q, 5);
        cursors.arrived(&queue("other"), 1);
        cursors.promoted(&places, std::slice::from_ref(&q), 10);
        assert_eq!(cursors.places(std::slice::from_ref(&q)).due, [5]);
        let places = cursors.places(std::slice::from_ref(&q));
        cursors.promoted(&places, std::slice::from_ref(&q), 10);
        assert_eq!(cursors.places(std::slice::from_ref(&q)).due, [10]);
        cursors.arrived(&q, 7);
        assert_eq!(cursors.places(std::slice::from_ref(&q)).due, [7]);
    }

    #[test]
    fn a_sweep_goes_on_from_where_it_was_unless_the_clock_was_set_back() {
        let mut sweep = Sweep::new();
        sweep.end(90 * LATE, 90 * LATE);
        assert_eq!((sweep.until, sweep.begin(REWIND_EXPIRED)), (90 * LATE, 89 * LATE));
        // One that began before, and one that found a lease that somebody else held.
        sweep.end(90 * LATE - 1, 90 * LATE - 1);
        assert_eq!(sweep.until, 90 * LATE - 1);
        sweep.end(80 * LATE, 91 * LATE);
        assert_eq!(sweep.until, 80 * LATE);
        sweep.end(70 * LATE, 70 * LATE);
        assert_eq!(sweep.until, 0);
    }

    #[test]
    fn who_cannot_know_what_arrived_begins_at_the_beginning() {
        let (cursors, q) = (Cursors::new(), queue("q"));
        let places = cursors.places(std::slice::from_ref(&q));
        for at in 0..=i64::try_from(MAX_ARRIVALS).unwrap() {
            cursors.arrived(&q, at);
        }
        cursors.promoted(&places, std::slice::from_ref(&q), 1000);
        assert_eq!(cursors.places(std::slice::from_ref(&q)).due, [0]);
        let places = cursors.places(std::slice::from_ref(&q));
        cursors.rewind();
        cursors.promoted(&places, std::slice::from_ref(&q), 1000);
        assert_eq!(cursors.places(std::slice::from_ref(&q)).due, [0]);
    }
}
