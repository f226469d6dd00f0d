//! Requests whose answer was lost: they may still be under way, and begin at a server until their time is over.

use std::time::Duration;

use uuid::Uuid;

use crate::model::LockOp;
use crate::store::Moment;

/// So long after it has begun, an operation may be under way in the engine of another server: what an engine takes for a
/// call at most, and a little more.
const ENGINE: Duration = Duration::from_secs(6);

/// The requests for one lease id whose answer was lost.
#[derive(Debug, Default)]
pub(super) struct Ghosts(Vec<Ghost>);

#[derive(Debug)]
struct Ghost {
    /// The servers that could begin it: those whose clocks it names.
    servers: Vec<Uuid>,
    /// Then nobody begins it any more.
    until: Moment,
    /// Whether it would take something.
    takes: bool,
}

/// What an operation has to do with ghosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// It takes something: if it comes late, somebody holds what nobody knows of.
    Takes,
    /// It gives back: nothing must be taken after it.
    GivesBack,
    /// Neither.
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
    /// A request was sent, and its answer is lost.
    pub(super) fn add(&mut self, servers: Vec<Uuid>, until: Moment, kind: Kind) {
        // A request that names no clock is begun by nobody.
        if !servers.is_empty() {
            self.0.push(Ghost { servers, until, takes: kind == Kind::Takes });
        }
    }

    /// A request that supersedes all of them was answered by this server: there, they cannot begin any more, and those
    /// that had begun were over first.
    pub(super) fn answered_by(&mut self, server: Uuid) {
        for ghost in &mut self.0 {
            ghost.servers.retain(|could| *could != server);
        }
        self.0.retain(|ghost| !ghost.servers.is_empty());
    }

    /// Forgets those whose time is over.
    pub(super) fn forget_old(&mut self, now: Moment) {
        self.0.retain(|ghost| now < ghost.until.plus(ENGINE));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When an operation of this kind may be sent, if these are the servers that could begin it. At once, if there is
    /// one and the same: it keeps the order by itself. Of several, one may begin to take what was given back through
    /// another.
    pub(super) fn wait_for(&self, kind: Kind, servers: &[Uuid]) -> Option<Moment> {
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
        let until = Moment::from_micros(10);
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
        let until = Moment::from_micros(10);
        ghosts.add(vec![Uuid::from_u128(1)], until, Kind::Other);
        ghosts.forget_old(until);
        assert!(!ghosts.is_empty(), "it may be under way in an engine");
        ghosts.forget_old(until.plus(ENGINE));
        assert!(ghosts.is_empty());
    }
}
