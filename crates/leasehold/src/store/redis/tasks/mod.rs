//! Tasks on Redis. All of them live in one place of a Cluster, because a lock counts across queues, a worker may ask for
//! several queues at once, and tasks that are added together are added whole or not at all.
//!
//! | file | idea |
//! |---|---|
//! | `common.lua` | the record of a task and the lists that it is in, for all scripts |
//! | `enqueue.lua`, `lease.lua`, `beat.lua`, `settle.lua` | what is frequent: one call for a whole batch |
//! | `swap.lua`, `rare.rs` | what is rare: read, apply the rules, put back if nothing has changed meanwhile |
//! | `read.lua`, `queues.lua`, `recover.lua`, `tidy.lua` | reading, counts and pauses, what is due, putting away and forgetting |
//! | `store.rs` | the contract, call by call |
//! | `hot.rs`, `queues.rs` | the frequent calls; counts, pauses, workers and tidying up |
//! | `call.rs` | running a script, and reading its answer |
//! | `listing.rs` | tasks by page |
//! | `record.rs` | tasks as the scripts pack them |
//! | `bell.rs` | waking workers of other processes |

mod bell;
mod call;
mod hot;
mod listing;
mod queues;
mod rare;
mod record;
mod store;

pub(super) use store::Tasks;
