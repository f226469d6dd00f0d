//! Contract of an engine: the traits that it implements, and the types of their calls.

mod capabilities;
pub(crate) mod document_store;
mod health_check;
pub(crate) mod lock_store;
mod rate_limit;
mod store;
mod task_store;

pub use capabilities::{Capabilities, Hosts, TaskCapabilities};
pub use document_store::{Annotation, Document, DocumentStore, NewDocument, PutIf, RESERVED_PREFIX, Time};
pub use health_check::{HealthCheck, HealthIssue};
pub use lock_store::{Cursor, EventRange, ListEvents, ListLocks, LockState, LockStore, Page, Peek};
pub use rate_limit::{RateLimit, RefusedUntil};
pub use store::Store;
pub use task_store::{ListTasks, TaskStore};
