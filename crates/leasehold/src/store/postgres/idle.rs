//! What becomes of connections that nobody uses: a process that waits, or holds a lock and renews it, keeps one.
//!
//! A lane or a reader that has not used its connection for a moment lays it down, and whoever needs one next takes it from
//! there. What lies there for longer is closed, but for the last one: a renewal must not depend on whether the server has
//! a connection left. While somebody waits, the connection that listens for wake-ups is the one that is kept, and
//! carries the few operations that a waiter makes.

use std::sync::Weak;
use std::time::Duration;

use super::gate::Gate;
use super::lane::Lane;
use super::near::Near;
use super::reads::Desk;
use super::tasks::Pool;
use crate::store::Moment;

/// How often to look, while there is something to close.
const LOOK: Duration = Duration::from_millis(500);
/// Who has not used a connection for this long lays it down.
pub(super) const UNUSED: Duration = Duration::from_millis(500);
/// A connection that has not been used for this long is closed…
pub(super) const IDLE: Duration = Duration::from_secs(2);
/// …and one that belongs to a caller of its own, or to tasks.
pub(super) const LONG_IDLE: Duration = Duration::from_secs(5);

/// All who have connections.
pub(super) struct Idle {
    pub(super) gate: Weak<Gate>,
    pub(super) lanes: Vec<Weak<Lane>>,
    pub(super) desk: Weak<Desk>,
    pub(super) near: Weak<Near>,
    pub(super) pool: Weak<Pool>,
}

impl Idle {
    /// Looks after connections for as long as the store is open.
    pub(super) async fn close_in_time(self) {
        let Some(opened) = self.gate.upgrade().map(|gate| gate.opened.clone()) else { return };
        loop {
            opened.notified().await;
            while self.close().is_some_and(|open| open > 0) {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Closes what is idle; says how many connections are still to be looked after. None if the store is gone.
    fn close(&self) -> Option<usize> {
        let (gate, now) = (self.gate.upgrade()?, Moment::now());
        let in_use: usize =
            self.lanes.iter().filter_map(Weak::upgrade).map(|lane| lane.lay_down_unused(now)).sum();
        let read_by = self.desk.upgrade().map_or(0, |desk| desk.lay_down_unused(now));
        let near = self.near.upgrade().map_or(0, |near| near.close_idle(now));
        let tasks = self.pool.upgrade().map_or(0, |pool| pool.close_idle(now));
        Some(in_use + read_by + near + tasks + gate.close_idle(now))
    }
}
