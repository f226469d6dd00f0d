//! `memory:`: one process, nothing is persisted. For tests, and for programs that need the same rules
//! without an engine.

mod documents;
mod locks;
mod store;
mod tasks;

pub use documents::MemoryDocs;
pub use store::MemoryStore;
