//! `memory:`: one process, nothing kept. For tests, and for programs that want the same rules without an engine.

mod docs;
mod locks;
mod store;
mod tasks;

pub use docs::MemoryDocs;
pub use store::MemoryStore;
