//! Small versioned documents: the compare-and-swap that an engine without transactions has to offer.

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Abilities, Cursor, Finding, Page};
use crate::Result;
use crate::model::{Timestamp, Ttl};

/// Documents on an engine. [`put_if`](DocStore::put_if) is atomic: of several callers with the same expectation, one
/// succeeds. Reads see the latest write, unless the engine [says otherwise](DocStore::reads_may_be_old). Errors leave open whether the write was made, or is yet to be made.
#[async_trait]
pub trait DocStore: Send + Sync + 'static {
    /// What the engine can and cannot do.
    fn abilities(&self) -> Abilities;

    /// Its address for people: no secret in it.
    fn url(&self) -> String;

    /// One document.
    async fn get(&self, key: &str) -> Result<Option<Doc>>;

    /// Several documents, in the order of their keys as given.
    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Doc>>> {
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push(self.get(key).await?);
        }
        Ok(found)
    }

    /// Writes a document if its version is the expected one (`None`: if there is none yet). On a clash it gives what
    /// is there instead, so that the caller can go on from it without reading again.
    async fn put_if(&self, key: &str, expected: Option<u64>, draft: Draft) -> Result<PutIf>;

    /// Documents whose keys begin with `prefix`, by key, a page at a time. Those in the [back room](BACK_ROOM) are
    /// shown only to whoever asks for it.
    async fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Result<Page<(String, Doc)>>;

    /// What the engine knows about the time.
    async fn time(&self) -> Result<Time>;

    /// Whether a read may show what was there earlier, instead of the latest write. Then only a write that succeeds
    /// proves that what was read was the latest.
    fn reads_may_be_old(&self) -> bool {
        false
    }

    /// A call on a lock ends within this time, one way or the other.
    fn patience(&self) -> Duration {
        Duration::from_secs(5)
    }

    /// How many events move out of a lock's document at once. Part of the stored format: the keys follow from it.
    fn batch(&self) -> u64 {
        32
    }

    /// What the engine finds out about itself.
    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

/// Keys that begin with this are not what people have named: no name has a control character in it.
pub const BACK_ROOM: char = '\u{1}';

/// Whether a list by `prefix` shows this key.
pub(crate) fn is_listed(key: &str, prefix: &str) -> bool {
    key.starts_with(prefix) && (prefix.starts_with(BACK_ROOM) || !key.starts_with(BACK_ROOM))
}

/// What is to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// What it says.
    pub body: String,
    /// What in it may interest people who look at the engine with its own tools. Never read back.
    pub facts: Vec<(&'static str, Fact)>,
    /// So long it is worth keeping; for ever if nothing is said.
    pub keep: Option<Ttl>,
}

/// Something that people may want to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fact {
    /// A text.
    Text(String),
    /// A number.
    Number(u64),
    /// Several texts by name.
    Texts(Vec<(String, String)>),
}

/// A document as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doc {
    /// Rises with every write; never used twice for one key.
    pub version: u64,
    /// What it says.
    pub body: String,
}

/// What came of a conditional write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PutIf {
    /// Written, with this version.
    Written(u64),
    /// Somebody was faster; this is what is there now.
    Clash(Option<Doc>),
}

/// What an engine knows about the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Time {
    /// The engine has a clock, and this is what it says.
    Exact(Timestamp),
    /// It has none that decides. A lease is over when somebody has watched it for its whole duration.
    Watched {
        /// About now: good enough to show, not to decide by.
        about: Timestamp,
        /// This has passed for certain on any clock that a lease of this engine was dated with.
        past: Option<Timestamp>,
    },
}

impl Time {
    /// The time to show.
    pub const fn about(self) -> Timestamp {
        match self {
            Self::Exact(now) | Self::Watched { about: now, .. } => now,
        }
    }
}
