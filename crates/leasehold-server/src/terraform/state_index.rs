//! Stored form of a state: the index, with its current version, the earlier versions and the token that
//! fences writes, and the chunks of each version.

use std::time::Duration;

use leasehold::model::{Timestamp, Token, Ttl};
use leasehold::store::{Document, DocumentStore, NewDocument, PutIf, RESERVED_PREFIX, Store};
use leasehold::{BootInstant, Error, Result, StoreErrorKind};
use serde::{Deserialize, Serialize};

use crate::problem::{self, Problem};

/// Maximum number of attempts of an operation that conflicts with concurrent writes.
pub(super) const MAX_ATTEMPTS: u32 = 10;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StateIndex {
    /// Minimum token: writes with a lower token are rejected.
    pub(super) token: Token,
    /// Whether the state exists; if so, the state is the first of the versions.
    pub(super) present: bool,
    pub(super) versions: Vec<Version>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Version {
    /// Unique id, part of the keys of the version's chunks. Never reused.
    pub(super) id: String,
    /// Serial number that the client assigns.
    pub(super) serial: u64,
    pub(super) lineage: String,
    pub(super) client: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) at: Timestamp,
    /// Name of the token that the version was written with.
    pub(super) by: String,
    /// Fencing token of the lock at the time of the write.
    pub(super) token: Token,
    /// Document versions of the chunks, in order.
    pub(super) chunks: Vec<u64>,
}

pub(super) struct StoredIndex {
    pub(super) index: StateIndex,
    /// Version of the index document; `None` if the document does not exist yet.
    pub(super) version: Option<u64>,
}

impl StoredIndex {
    pub(super) async fn load(docs: &dyn DocumentStore, state: &str) -> Result<Self> {
        Self::read(docs.get(&key(state)).await?)
    }

    pub(super) fn read(doc: Option<Document>) -> Result<Self> {
        let Some(doc) = doc else { return Ok(Self { index: StateIndex::default(), version: None }) };
        let index = serde_json::from_str(&doc.body).map_err(broken)?;
        Ok(Self { index, version: Some(doc.version) })
    }
}

impl StateIndex {
    pub(super) fn current(&self) -> Option<&Version> {
        self.versions.first().filter(|_| self.present)
    }

    /// Whether this is the index of a write that has added `version`, or of a later one.
    pub(super) fn has(&self, version: &Version) -> bool {
        self.versions.iter().any(|known| known.id == version.id)
    }

    /// Removes and returns versions beyond the `most` newest earlier versions, and versions older
    /// than `since`.
    pub(super) fn prune(&mut self, most: usize, since: Timestamp) -> Vec<Version> {
        let newest = usize::from(self.present);
        let young = self.versions.iter().skip(newest).take_while(|version| version.at >= since).count();
        self.versions.split_off(self.versions.len().min(newest + young.min(most)))
    }

    pub(super) fn document(&self) -> NewDocument {
        NewDocument::new(serde_json::to_string(self).expect("a state index is serializable"))
    }
}

pub(super) fn key(state: &str) -> String {
    format!("{RESERVED_PREFIX}server/tf/{state}")
}

fn broken(reason: impl std::fmt::Display) -> Error {
    problem::broken(format!("invalid Terraform state in the store: {reason}"))
}

/// Returns the document store, or the problem `NOT_SUPPORTED`.
pub(super) fn docs(store: &dyn Store) -> Result<&dyn DocumentStore, Problem> {
    let none = || Problem::new("NOT_SUPPORTED", format!("{} does not support documents", store.url()));
    store.documents().ok_or_else(none)
}

/// Raises the minimum token of the state, so that writes with a lower token are rejected from now on.
pub(super) async fn raise_min_token(store: &dyn Store, state: &str, token: Token) -> Result<()> {
    let Some(docs) = store.documents() else { return Ok(()) };
    let mut found = StoredIndex::load(docs, state).await?;
    for _ in 0..MAX_ATTEMPTS {
        if found.index.token >= token {
            return Ok(());
        }
        let index = StateIndex { token, ..found.index };
        match docs.put_if(&key(state), found.version, index.document()).await? {
            PutIf::Written(_) => return Ok(()),
            PutIf::Conflict(doc) => found = StoredIndex::read(doc)?,
        }
    }
    Err(busy())
}

/// Returns the error for a state that changes faster than it can be read or written.
pub(super) fn busy() -> Error {
    let message = "the state changed too often during the request";
    Error::store(StoreErrorKind::Unavailable, message, "retry the request")
}

const CHUNK_BYTES: usize = 256 * 1024;
/// Maximum number of chunks per read: a `DynamoDB` response has at most 16 MB.
const CHUNKS_PER_READ: usize = 32;
/// Time for which the deletion of the chunks of a write is tried again.
const DELETE_FOR: Duration = Duration::from_mins(1);
const DELETE_INTERVAL: Duration = Duration::from_secs(1);

