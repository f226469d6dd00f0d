//! Assignment of operations to lanes. While an operation on a lock is in flight, the next one takes
//! the same lane, behind it. Otherwise operations that SQL can decide fill the lanes from the first
//! one on, because one statement for many operations is cheaper than many statements. Slow-path
//! operations, which occupy a lane for two round trips, start at the last lane.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rows::Saved;
use crate::model::LockName;
use crate::store::ticket_rows::is_listed;

/// Number of operations in flight on a lane at which the next lane is opened.
const FULL: usize = 16;
/// Maximum number of locks whose layout is cached because it is not simple.
const MAX_INVOLVED: usize = 1024;

/// Layout of a lock's row, which determines what SQL can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// No waiters and at most one holder: SQL can decide acquire, renew and release.
    Plain,
    /// All waiters want the whole lock: SQL can decide which waiter is next.
    Queue,
    /// Tickets are stored as rows: SQL can refresh a ticket.
    Long,
    /// Any other state: SQL can decide nothing.
    Other,
}

impl Shape {
    pub(super) fn of(saved: &Saved) -> Self {
        match (saved.held, &saved.queue) {
            (Some(_), _) => Self::Plain,
            (None, Some(_)) => Self::Queue,
            (None, None) if saved.record.as_deref().is_some_and(is_listed) => Self::Long,
            (None, None) => Self::Other,
        }
    }
}

#[derive(Debug)]
pub(super) struct Switchboard {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    bound: HashMap<LockName, Lines>,
    /// Number of operations in flight on each lane.
    load: Vec<usize>,
    /// Locks that, as far as this process knows, have waiters or several holders: for them the
    /// fast-path statement would be in vain.
    involved: HashMap<LockName, Known>,
}

/// Cached state of a lock whose layout is not simple.
#[derive(Debug, Clone, Copy)]
struct Known {
    shape: Shape,
    /// Whether the waiter that was granted the lock last waits in another process.
    serves_others: bool,
}

/// Operations in flight on one lock.
#[derive(Debug)]
struct Lines {
    lane: usize,
    count: usize,
}

/// One operation in flight, for as long as this value lives.
#[derive(Debug)]
pub(super) struct Bound {
    board: Arc<Switchboard>,
    pub(super) name: LockName,
    pub(super) lane: usize,
}

impl Switchboard {
    pub(super) fn new(lanes: usize) -> Arc<Self> {
        let state = State { bound: HashMap::new(), load: vec![0; lanes], involved: HashMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Chooses a lane for an operation on this lock.
    pub(super) fn bind(self: &Arc<Self>, name: &LockName) -> Bound {
        let mut state = self.state();
        let lane = match state.bound.get_mut(name) {
            Some(lines) => {
                lines.count += 1;
                lines.lane
            }
            None => {
                let lane = state.choose(state.involved.get(name).map(|known| known.shape));
                state.bound.insert(name.clone(), Lines { lane, count: 1 });
                lane
            }
        };
        state.load[lane] += 1;
        Bound { board: self.clone(), name: name.clone(), lane }
    }

    /// Whether no operation is in flight on any lane and, as far as this process knows, SQL can
    /// decide about this lock.
    pub(super) fn is_idle_and_plain(&self, name: &LockName) -> bool {
        let state = self.state();
        state.bound.is_empty() && !state.involved.contains_key(name)
    }

    /// Returns the layout of a lock, as far as this process knows.
    pub(super) fn shape(&self, name: &LockName) -> Shape {
        self.state().involved.get(name).map_or(Shape::Plain, |known| known.shape)
    }

    /// Caches the layout of a lock.
    pub(super) fn remember(&self, name: &LockName, shape: Shape) {
        let mut state = self.state();
        if shape == Shape::Plain {
            state.involved.remove(name);
        } else if let Some(known) = state.involved.get_mut(name) {
            known.shape = shape;
        } else {
            if state.involved.len() >= MAX_INVOLVED {
                state.involved.clear();
            }
            state.involved.insert(name.clone(), Known { shape, serves_others: false });
        }
    }

    /// Records whether the waiter that was granted the lock last waits in another process.
    pub(super) fn remember_served(&self, name: &LockName, elsewhere: bool) {
        if let Some(known) = self.state().involved.get_mut(name) {
            known.serves_others = elsewhere;
        }
    }

    /// Whether the next waiter to be granted the lock may wait in another process, because the last
    /// one did.
    pub(super) fn serves_others(&self, name: &LockName) -> bool {
        self.state().involved.get(name).is_some_and(|known| known.serves_others)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn choose(&self, involved: Option<Shape>) -> usize {
        let idlest = |lane: &usize| self.load[*lane];
        // A process with little work should use a single connection.
        let is_idle = self.load.iter().all(|load| *load == 0);
        if involved.is_some_and(|shape| shape == Shape::Other || !is_idle) {
            return (0..self.load.len()).rev().min_by_key(idlest).unwrap_or(0);
        }
        let with_room = self.load.iter().position(|load| *load < FULL);
        with_room.or_else(|| (0..self.load.len()).min_by_key(idlest)).unwrap_or(0)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut state = self.board.state();
        state.load[self.lane] -= 1;
        if let Some(lines) = state.bound.get_mut(&self.name) {
            lines.count -= 1;
            if lines.count == 0 {
                state.bound.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_its_lane_while_something_is_under_way() {
        let board = Switchboard::new(2);
        let name = |number: usize| LockName::new(format!("lock-{number}")).unwrap();
        let crowd: Vec<_> = (0..FULL).map(|number| board.bind(&name(number))).collect();
        assert!(crowd.iter().all(|bound| bound.lane == 0), "together");
        let first = board.bind(&name(FULL));
        assert_eq!(first.lane, 1, "the first lane is full");
        drop(crowd);
        let second = board.bind(&name(FULL));
        drop(first);
        assert_eq!((second.lane, board.bind(&name(FULL)).lane), (1, 1), "one is under way");
        drop(second);
        assert_eq!(board.bind(&name(FULL)).lane, 0);
    }

    #[test]
    fn what_goes_by_the_rules_begins_at_the_last_lane() {
        let board = Switchboard::new(3);
        let [a, b] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        board.remember(&a, Shape::Other);
        board.remember(&b, Shape::Queue);
        let idle = board.bind(&b);
        assert_eq!(idle.lane, 0, "nothing else is under way: one connection is enough");
        drop(idle);
        let plain = board.bind(&LockName::new("c").unwrap());
        let first = board.bind(&a);
        assert_eq!((plain.lane, first.lane, board.bind(&b).lane), (0, 2, 1));
        board.remember(&b, Shape::Plain);
        assert_eq!(board.bind(&b).lane, 0);
    }
}
