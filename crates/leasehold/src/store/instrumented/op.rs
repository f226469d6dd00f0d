//! Names of the timed operations. A fixed list: these names become labels.

use crate::model::LockOp;

macro_rules! operations {
    ($($variant:ident $name:literal)+) => {
        /// Kind of a store call.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Op {
            $($variant,)+
        }

        impl Op {
            pub(super) const ALL: &[Self] = &[$(Self::$variant,)+];

            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

operations! {
    Acquire "lock_acquire"
    Renew "lock_renew"
    Release "lock_release"
    Withdraw "lock_leave"
    RequestRelease "lock_ask_release"
    ForceRelease "lock_force_release"
    SweepOne "lock_sweep_one"
    LockGet "lock_get"
    LockPeek "lock_peek"
    LockList "lock_list"
    LockHistory "lock_history"
    LockNow "lock_now"
    LockSweep "lock_sweep"
    LockForget "lock_forget"
    TaskEnqueue "task_enqueue"
    TaskLease "task_lease"
    TaskHeartbeat "task_heartbeat"
    TaskLeave "task_leave"
    TaskSettle "task_settle"
    TaskChange "task_change"
    TaskRecover "task_recover"
    TaskGet "task_get"
    TaskList "task_list"
    TaskQueues "task_queues"
    TaskPause "task_pause"
    TaskWorkers "task_workers"
    TaskArchive "task_archive"
    TaskPurge "task_purge"
    TaskNow "task_now"
    DocGet "doc_get"
    DocPut "doc_put"
    DocList "doc_list"
    DocTime "doc_time"
}

impl From<&LockOp> for Op {
    fn from(op: &LockOp) -> Self {
        match op {
            LockOp::Acquire(_) => Self::Acquire,
            LockOp::Renew(_) | LockOp::RenewLogged(_) => Self::Renew,
            LockOp::Release(_) => Self::Release,
            LockOp::Withdraw(_) => Self::Withdraw,
            LockOp::RequestRelease(_) => Self::RequestRelease,
            LockOp::ForceRelease(_) => Self::ForceRelease,
            LockOp::Sweep(_) | LockOp::Restarted(_) => Self::SweepOne,
        }
    }
}
