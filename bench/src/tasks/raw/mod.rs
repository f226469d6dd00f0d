//! Raw engines: a plain table or list, with the minimum of an enqueue and a drain.

pub(super) mod postgres;
pub(super) mod redis;
pub(super) mod sqlite;

/// Payload of a task, as leasehold would write it.
const PAYLOAD: &str = r#"{"sent":0}"#;
