//! Assignment of operations to connections. While an operation on a lock is in flight, the next one
//! takes the same connection, behind it. Otherwise operations that SQL can decide fill the
//! connections from the first one on, because one statement for many operations is cheaper than many
//! statements. Slow-path operations, which occupy a connection for two round trips, start at the last
//! connection.
//!
//! Operations on one lock do not wait for each other as in [`InOrder`](crate::store::in_order::InOrder):
//! their connection keeps them in order, and may execute several of them in one transaction.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::codec::{FREE, HELD, QUEUE, TICKET_ROWS};
use crate::model::LockName;
use crate::store::support::mutex::lock;

/// Number of operations in flight on a connection at which the next connection is opened.
const MAX_LOAD: usize = 16;
/// Maximum number of locks whose layout is cached because it is not simple.
const MAX_KNOWN_LAYOUTS: usize = 1024;

/// Layout of a lock's row, which determines what SQL can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockLayout {
    /// No waiters and at most one holder: SQL can decide acquire, renew and release.
    Simple,
    /// All waiters want the whole lock: SQL can decide which waiter is next.
    Queue,
    /// Tickets are stored as rows: SQL can refresh a ticket.
    TicketRows,
    /// Any other state: SQL can decide nothing.
    General,
}

impl LockLayout {
    /// Returns the layout that the column of this name contains.
    pub(crate) const fn of(column: i16) -> Self {
        match column {
            FREE | HELD => Self::Simple,
            QUEUE => Self::Queue,
            TICKET_ROWS => Self::TicketRows,
            _ => Self::General,
        }
    }
}

/// Router of operations, and the layouts of locks that this process knows.
#[derive(Debug)]
pub(crate) struct Router {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_flight: HashMap<LockName, Assignment>,
    load: Vec<usize>,
    /// Locks that, as far as this process knows, have waiters or several holders: for them the
    /// fast-path statement would be useless.
    known_layouts: HashMap<LockName, KnownLayout>,
}

/// Cached state of a lock whose layout is not simple.
#[derive(Debug, Clone, Copy)]
struct KnownLayout {
    layout: LockLayout,
    /// Whether the waiter that was granted the lock last waits in another process.
    grants_remotely: bool,
}

#[derive(Debug)]
struct Assignment {
    connection: usize,
    count: usize,
}

/// One operation in flight, for as long as this value lives.
#[derive(Debug)]
pub(crate) struct InFlight {
    router: Arc<Router>,
    pub(crate) name: LockName,
    pub(crate) connection: usize,
}

impl Router {
    pub(crate) fn new(connections: usize) -> Arc<Self> {
        let state = State { load: vec![0; connections], ..State::default() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Chooses a connection for an operation on this lock.
    pub(crate) fn route(self: &Arc<Self>, name: &LockName) -> InFlight {
        let mut state = lock(&self.state);
        let connection = match state.in_flight.get_mut(name) {
            Some(assignment) => {
                assignment.count += 1;
                assignment.connection
            }
            None => {
                let connection = state.choose(state.known_layouts.get(name).map(|known| known.layout));
                state.in_flight.insert(name.clone(), Assignment { connection, count: 1 });
                connection
            }
        };
        state.load[connection] += 1;
        InFlight { router: self.clone(), name: name.clone(), connection }
    }

    /// Whether no operation is in flight on any connection and, as far as this process knows, SQL can
    /// decide about this lock.
    pub(crate) fn is_idle_and_simple(&self, name: &LockName) -> bool {
        let state = lock(&self.state);
        state.in_flight.is_empty() && !state.known_layouts.contains_key(name)
    }

    /// Returns the layout of a lock, as far as this process knows.
    pub(crate) fn layout(&self, name: &LockName) -> LockLayout {
        lock(&self.state).known_layouts.get(name).map_or(LockLayout::Simple, |known| known.layout)
    }

    pub(crate) fn set_layout(&self, name: &LockName, layout: LockLayout) {
        let mut state = lock(&self.state);
        if layout == LockLayout::Simple {
            state.known_layouts.remove(name);
        } else if let Some(known) = state.known_layouts.get_mut(name) {
            known.layout = layout;
        } else {
            if state.known_layouts.len() >= MAX_KNOWN_LAYOUTS {
                state.known_layouts.clear();
            }
            state.known_layouts.insert(name.clone(), KnownLayout { layout, grants_remotely: false });
        }
    }

    /// Records whether the waiter that was granted the lock last waits in another process.
    pub(crate) fn set_grants_remotely(&self, name: &LockName, remotely: bool) {
        if let Some(known) = lock(&self.state).known_layouts.get_mut(name) {
            known.grants_remotely = remotely;
        }
    }

    /// Whether the next waiter to be granted the lock may wait in another process, because the last
    /// one did.
    pub(crate) fn grants_remotely(&self, name: &LockName) -> bool {
        lock(&self.state).known_layouts.get(name).is_some_and(|known| known.grants_remotely)
    }
}

impl State {
    fn choose(&self, layout: Option<LockLayout>) -> usize {
        let load = |connection: &usize| self.load[*connection];
        // A process with little work should use a single connection.
        let is_idle = self.load.iter().all(|load| *load == 0);
        if layout.is_some_and(|layout| layout == LockLayout::General || !is_idle) {
            return (0..self.load.len()).rev().min_by_key(load).unwrap_or(0);
        }
        let below_limit = self.load.iter().position(|load| *load < MAX_LOAD);
        below_limit.or_else(|| (0..self.load.len()).min_by_key(load)).unwrap_or(0)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut state = lock(&self.router.state);
        state.load[self.connection] -= 1;
        if let Some(assignment) = state.in_flight.get_mut(&self.name) {
            assignment.count -= 1;
            if assignment.count == 0 {
                state.in_flight.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_its_connection_while_an_operation_is_in_flight() {
        let router = Router::new(2);
        let name = |number: usize| LockName::new(format!("lock-{number}")).unwrap();
        let first_batch: Vec<_> = (0..MAX_LOAD).map(|number| router.route(&name(number))).collect();
        assert!(first_batch.iter().all(|in_flight| in_flight.connection == 0), "on one connection");
        let first = router.route(&name(MAX_LOAD));
        assert_eq!(first.connection, 1, "the first connection is full");
        drop(first_batch);
        let second = router.route(&name(MAX_LOAD));
        drop(first);
        assert_eq!(
            (second.connection, router.route(&name(MAX_LOAD)).connection),
            (1, 1),
            "one operation is in flight"
        );
        drop(second);
        assert_eq!(router.route(&name(MAX_LOAD)).connection, 0);
    }

    #[test]
    fn slow_path_operations_start_at_the_last_connection() {
        let router = Router::new(3);
        let [a, b] = ["a", "b"].map(|name| LockName::new(name).unwrap());
        router.set_layout(&a, LockLayout::General);
        router.set_layout(&b, LockLayout::Queue);
        let idle = router.route(&b);
        assert_eq!(idle.connection, 0, "nothing else is in flight: one connection is enough");
        drop(idle);
        let simple = router.route(&LockName::new("c").unwrap());
        let first = router.route(&a);
        assert_eq!((simple.connection, first.connection, router.route(&b).connection), (0, 2, 1));
        router.set_layout(&b, LockLayout::Simple);
        assert_eq!(router.route(&b).connection, 0);
    }
}
