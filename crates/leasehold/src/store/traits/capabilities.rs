//! Feature set of an engine. Must be accurate: the conformance suite reads it and skips no case
//! silently.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::Ttl;

/// Feature set of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, and no caller passes them around"
)]
#[non_exhaustive]
pub struct Capabilities {
    /// Name of the engine, as in its URL.
    pub engine: &'static str,
    /// Which processes can reach the engine.
    pub hosts: Hosts,
    /// Shortest practical TTL, given the latency of the engine.
    pub min_ttl: Ttl,
    /// Maximum delay after a hand-over until the first waiter of the queue learns of it without a
    /// notification: polling is the contract. Waiters further back poll less often.
    pub poll: Duration,
    /// Whether the engine also sends notifications.
    pub push_notifications: bool,
    /// Whether the engine detects that the process of a holder has exited, and frees the lock before
    /// the TTL ends.
    pub detects_dead_processes: bool,
    /// Whether the stored data survives the end of this process.
    pub persistent: bool,
    /// Whether several holders can hold a lock at once: shared or counted locks.
    pub shared_locks: bool,
    /// Whether the engine has a queue of waiters. Without a queue, waiters poll, and a later waiter
    /// may acquire the lock first.
    pub queues: bool,
    /// Whether the engine deletes unused locks. Without this capability, every name that was ever
    /// locked stays stored.
    pub forgets_locks: bool,
    /// Time for which an expired lease still blocks other callers, because the clock of the engine is
    /// not exact.
    pub clock_uncertainty: Duration,
    /// Default TTL of a lease.
    pub ttl: Ttl,
    /// Task features of the engine; meaningful only if the engine has tasks.
    pub tasks: TaskCapabilities,
}

/// Task features of an engine beyond enqueueing, leasing, settling, cancelling and listing tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own, and no caller passes them around"
)]
#[non_exhaustive]
pub struct TaskCapabilities {
    /// Whether tasks may name a lock, and may be enqueued only if the queue of that lock has room.
    pub locks: bool,
    /// Whether queues can be paused.
    pub pause: bool,
    /// Whether finished tasks can be archived and purged.
    pub purge: bool,
    /// Whether workers are listed by their heartbeats, even while they hold no task.
    pub workers: bool,
    /// Whether a task can be updated while it runs.
    pub update_running: bool,
    /// Whether the promotion of a task that becomes due is recorded and counted. Without this
    /// capability, due tasks are available all the same.
    pub promotion: bool,
    /// Whether a task can be leased before its worker starts it. Without this capability, each lease
    /// counts as an attempt from the start.
    pub lease_ahead: bool,
    /// Whether a heartbeat needs separate requests for each task. Then a worker sends a heartbeat for each
    /// task, so that an error concerns one task alone.
    #[serde(default)]
    pub single_heartbeats: bool,
}

impl Capabilities {
    /// Capabilities of an engine that persists locks and has no optional feature; its fields can be
    /// changed.
    pub fn new(engine: &'static str, hosts: Hosts) -> Self {
        Self {
            engine,
            hosts,
            min_ttl: Ttl::from_secs(1),
            poll: Duration::from_secs(1),
            push_notifications: false,
            detects_dead_processes: false,
            persistent: true,
            shared_locks: false,
            queues: false,
            forgets_locks: false,
            clock_uncertainty: Duration::ZERO,
            ttl: Self::TTL,
            tasks: Self::ALL_OF_TASKS,
        }
    }

    /// Default TTL of a lease on most engines.
    pub const TTL: Ttl = Ttl::from_secs(30);

    /// All task features, as most engines with tasks have them.
    pub const ALL_OF_TASKS: TaskCapabilities = TaskCapabilities {
        locks: true,
        pause: true,
        purge: true,
        workers: true,
        update_running: true,
        promotion: true,
        lease_ahead: true,
        single_heartbeats: false,
    };

    /// Returns a description of the first of these needs of a conformance case that the engine does
    /// not meet.
    #[cfg(feature = "testing")]
    pub fn lacks(&self, needs: &[&str]) -> Option<&'static str> {
        let is_github = self.engine == "github";
        let known = [
            ("shares", self.shared_locks, "shared and counted locks"),
            ("queues", self.queues, "a queue"),
            ("forgets_locks", self.forgets_locks, "a way to forget idle locks"),
            ("pushes", self.push_notifications, "notifications"),
            ("large_payloads", !is_github, "payloads of a mebibyte"),
            (
                "quick",
                !is_github && self.engine != "dynamodb",
                "requests that are quick enough for a thousand of them",
            ),
            ("takeovers", !is_github, "grants that name the lease before them"),
            ("renewals", !is_github, "a history of single renewals"),
            ("exact", self.clock_uncertainty.is_zero(), "a clock of its own that is exact"),
            ("locks", self.tasks.locks, "tasks with locks"),
            ("pauses", self.tasks.pause, "queues that can be paused"),
            ("forgets", self.tasks.purge, "a way to put tasks away or to forget them"),
            ("workers", self.tasks.workers, "a list of workers that are idle"),
            ("edits", self.tasks.update_running, "a way to change a task while it runs"),
            ("promotes", self.tasks.promotion, "a line that tasks are put in when their time has come"),
            ("ahead", self.tasks.lease_ahead, "leases of tasks that are not started yet"),
        ];
        needs.iter().find_map(|need| match known.iter().find(|(name, ..)| name == need) {
            Some((_, is_met, description)) => (!is_met).then_some(*description),
            None => panic!("no engine knows the need '{need}'"),
        })
    }

    /// Whether the engine trusts its caller's view of the host: that processes have exited, or that
    /// the machine has been restarted. `false` for a server, whose callers run on other hosts.
    pub fn trusts_process_state(&self) -> bool {
        self.engine != "http"
    }
}

/// Which processes can reach an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hosts {
    /// Only this process.
    OneProcess,
    /// Every process of this machine.
    OneMachine,
    /// Processes of many machines.
    Many,
}
