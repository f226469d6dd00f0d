//! `http(s)://HOST`: a leasehold server as the engine. Many machines, and no driver.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs`, `tls.rs` | from a URL to a server, its token and its certificate |
//! | `link.rs` | one exchange with the server |
//! | `call.rs` | one call: tries until it is answered or its time is over |
//! | `clocks.rs` | the servers' own clocks, so that a request that comes late is refused |
//! | `line.rs`, `ghosts.rs` | the order of calls for one lease id, and requests whose answer was lost |
//! | `desk.rs` | calls from any thread, made on the store's own |
//! | `locks.rs`, `tasks.rs`, `docs.rs`, `store.rs` | the traits |
//! | `wakes.rs` | one poll for the wake-ups of all waiters |
//! | `examine.rs` | what `leasehold doctor` tells |
//! | `trouble.rs` | what goes wrong, in our words |

mod call;
mod clocks;
mod desk;
mod docs;
mod examine;
mod ghosts;
mod line;
mod link;
mod locks;
mod options;
mod store;
mod tasks;
mod tls;
mod trouble;
mod wakes;

pub use options::HttpOptions;
pub use store::HttpStore;
