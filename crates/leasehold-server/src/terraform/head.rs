//! What is known of a state: its newest version, the ones before it, and the token that writes are measured by.

use leasehold::model::{Timestamp, Token};
use leasehold::store::{BACK_ROOM, Doc, DocStore, Draft};
use leasehold::{Error, Result, Trouble};
use serde::{Deserialize, Serialize};

/// The head of a state, as it is stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Head {
    /// Nothing is written with a token below this.
    #[serde(default)]
    pub(super) token: Token,
    /// Whether there is a state: it is the first of the versions then.
    #[serde(default)]
    pub(super) present: bool,
    /// Newest first.
    #[serde(default)]
    pub(super) versions: Vec<Version>,
}

/// One version of a state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Version {
    /// Used once: its pieces are found by it.
    pub(super) id: String,
    /// As the client counts.
    pub(super) serial: u64,
    pub(super) lineage: String,
    pub(super) client: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
    pub(super) at: Timestamp,
    /// Whose token it came with.
    pub(super) by: String,
    /// The lock's token then.
    pub(super) token: Token,
    /// The documents' versions of its pieces, in order.
    pub(super) pieces: Vec<u64>,
}

/// A head as it was read.
pub(super) struct Found {
    pub(super) head: Head,
    /// Of its document; none if there is none yet.
    pub(super) version: Option<u64>,
}

impl Found {
    pub(super) async fn look(docs: &dyn DocStore, state: &str) -> Result<Self> {
        Self::read(docs.get(&key(state)).await?)
    }

    pub(super) fn read(doc: Option<Doc>) -> Result<Self> {
        let Some(doc) = doc else { return Ok(Self { head: Head::default(), version: None }) };
        let head = serde_json::from_str(&doc.body).map_err(|error| broken(error.to_string()))?;
        Ok(Self { head, version: Some(doc.version) })
    }
}

impl Head {
    /// The state as it is now.
    pub(super) fn current(&self) -> Option<&Version> {
        self.versions.first().filter(|_| self.present)
    }

    /// Takes out what is not worth keeping any more: beyond so many earlier versions, and what is older than `since`.
    pub(super) fn prune(&mut self, most: usize, since: Timestamp) -> Vec<Version> {
        let newest = usize::from(self.present);
        let young = self.versions.iter().skip(newest).take_while(|version| version.at >= since).count();
        self.versions.split_off(self.versions.len().min(newest + young.min(most)))
    }

    pub(super) fn draft(&self) -> Draft {
        let body = serde_json::to_string(self).expect("a head of plain values can be written");
        Draft { body, facts: Vec::new(), keep: None }
    }
}

/// Where the head of a state is.
pub(super) fn key(state: &str) -> String {
    format!("{BACK_ROOM}server/tf/{state}")
}

pub(super) fn broken(what: impl std::fmt::Display) -> Error {
    let message = format!("a Terraform state in the store cannot be read: {what}");
    Error::Store { trouble: Trouble::Broken, message, hint: String::new(), source: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(present: bool, ages: &[u64]) -> Head {
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
            pieces: Vec::new(),
        };
        Head { token: Token::default(), present, versions: ages.iter().map(version).collect() }
    }

    fn pruned(mut head: Head, most: usize, since: u64) -> (usize, usize) {
        let gone = head.prune(most, Timestamp::from_micros(since)).len();
        (head.versions.len(), gone)
    }

    #[test]
    fn history_is_bounded_by_count_and_age_and_the_state_itself_stays() {
        assert_eq!(pruned(head(true, &[9, 8, 7, 6]), 2, 0), (3, 1));
        assert_eq!(pruned(head(true, &[9, 8, 7, 6]), 9, 7), (3, 1));
        assert_eq!(pruned(head(true, &[9, 8]), 9, 100), (1, 1));
        assert_eq!(pruned(head(true, &[9]), 0, 100), (1, 0));
        assert_eq!(pruned(head(false, &[9, 8]), 1, 0), (1, 1));
        assert_eq!(pruned(head(false, &[]), 1, 0), (0, 0));
    }
}
