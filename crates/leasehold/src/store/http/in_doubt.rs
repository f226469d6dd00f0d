//! In-doubt requests, whose response was lost or came from a proxy: they may still be in flight, and may
//! begin at a server until their deadline.

use std::time::Duration;

use uuid::Uuid;

use crate::model::LockOp;
use crate::store::BootInstant;
use crate::store::in_order::{Keep, KeptState};

/// Maximum time for which an operation that has begun may run in the engine of another server: the
/// maximum duration of an engine's call, plus a margin.
const MAX_ENGINE_CALL: Duration = Duration::from_secs(6);

/// In-doubt requests for one lease id, which its calls pass on to each other.
#[derive(Debug, Default)]
pub(super) struct InDoubtRequests(Vec<InDoubtRequest>);

#[derive(Debug)]
struct InDoubtRequest {
    /// Servers that could begin the request: those whose clocks it names.
    servers: Vec<Uuid>,
    /// Deadline after which no server begins the request.
    until: BootInstant,
    acquires: bool,
}

/// Role of an operation with respect to in-doubt requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpKind {
    /// Acquires: if it takes effect late, it creates a lease that no caller knows of.
    Acquire,
    /// Releases or withdraws: no earlier acquire must take effect after it.
    Release,
    Other,
}

impl OpKind {
    pub(super) fn of(op: &LockOp) -> Self {
        match op {
            LockOp::Acquire(_) => Self::Acquire,
            LockOp::Release(_) | LockOp::Withdraw(_) => Self::Release,
            _ => Self::Other,
        }
    }
}

impl InDoubtRequests {
    /// Records a request that was sent and to which no server has responded.
    pub(super) fn add(&mut self, servers: Vec<Uuid>, until: BootInstant, kind: OpKind) {
        // No server begins a request that names no clock.
        if !servers.is_empty() {
            self.0.push(InDoubtRequest { servers, until, acquires: kind == OpKind::Acquire });
        }
    }

    /// Records that this server has answered a request that supersedes all in-doubt ones: on this
    /// server they cannot begin any more, and those that had begun ended first.
    pub(super) fn superseded_on(&mut self, server: Uuid) {
        for request in &mut self.0 {
            request.servers.retain(|candidate| *candidate != server);
        }
        self.0.retain(|request| !request.servers.is_empty());
    }

    /// Removes the requests whose deadline has passed and that no engine can be executing any more.
    pub(super) fn remove_expired(&mut self, now: BootInstant) {
        self.0.retain(|request| now < request.until.plus(MAX_ENGINE_CALL));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the instant at which an operation of this kind may be sent to these servers; `None`
    /// means at once. With one and the same server no wait is necessary: that server keeps the order.
    /// With several servers, one of them may begin an acquire after another one has executed the
    /// release.
    pub(super) fn send_after(&self, kind: OpKind, servers: &[Uuid]) -> Option<BootInstant> {
        let on_another_server = |request: &&InDoubtRequest| {
            request.acquires && (servers.len() != 1 || request.servers != servers)
        };
        let latest = self.0.iter().filter(on_another_server).map(|request| request.until).max();
        latest.filter(|_| kind == OpKind::Release).map(|until| until.plus(MAX_ENGINE_CALL))
    }
}

impl KeptState for InDoubtRequests {
    fn keep(&mut self) -> Keep {
        self.remove_expired(BootInstant::now());
        if self.is_empty() { Keep::No } else { Keep::Yes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_settled_when_every_possible_server_has_answered_a_later_one() {
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let until = BootInstant::from_micros(10);
        let mut in_doubt = InDoubtRequests::default();
        in_doubt.add(Vec::new(), until, OpKind::Acquire);
        assert!(in_doubt.is_empty());
        in_doubt.add(vec![one, two], until, OpKind::Acquire);
        assert_eq!(in_doubt.send_after(OpKind::Other, &[one, two]), None);
        let later = Some(until.plus(MAX_ENGINE_CALL));
        assert_eq!(in_doubt.send_after(OpKind::Release, &[one, two]), later);
        in_doubt.superseded_on(two);
        assert_eq!(in_doubt.send_after(OpKind::Release, &[two]), later);
        assert_eq!(in_doubt.send_after(OpKind::Release, &[one]), None, "a single server keeps the order");
        assert!(!in_doubt.is_empty());
        in_doubt.superseded_on(one);
        assert!(in_doubt.is_empty());
    }

    #[test]
    fn a_request_is_removed_after_its_deadline_and_the_engine_call() {
        let mut in_doubt = InDoubtRequests::default();
        let until = BootInstant::from_micros(10);
        in_doubt.add(vec![Uuid::from_u128(1)], until, OpKind::Other);
        in_doubt.remove_expired(until);
        assert!(!in_doubt.is_empty(), "an engine may still be executing it");
        in_doubt.remove_expired(until.plus(MAX_ENGINE_CALL));
        assert!(in_doubt.is_empty());
    }
}
