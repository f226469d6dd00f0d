//! In-doubt requests, whose response was lost: they may still be in flight, and may begin at a server
//! until their deadline.

use std::time::Duration;

use uuid::Uuid;

use crate::model::LockOp;
use crate::store::BootInstant;

/// Maximum time for which an operation that has begun may run in the engine of another server: the
/// maximum duration of an engine's call, plus a margin.
const ENGINE: Duration = Duration::from_secs(6);

/// In-doubt requests for one lease id.
#[derive(Debug, Default)]
pub(super) struct Ghosts(Vec<Ghost>);

#[derive(Debug)]
struct Ghost {
    /// Servers that could begin the request: those whose clocks it names.
    servers: Vec<Uuid>,
    /// Deadline after which no server begins the request.
    until: BootInstant,
    /// Whether the request is an acquire.
    takes: bool,
}

/// Role of an operation with respect to in-doubt requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Acquires: if it takes effect late, it creates a lease that no caller knows of.
    Takes,
    /// Releases or withdraws: no earlier acquire must take effect after it.
    GivesBack,
    /// Any other operation.
    Other,
}

impl Kind {
    pub(super) fn of(op: &LockOp) -> Self {
        match op {
            LockOp::Acquire(_) => Self::Takes,
            LockOp::Release(_) | LockOp::Leave(_) => Self::GivesBack,
            _ => Self::Other,
        }
    }
}

impl Ghosts {
    /// Records a request that was sent and whose response was lost.
    pub(super) fn add(&mut self, servers: Vec<Uuid>, until: BootInstant, kind: Kind) {
        // No server begins a request that names no clock.
        if !servers.is_empty() {
            self.0.push(Ghost { servers, until, takes: kind == Kind::Takes });
        }
    }

    /// Records that this server has answered a request that supersedes all in-doubt ones: on this
    /// server they cannot begin any more, and those that had begun ended first.
    pub(super) fn answered_by(&mut self, server: Uuid) {
        for ghost in &mut self.0 {
            ghost.servers.retain(|could| *could != server);
        }
        self.0.retain(|ghost| !ghost.servers.is_empty());
    }

    /// Removes the requests whose deadline has passed and that no engine can be executing any more.
    pub(super) fn forget_old(&mut self, now: BootInstant) {
        self.0.retain(|ghost| now < ghost.until.plus(ENGINE));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the instant at which an operation of this kind may be sent to these servers; `None`
    /// means at once. With one and the same server no wait is necessary: that server keeps the order.
    /// With several servers, one of them may begin an acquire after another one has executed the
    /// release.
    pub(super) fn wait_for(&self, kind: Kind, servers: &[Uuid]) -> Option<BootInstant> {
        let elsewhere = |ghost: &&Ghost| ghost.takes && (servers.len() != 1 || ghost.servers != servers);
        let latest = self.0.iter().filter(elsewhere).map(|ghost| ghost.until).max();
        latest.filter(|_| kind == Kind::GivesBack).map(|until| until.plus(ENGINE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ghost_is_gone_when_each_server_that_could_begin_it_has_answered_a_later_one() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let until = BootInstant::from_micros(10);
        let mut ghosts = Ghosts::default();
        ghosts.add(Vec::new(), until, Kind::Takes);
        assert!(ghosts.is_empty());
        ghosts.add(vec![one, two], until, Kind::Takes);
        assert_eq!(ghosts.wait_for(Kind::Other, &[one, two]), None);
        let later = Some(until.plus(ENGINE));
        assert_eq!(ghosts.wait_for(Kind::GivesBack, &[one, two]), later);
        ghosts.answered_by(two);
        assert_eq!(ghosts.wait_for(Kind::GivesBack, &[two]), later);
        assert_eq!(ghosts.wait_for(Kind::GivesBack, &[one]), None, "one server keeps the order");
        assert!(!ghosts.is_empty());
        ghosts.answered_by(one);
        assert!(ghosts.is_empty());
    }

    #[test]
    fn a_ghost_is_gone_after_its_time() {
        let mut ghosts = Ghosts::default();
        let until = BootInstant::from_micros(10);
        ghosts.add(vec![Uuid::from_u128(1)], until, Kind::Other);
        ghosts.forget_old(until);
        assert!(!ghosts.is_empty(), "it may be under way in an engine");
        ghosts.forget_old(until.plus(ENGINE));
        assert!(ghosts.is_empty());
    }
}
