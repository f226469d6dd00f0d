//! Store engines: the contract in `traits/`, what engines share in `support/`, and one folder per
//! engine. Every engine follows the rules in [`crate::model`].

mod cas;
mod connect;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(all(
    test,
    feature = "dynamodb",
    feature = "github",
    feature = "http",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite",
    feature = "testing"
))]
mod fuzz;
#[cfg(feature = "github")]
pub mod github;
#[cfg(feature = "http")]
pub mod http;
mod instrumented;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod support;
mod traits;

pub use cas::{Cas, CasLocks, LeaseObservations};
pub use connect::{connect, init};
pub use instrumented::{Buckets, Histogram, InstrumentedStore, MetricsSnapshot, Operation};
pub(crate) use support::connection::background;
#[cfg(any(feature = "dynamodb", feature = "github"))]
pub(crate) use support::connection::server_clock;
pub(crate) use support::machine::clock;
#[cfg(feature = "testing")]
pub(crate) use support::machine::simulation;
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
pub(crate) use support::repeat;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use support::ticket_rows;
pub use support::{
    Boot, BootInstant, Clock, OnNotice, QueueSubscription, Recipient, RemoteGrant, StoreUrl, Subscription,
    WaiterSubscription, Wakeup, host_name, is_dead, local_token_or, local_token_path, notify_holders,
    notify_in_doubt, notify_worker, process_identity, read_local_token, this_process,
};
pub(crate) use support::{backoff, batch_queue, sync, wake};
#[doc(hidden)]
pub use support::{in_order, protocol};
pub use traits::{
    Annotation, Capabilities, Cursor, Document, DocumentStore, EventRange, HealthCheck, HealthIssue, Hosts,
    ListEvents, ListLocks, ListTasks, LockState, LockStore, NewDocument, Page, Peek, PutIf, RESERVED_PREFIX,
    RateLimit, RefusedUntil, Store, TaskCapabilities, TaskStore, Time,
};
pub(crate) use traits::{document_store, lock_store};
