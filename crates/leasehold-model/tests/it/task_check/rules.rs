//! Correct rules: those of the library for tasks and the fence, and those of the client for its
//! belief.

use std::slice;

use leasehold_model::{
    Counts, Enqueued, Fence, HeartbeatResult, HeldTask, LeaseTasks, NewTask, Recovered, Settle, Settled,
    Task, TaskAnswer, TaskId, TaskOp, TaskState, TaskTable, Timestamp, Token, Ttl, WorkerInfo,
};

use super::state::{HeldLease, Worker};

/// Operation of a store.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Enqueue(NewTask),
    Lease(LeaseTasks),
    Heartbeat(WorkerInfo, HeldTask, Ttl),
    Settle(Settle),
    Change(TaskId, TaskOp),
    Recover,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Response {
    Enqueued(Enqueued),
    Leased(Vec<Task>),
    Heartbeat(HeartbeatResult),
    Settled(Settled),
    Changed(Option<TaskAnswer>),
    Recovered(Recovered),
}

/// Rules of a configuration. Plain functions, so that a mutant is one function that wraps a correct
/// one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: fn(&mut TaskTable, &Op, Timestamp) -> Response,
    pub(super) counts: fn(&TaskTable) -> Counts,
    /// Returns the time until which a worker believes to hold the lease, from the time at which it
    /// sent its request, the time of the reply, and the TTL.
    pub(super) until: fn(Timestamp, Timestamp, Ttl) -> Timestamp,
    /// Adds a lease to those that a worker holds.
    pub(super) take: fn(&mut Vec<HeldLease>, HeldLease),
    /// Whether a worker holds this lease, or held it a moment ago.
    pub(super) knows: fn(&Worker, usize, Token) -> bool,
    /// Whether a worker starts a lease that it did not know of only after a heartbeat for it was
    /// answered: it does not know to which request the lease belongs, so it does not know when the
    /// lease ends.
    pub(super) confirms: bool,
    /// Whether a worker that waits for the lock of a task starts the task only when the store knows of the
    /// start.
    pub(super) reports_starts: bool,
    pub(super) admit: fn(&mut Fence, Token) -> bool,
}

pub(super) const CORRECT: Rules = Rules {
    apply: correct,
    counts: |table| {
        let mut all = Counts::default();
        for queue in table.queues() {
            for state in TaskState::ALL {
                all.set(state, all.get(state) + queue.counts.get(state));
            }
        }
        all
    },
    until: |sent, _received, ttl| sent.plus(ttl),
    take: |held_leases, held| {
        held_leases.retain(|earlier| earlier.task != held.task);
        held_leases.push(held);
    },
    knows: |worker, task, token| worker.dropped.contains(&(task, token)) || worker.has(task, token),
    confirms: true,
    reports_starts: true,
    admit: |fence, token| fence.admit(token).is_ok(),
};

pub(super) fn correct(table: &mut TaskTable, op: &Op, now: Timestamp) -> Response {
    match op {
        Op::Enqueue(new) => Response::Enqueued(table.enqueue(slice::from_ref(new), now).remove(0)),
        Op::Lease(request) => Response::Leased(table.lease(request, now).tasks),
        Op::Heartbeat(worker, held, ttl) => {
            let beat = table.heartbeat(worker, slice::from_ref(held), *ttl, now).remove(0);
            // The registration of workers is not checked here.
            table.deregister(worker.id);
            Response::Heartbeat(beat)
        }
        Op::Settle(settle) => Response::Settled(table.settle(slice::from_ref(settle), now).remove(0)),
        Op::Change(id, op) => Response::Changed(table.change(*id, op, now)),
        Op::Recover => Response::Recovered(table.recover(100, now)),
    }
}
