//! Small versioned documents: the compare-and-swap that an engine without transactions has to offer.

use async_trait::async_trait;

use super::{Cursor, Page};
use crate::Result;
use crate::model::{LockRecord, Timestamp};

/// Documents on an engine. [`put_if`](DocStore::put_if) is atomic: of several callers with the same expectation, one
/// succeeds. Reads see the latest write. Errors leave open whether the write was made.
#[async_trait]
pub trait DocStore: Send + Sync + 'static {
    /// One document.
    async fn get(&self, key: &str) -> Result<Option<Doc>>;

    /// Writes a document if its version is the expected one (`None`: if there is none yet). On a clash it gives what
    /// is there instead, so that the caller can go on from it without reading again.
    async fn put_if(&self, key: &str, expected: Option<u64>, body: String) -> Result<PutIf>;

    /// Documents whose keys begin with `prefix`, by key, a page at a time.
    async fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Result<Page<(String, Doc)>>;

    /// The engine's time.
    async fn now(&self) -> Result<Timestamp>;

    /// The time at which an operation is applied to this record. An engine without a clock of its own answers so that
    /// no lease ends in it that may not have ended.
    async fn now_for(&self, _record: &LockRecord) -> Result<Timestamp> {
        self.now().await
    }
}

/// A document as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doc {
    /// Counts its writes; never used twice for one key.
    pub version: u64,
    /// What it says.
    pub body: String,
}

/// What came of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutIf {
    /// Written, with this version.
    Written(u64),
    /// Somebody was faster; this is what is there now.
    Clash(Option<Doc>),
}
