//! The bare engines: a plain table or list, and the least that adding and working off can be.

pub(super) mod pgbench;
pub(super) mod postgres;
pub(super) mod redis;
pub(super) mod sqlite;

/// What a task is about, as leasehold would write it.
const PAYLOAD: &str = r#"{"sent":0}"#;
