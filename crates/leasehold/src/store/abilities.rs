//! What an engine can and cannot do. Honest: the conformance suite reads it, and no case is skipped silently.

use std::time::Duration;

use crate::model::Ttl;

/// What an engine can and cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    /// The engine's name, as in its URL.
    pub engine: &'static str,
    /// Who can reach it.
    pub hosts: Hosts,
    /// The shortest ttl that makes sense with its latency.
    pub min_ttl: Ttl,
    /// How long after a hand-over the waiter may learn of it if no wake-up reaches it: polling is the contract.
    pub poll: Duration,
    /// Whether it also sends wake-ups.
    pub wakes: bool,
    /// Whether it sees that a holder's process is gone, and frees the lock before the ttl is over.
    pub sees_the_dead: bool,
    /// Whether what it holds is still there after this process ends.
    pub lasting: bool,
}

impl Abilities {
    /// Whether it takes the word of its caller for what runs on its own host: that processes are gone, that the machine
    /// has started anew. A server does not: its callers are elsewhere.
    pub fn believes_in_processes(&self) -> bool {
        self.engine != "http"
    }
}

/// Who can reach an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hosts {
    /// Only this process.
    OneProcess,
    /// Every process of this machine.
    OneMachine,
    /// Many machines.
    Many,
}
