//! The rules as they are: the library's for tasks and the fence, and the client's for what it may believe.

use std::slice;

use leasehold_model::{
    Counts, Enqueued, Fence, HeartbeatResult, HeldTask, LeaseTasks, NewTask, Recovered, Settle, Settled,
    Task, TaskAnswer, TaskId, TaskOp, TaskState, TaskTable, Timestamp, Token, Ttl, WorkerInfo,
};

use super::state::{Hand, Worker};

/// What a store can be asked to do.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Enqueue(NewTask),
    Lease(LeaseTasks),
    Beat(WorkerInfo, HeldTask, Ttl),
    Settle(Settle),
    Change(TaskId, TaskOp),
    Recover,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    Enqueued(Enqueued),
    Leased(Vec<Task>),
    Beat(HeartbeatResult),
    Settled(Settled),
    Changed(Option<TaskAnswer>),
    Recovered(Recovered),
}

/// What a world runs on. Plain functions, so that a wrong rule is one function that wraps a right one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) apply: fn(&mut TaskTable, &Op, Timestamp) -> Answer,
    pub(super) counts: fn(&TaskTable) -> Counts,
    /// Until when a worker believes, by when it sent its request, when the reply came, and how long a lease lasts.
    pub(super) until: fn(Timestamp, Timestamp, Ttl) -> Timestamp,
    /// A worker takes a lease in hand.
    pub(super) take: fn(&mut Vec<Hand>, Hand),
    /// Whether a worker has this lease in hand, or had it a moment ago.
    pub(super) knows: fn(&Worker, usize, Token) -> bool,
    /// A lease that a worker did not know of is begun only after a sign of life for it was answered: nobody knows to
    /// which asking it belongs, so nobody could say until when it lasts.
    pub(super) confirms: bool,
    pub(super) admit: fn(&mut Fence, Token) -> bool,
}

pub(super) const RIGHT: Rules = Rules {
    apply: right,
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
    take: |hands, hand| {
        hands.retain(|earlier| earlier.task != hand.task);
        hands.push(hand);
    },
    knows: |worker, task, token| worker.gone.contains(&(task, token)) || worker.has(task, token),
    confirms: true,
    admit: |fence, token| fence.admit(token).is_ok(),
};

pub(super) fn right(table: &mut TaskTable, op: &Op, now: Timestamp) -> Answer {
    match op {
        Op::Enqueue(new) => Answer::Enqueued(table.enqueue(slice::from_ref(new), now).remove(0)),
        Op::Lease(ask) => Answer::Leased(table.lease(ask, now).tasks),
        Op::Beat(worker, held, ttl) => {
            let beat = table.heartbeat(worker, slice::from_ref(held), *ttl, now).remove(0);
            // Who is known to work is not what is checked here.
            table.leave(worker.id);
            Answer::Beat(beat)
        }
        Op::Settle(settle) => Answer::Settled(table.settle(slice::from_ref(settle), now).remove(0)),
        Op::Change(id, op) => Answer::Changed(table.change(*id, op, now)),
        Op::Recover => Answer::Recovered(table.recover(100, now)),
    }
}
