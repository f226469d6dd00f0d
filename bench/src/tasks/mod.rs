//! What tasks cost: adding them, working them off, and how soon one that was added begins.
//!
//! | file | idea |
//! |---|---|
//! | `run.rs` | from the options to the report |
//! | `plan.rs` | the loads, and by what each is done |
//! | `rounds.rs` | every row once in each round |
//! | `row.rs`, `figure.rs` | one row in one round, and what it gave |
//! | `adders.rs` | clients that add tasks, put to work together |
//! | `enqueue.rs`, `drain.rs`, `start.rs`, `depth.rs` | the loads, done by leasehold |
//! | `raw/` | the same, done by the bare engine |
//! | `crew.rs` | a worker as it is by default, here or in a process of its own |
//! | `peers.rs` | other projects, if they install |
//! | `report.rs`, `aims.rs`, `tables.rs` | what all rounds together say |

mod adders;
mod aims;
mod crew;
mod depth;
mod drain;
mod enqueue;
mod figure;
mod peers;
mod plan;
mod raw;
mod report;
mod rounds;
mod row;
mod run;
mod start;
mod tables;

pub(crate) use crew::serve;
pub(crate) use run::run;
