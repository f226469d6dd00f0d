//! Which lane a lock's operations take. As long as one is under way, the next takes the same lane and comes after it. Else
//! what SQL can decide fills the lanes from the first on, because many in one statement are cheaper than many
//! statements; and what goes by the rules, which has a lane for itself for two round trips, begins at the last.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::rows::Saved;
use crate::model::LockName;
use crate::store::ticket_rows::is_listed;

/// So many operations share a lane before the next one is opened.
const FULL: usize = 16;
/// Of so many locks it is remembered that they are not plain.
const MAX_INVOLVED: usize = 1024;

/// What SQL can decide about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// Who gets it: nobody waits, and at most one holder has it.
    Plain,
    /// Who comes next: those who wait all want the whole lock.
    Queue,
    /// Whose ticket is refreshed: the tickets are rows.
    Long,
    /// Nothing.
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
    /// How many operations are under way on each lane.
    load: Vec<usize>,
    /// Locks with waiters or several holders, as far as we know: for them the hot statement would be in vain.
    involved: HashMap<LockName, Known>,
}

/// What is known of a lock that is not plain.
#[derive(Debug, Clone, Copy)]
struct Known {
    shape: Shape,
    /// Whether the last who was served waits in another process.
    serves_others: bool,
}

/// The operations on one lock that are under way.
#[derive(Debug)]
struct Lines {
    lane: usize,
    count: usize,
}

/// One operation under way, for as long as this lives.
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

    /// Whether nothing is under way on any lane, and SQL can decide about this lock, as far as we know.
    pub(super) fn is_idle_and_plain(&self, name: &LockName) -> bool {
        let state = self.state();
        state.bound.is_empty() && !state.involved.contains_key(name)
    }

    /// What SQL can decide about a lock, as far as we know.
    pub(super) fn shape(&self, name: &LockName) -> Shape {
        self.state().involved.get(name).map_or(Shape::Plain, |known| known.shape)
    }

    /// Remembers what SQL can decide about a lock.
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

    /// Remembers where the last who was served waits.
    pub(super) fn remember_served(&self, name: &LockName, elsewhere: bool) {
        if let Some(known) = self.state().involved.get_mut(name) {
            known.serves_others = elsewhere;
        }
    }

    /// Whether the next who is served may wait in another process: the last one did.
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
        // A process that does little makes do with one connection.
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
