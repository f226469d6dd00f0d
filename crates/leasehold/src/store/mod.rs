//! Store engines: the traits of a store, and one folder per engine. Every engine follows the rules in
//! [`crate::model`].

mod background;
mod capabilities;
mod cas;
pub(crate) mod clock;
mod connect;
#[cfg(any(feature = "dynamodb", feature = "github"))]
mod dates;
mod doc_store;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
#[cfg(feature = "github")]
pub mod github;
mod health_check;
mod host;
#[cfg(feature = "http")]
pub mod http;
mod local_token;
mod lock_store;
pub mod memory;
mod metered;
mod namespaces;
mod notify;
#[cfg(feature = "postgres")]
pub mod postgres;
#[doc(hidden)]
pub mod protocol;
mod rate_limit;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
mod repeat;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod task_store;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod ticket_rows;
mod wake;

pub use capabilities::{Capabilities, Hosts, TaskCapabilities};
pub use cas::{Cas, CasLocks, LeaseObservations};
pub use clock::{Boot, BootInstant, Clock};
pub use connect::{StoreUrl, connect, init};
pub use doc_store::{DocStore, Document, Fact, NewDocument, PutIf, RESERVED_PREFIX, Time};
pub use health_check::{HealthCheck, HealthIssue};
pub use host::{host_name, is_gone, member, this_process};
pub use local_token::{local_token_or, local_token_path, read_local_token};
pub use lock_store::{Cursor, EventRange, ListEvents, ListLocks, LockState, LockStore, Page, Peek, Store};
pub use metered::{Buckets, Histogram, InstrumentedStore, MetricsSnapshot, Operation};
pub use notify::{notify_holders, notify_worker};
pub use rate_limit::{RateLimit, RefusedUntil};
pub use task_store::{ListTasks, TaskStore};
pub use wake::{
    OnNotice, QueueSubscription, Recipient, RemoteGrant, Subscription, WaiterSubscription, Wakeup,
};
