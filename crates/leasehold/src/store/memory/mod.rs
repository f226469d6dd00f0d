//! `memory:`: one process, nothing is persisted. For tests, and for programs that need the same rules
//! without an engine.

mod docs;
mod locks;
mod store;
mod tasks;

pub use docs::MemoryDocs;
pub use store::MemoryStore;
