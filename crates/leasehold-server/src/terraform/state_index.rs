//! Index of a state: its current version, the earlier versions, and the token that fences writes.

use leasehold::model::{Timestamp, Token};
use leasehold::store::{DocStore, Document, NewDocument, RESERVED_PREFIX};
use leasehold::{Error, Result, StoreErrorKind};
use serde::{Deserialize, Serialize};

/// Stored index of a state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct StateIndex {
    /// Minimum token: writes with a lower token are rejected.
    #[serde(default)]
    pub(super) token: Token,
    /// Whether the state exists; if so, the state is the first of the versions.
    #[serde(default)]
    pub(super) present: bool,
    /// Kept versions, newest first.
    #[serde(default)]
    pub(super) versions: Vec<Version>,
}

/// One version of a state.
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
    #[serde(rename = "pieces")]
    pub(super) chunks: Vec<u64>,
}

/// Index as read from the store.
pub(super) struct StoredIndex {
    pub(super) index: StateIndex,
    /// Version of the index document; `None` if the document does not exist yet.
    pub(super) version: Option<u64>,
}

impl StoredIndex {
    pub(super) async fn load(docs: &dyn DocStore, state: &str) -> Result<Self> {
        Self::read(docs.get(&key(state)).await?)
    }

    pub(super) fn read(doc: Option<Document>) -> Result<Self> {
        let Some(doc) = doc else { return Ok(Self { index: StateIndex::default(), version: None }) };
        let index = serde_json::from_str(&doc.body).map_err(|error| broken(error.to_string()))?;
        Ok(Self { index, version: Some(doc.version) })
    }
}

impl StateIndex {
    /// Returns the current version of the state.
    pub(super) fn current(&self) -> Option<&Version> {
        self.versions.first().filter(|_| self.present)
    }

    /// Removes and returns versions beyond the `most` newest earlier versions, and versions older
    /// than `since`.
    pub(super) fn prune(&mut self, most: usize, since: Timestamp) -> Vec<Version> {
        let newest = usize::from(self.present);
        let young = self.versions.iter().skip(newest).take_while(|version| version.at >= since).count();
        self.versions.split_off(self.versions.len().min(newest + young.min(most)))
    }

    pub(super) fn document(&self) -> NewDocument {
        let body = serde_json::to_string(self).expect("a state index is serializable");
        NewDocument { body, facts: Vec::new(), keep: None }
    }
}

/// Returns the document key of the index.
pub(super) fn key(state: &str) -> String {
    format!("{RESERVED_PREFIX}server/tf/{state}")
}

pub(super) fn broken(reason: impl std::fmt::Display) -> Error {
    let message = format!("invalid Terraform state in the store: {reason}");
    Error::Store { kind: StoreErrorKind::Broken, message, hint: String::new(), source: None }
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
        let gone = index.prune(most, Timestamp::from_micros(since)).len();
        (index.versions.len(), gone)
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
}
