//! Mechanisms that several engines use: clocks, threads, wake-ups, and what both ends of the HTTP
//! protocol agree on.

pub(crate) mod backoff;
pub(crate) mod batch_queue;
pub(crate) mod connection;
pub mod in_order;
pub(crate) mod machine;
pub(crate) mod mutex;
mod notify;
pub mod protocol;
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
pub(crate) mod repeat;
pub(crate) mod sync;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod ticket_rows;
pub(crate) mod url;
pub(crate) mod wake;

pub use machine::{
    Boot, BootInstant, Clock, host_name, is_dead, local_token_or, local_token_path, process_identity,
    read_local_token, this_process,
};
pub use notify::{notify_holders, notify_in_doubt, notify_worker};
pub use url::StoreUrl;
pub use wake::{
    OnNotice, QueueSubscription, Recipient, RemoteGrant, Subscription, WaiterSubscription, Wakeup,
};
