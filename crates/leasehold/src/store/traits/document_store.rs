//! Small versioned documents: the compare-and-swap operation that an engine without transactions must
//! provide.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Capabilities, Cursor, HealthCheck, Page};
use crate::Result;
use crate::model::{Timestamp, Ttl};

/// Documents on an engine. [`put_if`](DocumentStore::put_if) is atomic: of several callers with the same
/// expected version, one succeeds. Reads return the latest write, unless
/// [`reads_may_be_old`](DocumentStore::reads_may_be_old) is `true`. After an error, the write may have
/// been made, may still be made later, or may never be made.
#[async_trait]
pub trait DocumentStore: Send + Sync + 'static {
    /// Returns the feature set of the engine.
    fn capabilities(&self) -> Capabilities;

    /// Returns the address of the store for output, without secrets.
    fn url(&self) -> String;

    /// Returns one document.
    async fn get(&self, key: &str) -> Result<Option<Document>>;

    /// Returns several documents, in the order of `keys`.
    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(self.get(key).await?);
        }
        Ok(found)
    }

    /// Writes a document if its current version is the expected one (`None`: if no document exists
    /// yet). On a conflict, returns the current document, so that the caller can continue from it
    /// without another read.
    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf>;

    /// Lists the documents whose keys begin with `prefix`, by key, one page at a time. Keys with the
    /// [`RESERVED_PREFIX`] are listed only if `prefix` begins with it.
    async fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32)
    -> Result<Page<(String, Document)>>;

    /// Returns the time as far as the engine knows it.
    async fn time(&self) -> Result<Time>;

    /// Whether a read may return an older state than the latest write. Then only a successful write
    /// proves that the state that was read was the latest.
    fn reads_may_be_old(&self) -> bool {
        false
    }

    /// Maximum duration of a call on a lock, whether it succeeds or fails.
    fn call_timeout(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// Number of events that move out of a lock's document at once. Part of the stored format: the
    /// keys of the history documents depend on it.
    fn batch(&self) -> u64 {
        32
    }

    /// Checks the health of the engine.
    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        Ok(Vec::new())
    }
}

/// First character of the keys that are not names given by users: no name contains a control
/// character.
pub const RESERVED_PREFIX: char = '\u{1}';

/// Whether a list by `prefix` includes this key.
pub(crate) fn is_listed(key: &str, prefix: &str) -> bool {
    key.starts_with(prefix) && (prefix.starts_with(RESERVED_PREFIX) || !key.starts_with(RESERVED_PREFIX))
}

/// Document to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewDocument {
    /// Content.
    pub body: String,
    /// Parts of the content for people who inspect the engine with its own tools. Never read back.
    pub annotations: Vec<(&'static str, Annotation)>,
    /// Time for which the document must be kept; for ever if `None`.
    pub keep: Option<Ttl>,
}

impl NewDocument {
    /// Creates a document that is kept for ever.
    pub fn new(body: impl Into<String>) -> Self {
        Self { body: body.into(), annotations: Vec::new(), keep: None }
    }
}

setters!(NewDocument {
    /// Sets the parts of the content for people who inspect the engine with its own tools.
    annotations: Vec<(&'static str, Annotation)>,
    /// Sets the time for which the document must be kept.
    keep: Option<Ttl>,
});

/// Value of an annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Annotation {
    /// Text.
    Text(String),
    /// Number.
    Number(u64),
    /// Several texts by name.
    Texts(Vec<(String, String)>),
}

/// Document as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Document {
    /// Version: rises with every write, never used twice for one key.
    pub version: u64,
    /// Content.
    pub body: String,
}

impl Document {
    /// Creates a document as an engine read it.
    pub fn new(version: u64, body: String) -> Self {
        Self { version, body }
    }
}

/// Result of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PutIf {
    /// The document was written and now has this version.
    Written(u64),
    /// The version was not the expected one; contains the current document.
    Conflict(Option<Document>),
}

/// Time as far as an engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Time {
    /// Time of the engine's clock.
    Exact(Timestamp),
    /// The engine has no authoritative clock. A lease has expired when a client has observed it
    /// unchanged for its whole duration.
    Observed {
        /// Estimate of the current time: for display, not for decisions.
        estimate: Timestamp,
        /// Time that has certainly passed on every clock that dated a lease of this engine.
        lower_bound: Option<Timestamp>,
    },
}

impl Time {
    /// Returns the time for display.
    pub const fn about(self) -> Timestamp {
        match self {
            Self::Exact(now) | Self::Observed { estimate: now, .. } => now,
        }
    }
}
