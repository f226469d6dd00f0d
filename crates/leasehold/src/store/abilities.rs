//! What an engine can and cannot do. Honest: the conformance suite reads it, and no case is skipped silently.

use std::time::Duration;

use crate::model::Ttl;

/// What an engine can and cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, and nobody passes them around"
)]
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
    /// Whether several can hold a lock at once: shared, or counted.
    pub shares: bool,
    /// Whether there is a queue. Without one, whoever waits asks again and again, and others may be faster.
    pub queues: bool,
    /// For how long a lease that has ended still keeps others out, because the engine's clock is not exact.
    pub grace: Duration,
    /// How long a lease lasts if nobody says otherwise.
    pub ttl: Ttl,
}

impl Abilities {
    /// How long a lease lasts on most engines if nobody says otherwise.
    pub const TTL: Ttl = Ttl::from_secs(30);

    /// The first of these needs of a conformance case that the engine cannot meet, in words.
    #[cfg(feature = "testing")]
    pub fn lacks(&self, needs: &[&str]) -> Option<&'static str> {
        needs.iter().find_map(|need| match *need {
            "shares" if !self.shares => Some("shared and counted locks"),
            "queues" if !self.queues => Some("a queue"),
            "exact" if !self.grace.is_zero() => Some("a clock of its own that is exact"),
            "shares" | "queues" | "exact" => None,
            other => panic!("no engine knows the need '{other}'"),
        })
    }

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
