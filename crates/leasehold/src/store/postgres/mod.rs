//! `postgres://…`: many machines, on a database that people already run.
//!
//! What is hot is decided in SQL, in one statement on the server's own clock; everything else goes by the rules in
//! [`crate::model`], under a row lock.
//!
//! | file | idea |
//! |---|---|
//! | `options.rs` | from the URL to a server and its settings |
//! | `tls.rs` | encryption, as `sslmode` understands it |
//! | `session.rs`, `gate.rs` | one connection with its prepared statements; how it is opened |
//! | `schema.rs` | tables, their versions, made by whoever comes first |
//! | `sql.rs` | every statement, as a constant |
//! | `rows.rs` | records and events, in and out of rows |
//! | `native.rs` | acquire, renew and release of an uncontended lock: one statement for one or for many |
//! | `queue.rs` | joining a plain queue and handing over to its first: one statement each, or one for both |
//! | `tickets.rs` | a long queue: one row per ticket, refreshed one at a time |
//! | `general.rs` | every operation, by the rules, under a row lock |
//! | `near.rs` | a connection on the caller's own runtime, for a caller that is alone |
//! | `switchboard.rs`, `lane.rs` | how operations get to a connection, in order, and many at a time |
//! | `aside.rs` | a lock whose row another program keeps locked gets a connection of its own |
//! | `idle.rs` | closing connections that are not used: a process that waits or holds keeps one |
//! | `abandoned.rs`, `deadline.rs` | a statement that arrives after its client has given up changes nothing |
//! | `reads.rs` | records and history, a page at a time |
//! | `listener.rs` | wake-ups from other processes |
//! | `upkeep.rs` | the sweep, and bounding the history |
//! | `tasks/` | tasks: hot ones in SQL, the others by the rules |
//! | `docs.rs` | small versioned documents |
//! | `examine.rs` | what `leasehold doctor` wants to know |
//! | `store.rs` | the engine as a whole |
//! | `trouble.rs` | what PostgreSQL says, in our words |

mod abandoned;
mod aside;
mod deadline;
mod docs;
mod examine;
mod gate;
mod general;
mod idle;
mod lane;
mod listener;
mod native;
mod near;
mod options;
mod queue;
mod reads;
mod rows;
mod schema;
mod session;
mod sql;
mod store;
mod switchboard;
mod tasks;
mod tickets;
mod tls;
mod trouble;
mod upkeep;

pub use options::{Pooler, PostgresOptions, SslMode};
pub use store::PostgresStore;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use tasks::LeaseStatement;
pub use tasks::{EnqueuedInside, WakeWorkers};
/// The driver, for those who add tasks in transactions of their own.
pub use tokio_postgres;
