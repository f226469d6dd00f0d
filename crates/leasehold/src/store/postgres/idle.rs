//! Closing of idle connections. A process that waits, or that holds a lock and renews it, keeps
//! one.
//!
//! A lane or a reader that has not used its connection for a moment returns the connection to the
//! pool, from which the next caller takes it. A connection that stays in the pool for longer is
//! closed, except for the last one: a renewal must not depend on whether the server has a
//! connection left. While a caller waits, the connection that listens for notifications is the one
//! that is kept; it carries the few operations of a waiter.

use std::sync::Weak;
use std::time::Duration;

use super::gate::Gate;
use super::lane::Lane;
use super::near::Near;
use super::reads::Desk;
use super::tasks::Pool;
use crate::store::BootInstant;

/// Poll interval while there are connections that may have to be closed.
const LOOK: Duration = Duration::from_millis(500);
/// Time without use after which a lane or a reader returns its connection to the pool.
pub(super) const UNUSED: Duration = Duration::from_millis(500);
/// Time without use after which a connection of the pool is closed.
pub(super) const IDLE: Duration = Duration::from_secs(2);
/// Time without use after which a connection on a caller's runtime, or one for tasks, is closed.
pub(super) const LONG_IDLE: Duration = Duration::from_secs(5);

/// All owners of connections.
pub(super) struct Idle {
    pub(super) gate: Weak<Gate>,
    pub(super) lanes: Vec<Weak<Lane>>,
    pub(super) desk: Weak<Desk>,
    pub(super) near: Weak<Near>,
    pub(super) pool: Weak<Pool>,
}

impl Idle {
    /// Closes idle connections for as long as the store is open.
    pub(super) async fn close_in_time(self) {
        let Some(opened) = self.gate.upgrade().map(|gate| gate.opened.clone()) else { return };
        loop {
            opened.notified().await;
            while self.close().is_some_and(|open| open > 0) {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Closes idle connections and returns the number of connections that must still be checked, or
    /// `None` if the store is closed.
    fn close(&self) -> Option<usize> {
        let (gate, now) = (self.gate.upgrade()?, BootInstant::now());
        let in_use: usize =
            self.lanes.iter().filter_map(Weak::upgrade).map(|lane| lane.lay_down_unused(now)).sum();
        let read_by = self.desk.upgrade().map_or(0, |desk| desk.lay_down_unused(now));
        let near = self.near.upgrade().map_or(0, |near| near.close_idle(now));
        let tasks = self.pool.upgrade().map_or(0, |pool| pool.close_idle(now));
        Some(in_use + read_by + near + tasks + gate.close_idle(now))
    }
}
