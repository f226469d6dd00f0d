//! The client floor: guards, strategies, workers, faults between client and store.

mod acquire;
mod again;
mod caretaker;
mod faults;
mod guard;
mod patience;
mod schedules;
mod several;
mod strategies;
mod support;
mod tasks;
mod worker;
mod worker_faults;
pub(crate) mod workflows;
