//! Mechanisms that several engines use: clocks, threads, wake-ups, and what both ends of the HTTP
//! protocol agree on.

pub(crate) mod background;
pub(crate) mod backoff;
pub(crate) mod batch_queue;
pub(crate) mod clock;
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
pub(crate) mod first_connection;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) mod home_runtime;
mod host;
#[cfg(any(feature = "http", feature = "github"))]
pub(crate) mod http_client;
pub mod in_order;
pub(crate) mod local_token;
pub(crate) mod mutex;
pub(crate) mod namespaces;
mod notify;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod pages;
pub mod protocol;
#[cfg(any(feature = "postgres", feature = "redis", feature = "http"))]
pub(crate) mod repeat;
#[cfg(any(feature = "dynamodb", feature = "github"))]
pub(crate) mod server_clock;
#[cfg(feature = "testing")]
pub(crate) mod simulation;
pub(crate) mod store_url;
pub(crate) mod sync;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod ticket_rows;
#[cfg(any(feature = "postgres", feature = "http", feature = "github"))]
pub(crate) mod tls;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "redis",
    feature = "dynamodb",
    feature = "http",
    feature = "github"
))]
pub(crate) mod url_options;
pub(crate) mod wake;

pub use clock::{Boot, BootInstant, Clock};
pub use host::{host_name, is_dead, process_identity, this_process};
pub use local_token::{local_token_or, local_token_path, read_local_token};
pub use notify::{notify_holders, notify_worker};
pub use store_url::StoreUrl;
pub use wake::{
    OnNotice, QueueSubscription, Recipient, RemoteGrant, Subscription, WaiterSubscription, Wakeup,
};
