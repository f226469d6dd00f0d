//! The engines: two small traits, and one folder per engine. Every engine obeys the rules in [`crate::model`].
//!
//! | file | idea |
//! |---|---|
//! | `lock_store.rs` | the trait that locks need, with its contract |
//! | `task_store.rs` | the trait that tasks need, with its contract |
//! | `doc_store.rs`, `cas/` | for engines that can only compare and swap: small documents, and locks made of them |
//! | `connect.rs` | from a URL to an engine |
//! | `abilities.rs` | what an engine can and cannot do |
//! | `budget.rs` | what a service that counts its requests still allows, and until when it refuses more |
//! | `clock.rs` | the one file that reads clocks |
//! | `host.rs` | who this process is, and whether another one is gone |
//! | `dates.rs` | the time of a service that only dates its answers |
//! | `repeat.rs` | whether a store may send an operation again by itself |
//! | `background.rs` | a thread of its own for an engine that talks over the network |
//! | `wake/` | waking exactly the waiter that has been served, in this process or the next; notices to holders and workers |
//! | `notify.rs` | which holders and workers are notified after which operation |
//! | `metered/` | a store that counts and times what is done with another one |
//! | `finding.rs` | what an engine finds out about itself for `leasehold doctor` |
//! | `memory/`, `sqlite/`, `postgres/`, `redis/`, `dynamodb/`, `github/` | the engines |
//! | `http/`, `protocol.rs` | a leasehold server as an engine, and the words both sides use |

mod abilities;
mod background;
mod budget;
mod cas;
pub(crate) mod clock;
mod connect;
#[cfg(any(feature = "dynamodb", feature = "github"))]
mod dates;
mod doc_store;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod finding;
#[cfg(feature = "github")]
pub mod github;
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

pub use abilities::{Abilities, Hosts, TaskAbilities};
pub use budget::{Budget, RefusedUntil};
pub use cas::{Cas, CasLocks, Sights};
pub use clock::{Boot, Clock, Moment};
pub use connect::{StoreUrl, connect, init};
pub use doc_store::{BACK_ROOM, Doc, DocStore, Draft, Fact, PutIf, Time};
pub use finding::{Concern, Finding};
pub use host::{host_name, is_gone, member, this_process};
pub use local_token::{local_token_or, local_token_path, read_local_token};
pub use lock_store::{Cursor, ListEvents, ListLocks, LockState, LockStore, Page, Peek, Span, Store};
pub use metered::{Buckets, Histogram, MeteredStore, Operation, Reading};
pub use notify::{notify_holders, notify_worker};
pub use task_store::{ListTasks, TaskStore};
pub use wake::{Arrivals, Changes, HandedOver, OnNotice, Recipient, Subscription, Wake};