/// Writes the chunks of a version, and adds the versions of their documents to it; on an error, those that
/// were written. No reader sees the chunks until an index names them.
pub(super) async fn write_chunks(
    docs: &dyn DocumentStore,
    state: &str,
    version: &mut Version,
    text: &str,
) -> Result<()> {
    for (number, chunk) in split(text).enumerate() {
        match docs.put_if(&chunk_key(state, &version.id, number), None, NewDocument::new(chunk)).await? {
            PutIf::Written(written) => version.chunks.push(written),
            // A retry by a driver that did not receive the response.
            PutIf::Conflict(Some(doc)) if doc.body == chunk => version.chunks.push(doc.version),
            PutIf::Conflict(_) => return Err(broken("a new version has the id of an existing version")),
        }
    }
    Ok(())
}

pub(super) async fn read_chunks(docs: &dyn DocumentStore, state: &str, version: &Version) -> Result<String> {
    let mut text = String::with_capacity(usize::try_from(version.bytes).unwrap_or(0));
    let keys: Vec<_> =
        (0..version.chunks.len()).map(|number| chunk_key(state, &version.id, number)).collect();
    for keys in keys.chunks(CHUNKS_PER_READ) {
        for doc in docs.get_all(keys).await? {
            text.push_str(&doc.ok_or_else(|| broken("a chunk is missing"))?.body);
        }
    }
    if text.len() as u64 == version.bytes { Ok(text) } else { Err(broken("the length does not match")) }
}

/// Deletes the chunks of versions that no index names. Tries again for a limited time if the store does not
/// respond; chunks that remain after that only use space.
pub(super) async fn delete_chunks(docs: &dyn DocumentStore, state: &str, versions: &[Version]) {
    let until = BootInstant::now().plus(DELETE_FOR);
    let deleted = || NewDocument::new("").keep(Ttl::MIN);
    for version in versions {
        for (number, chunk) in version.chunks.iter().enumerate() {
            let key = chunk_key(state, &version.id, number);
            while let Err(error) = docs.put_if(&key, Some(*chunk), deleted()).await {
                if !error.is_retryable() || BootInstant::now() >= until {
                    tracing::warn!(state, %error, "failed to delete the chunks of unused Terraform states");
                    return;
                }
                tokio::time::sleep(DELETE_INTERVAL).await;
            }
        }
    }
}

fn chunk_key(state: &str, id: &str, number: usize) -> String {
    // The id comes first and contains no '/', so no state name can produce the key of another
    // state's chunk.
    format!("{RESERVED_PREFIX}server/tf-chunk/{id}/{number:04}/{state}")
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (chunk, after) = rest.split_at(rest.floor_char_boundary(CHUNK_BYTES));
        rest = after;
        (!chunk.is_empty()).then_some(chunk)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(present: bool, ages: &[u64]) -> StateIndex {
        let version = |at: &u64| Version {
            id: at.to_string(),
            serial: *at,
            lineage: String::new(),
            client: String::new(),
            bytes: 0,
            sha256: String::new(),
            at: Timestamp::from_micros(*at),
            by: String::new(),
            token: Token::default(),
            chunks: Vec::new(),
        };
        StateIndex { token: Token::default(), present, versions: ages.iter().map(version).collect() }
    }

    fn pruned(mut index: StateIndex, most: usize, since: u64) -> (usize, usize) {
        let pruned = index.prune(most, Timestamp::from_micros(since)).len();
        (index.versions.len(), pruned)
    }

    #[test]
    fn earlier_versions_are_limited_by_count_and_age_and_the_current_one_is_kept() {
        assert_eq!(pruned(index(true, &[9, 8, 7, 6]), 2, 0), (3, 1));
        assert_eq!(pruned(index(true, &[9, 8, 7, 6]), 9, 7), (3, 1));
        assert_eq!(pruned(index(true, &[9, 8]), 9, 100), (1, 1));
        assert_eq!(pruned(index(true, &[9]), 0, 100), (1, 0));
        assert_eq!(pruned(index(false, &[9, 8]), 1, 0), (1, 1));
        assert_eq!(pruned(index(false, &[]), 1, 0), (0, 0));
    }

    #[test]
    fn chunks_are_small_and_join_to_the_whole_text() {
        let text = "ä€x".repeat(CHUNK_BYTES / 3);
        let chunks: Vec<_> = split(&text).collect();
        assert!(
            chunks.len() > 1 && chunks.iter().all(|chunk| chunk.len() <= CHUNK_BYTES && !chunk.is_empty())
        );
        assert_eq!(chunks.concat(), text);
        assert_eq!(split("").count(), 0);
    }
}
