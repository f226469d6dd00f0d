//! The client floor: guards, strategies, workers, faults between client and store.

mod acquire;
mod again;
mod caretaker;
mod faults;
mod guard;
mod in_doubt;
mod leaving;
mod patience;
mod retention;
mod schedules;
mod several;
mod slow;
mod strategies;
mod support;
mod task_locks;
mod tasks;
mod worker;
mod worker_faults;
pub(crate) mod workflows;
