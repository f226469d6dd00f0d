//! What an engine can and cannot do. Honest: the conformance suite reads it, and no case is skipped silently.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// How long after a hand-over the first in the queue may learn of it if no wake-up reaches it: polling is the
    /// contract. Waiters further back poll less often.
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
    /// Whether it forgets locks that nobody uses any more. Without it, every name that was ever locked stays stored.
    pub forgets_locks: bool,
    /// For how long a lease that has ended still keeps others out, because the engine's clock is not exact.
    pub grace: Duration,
    /// How long a lease lasts if nobody says otherwise.
    pub ttl: Ttl,
    /// What it can do with tasks, if it has them.
    pub tasks: TaskAbilities,
}

/// What an engine can do with tasks beyond adding, leasing, settling, stopping and showing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, and nobody passes them around"
)]
pub struct TaskAbilities {
    /// Tasks may have a lock, and be added only if there is room behind it.
    pub locks: bool,
    /// Queues can be paused.
    pub pauses: bool,
    /// Finished tasks can be put away and forgotten.
    pub forgets: bool,
    /// Workers are known by their signs of life, also while they have no task.
    pub workers: bool,
    /// A task can be changed while it runs.
    pub edits: bool,
    /// That the time of a task has come is written down and counted. Without it, it is so all the same.
    pub promotes: bool,
    /// A task can be leased before its worker starts it. Without it, each lease counts as an attempt from the start.
    #[serde(default)]
    pub ahead: bool,
}

impl Default for TaskAbilities {
    fn default() -> Self {
        Abilities::ALL_OF_TASKS
    }
}

impl Abilities {
    /// How long a lease lasts on most engines if nobody says otherwise.
    pub const TTL: Ttl = Ttl::from_secs(30);

    /// Most engines with tasks can do all of it.
    pub const ALL_OF_TASKS: TaskAbilities = TaskAbilities {
        locks: true,
        pauses: true,
        forgets: true,
        workers: true,
        edits: true,
        promotes: true,
        ahead: true,
    };

    /// The first of these needs of a conformance case that the engine cannot meet, in words.
    #[cfg(feature = "testing")]
    pub fn lacks(&self, needs: &[&str]) -> Option<&'static str> {
        needs.iter().find_map(|need| match *need {
            "shares" if !self.shares => Some("shared and counted locks"),
            "queues" if !self.queues => Some("a queue"),
            "forgets_locks" if !self.forgets_locks => Some("a way to forget idle locks"),
            "quick" if matches!(self.engine, "dynamodb" | "github") => {
                Some("requests that are quick enough for a thousand of them")
            }
            "takeovers" if self.engine == "github" => Some("grants that name the lease before them"),
            "renewals" if self.engine == "github" => Some("a history of single renewals"),
            "exact" if !self.grace.is_zero() => Some("a clock of its own that is exact"),
            "locks" if !self.tasks.locks => Some("tasks with locks"),
            "pauses" if !self.tasks.pauses => Some("queues that can be paused"),
            "forgets" if !self.tasks.forgets => Some("a way to put tasks away or to forget them"),
            "workers" if !self.tasks.workers => Some("a list of workers that are idle"),
            "edits" if !self.tasks.edits => Some("a way to change a task while it runs"),
            "promotes" if !self.tasks.promotes => {
                Some("a line that tasks are put in when their time has come")
            }
            "ahead" if !self.tasks.ahead => Some("leases of tasks that are not started yet"),
            "shares" | "queues" | "quick" | "takeovers" | "renewals" | "forgets_locks" | "exact"
            | "locks" | "pauses" | "forgets" | "workers" | "edits" | "promotes" | "ahead" => None,
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
