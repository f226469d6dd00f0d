//! `redis://…`: many machines, the fastest of the engines that are far away. Alone, with Sentinel or as a Cluster.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs` | from the URL to servers and settings |
//! | `keys.rs` | how names become keys, and which of them live together |
//! | `ways.lua`, `short.lua`, `apply.lua` | the rules, where they are atomic: in the server; first what is simple and frequent |
//! | `many.lua`, `group.rs` | several operations in one call, when many callers wait |
//! | `chain.lua`, `bucket.lua` | reading the history of one lock, and of all |
//! | `call.rs` | an operation as arguments of the script, and the script's answer as an outcome |
//! | `packed.rs` | records, leases, tickets and events as the script packs them |
//! | `link.rs`, `line.rs` | the connection of this process: shared, made anew when it breaks |
//! | `scripts.rs` | running a script that the server may have forgotten |
//! | `inbox.rs` | wake-ups from other processes |
//! | `locks.rs`, `history.rs` | operations on locks; listing and history over all buckets |
//! | `tasks/` | tasks: scripts of their own over keys of their own |
//! | `docs.rs`, `docs.lua` | small versioned documents |
//! | `store.rs`, `examine.rs` | the engine as a whole, and what it finds out about its server |
//! | `trouble.rs` | what Redis says, in our words |

mod call;
mod docs;
mod examine;
mod group;
mod history;
mod inbox;
mod keys;
mod line;
mod link;
mod locks;
mod options;
mod packed;
mod scripts;
mod store;
mod tasks;
mod trouble;

pub use options::{RedisOptions, Topology};
pub use store::RedisStore;
