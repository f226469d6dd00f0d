//! Outcome of a delivery, for the metrics; detection of repeated deliveries; and the log of rejected
//! deliveries, which an unauthenticated sender must not be able to fill.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::Ttl;
use leasehold::store::{DocumentStore, NewDocument, PutIf, RESERVED_PREFIX};
use leasehold::{BootInstant, Result, StartResult};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::signature::SignatureError;
use crate::problem::broken;
use crate::sync::LogLimit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    Started,
    Queued,
    Duplicate,
    Skipped,
    Filtered,
    Locked,
    Rejected,
    Failed,
}

impl Outcome {
    /// All outcomes, each with its value of the label `outcome`.
    pub(crate) const ALL: [(Self, &'static str); 8] = [
        (Self::Started, "started"),
        (Self::Queued, "queued"),
        (Self::Duplicate, "duplicate"),
        (Self::Skipped, "skipped"),
        (Self::Filtered, "filtered"),
        (Self::Locked, "locked"),
        (Self::Rejected, "refused"),
        (Self::Failed, "failed"),
    ];

    pub(crate) const fn of(start: &StartResult) -> Self {
        match start {
            StartResult::Started(_) => Self::Started,
            StartResult::Queued(_) => Self::Queued,
            StartResult::Duplicate(_) => Self::Duplicate,
            StartResult::Skipped { .. } => Self::Skipped,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RejectReason {
    MissingSignature,
    MalformedSignature,
    WrongSignature,
    TooOld,
    NoToken,
    NotJson,
    Invalid,
    KeyReused,
}

impl RejectReason {
    /// All reasons, each with its value of the label `reason`.
    pub(crate) const ALL: [(Self, &'static str); 8] = [
        (Self::MissingSignature, "missing_signature"),
        (Self::MalformedSignature, "malformed_signature"),
        (Self::WrongSignature, "wrong_signature"),
        (Self::TooOld, "too_old"),
        (Self::NoToken, "no_token"),
        (Self::NotJson, "not_json"),
        (Self::Invalid, "invalid"),
        (Self::KeyReused, "key_reused"),
    ];
}

impl From<SignatureError> for RejectReason {
    fn from(error: SignatureError) -> Self {
        match error {
            SignatureError::Missing(_) => Self::MissingSignature,
            SignatureError::Malformed(_) => Self::MalformedSignature,
            SignatureError::Untimely => Self::TooOld,
            SignatureError::Wrong => Self::WrongSignature,
        }
    }
}

/// Log of rejected deliveries: at most one line per second, independent of the number of deliveries.
#[derive(Debug, Default)]
pub(crate) struct RejectLog(LogLimit);

impl RejectLog {
    /// Logs a rejected delivery for this trigger; `None` is a trigger that does not exist.
    pub(crate) fn write(&self, trigger: Option<&str>, reason: &str) {
        if let Some(suppressed) = self.0.admit(BootInstant::now()) {
            // The id of an unknown trigger is untrusted input, so it is not logged.
            let trigger = trigger.unwrap_or("unknown");
            tracing::warn!(trigger, reason, suppressed, "webhook refused");
        }
    }
}

/// Time for which the id of a delivery is remembered.
const RETENTION: Ttl = Ttl::from_secs(30 * 24 * 3600);

#[derive(Serialize, Deserialize)]
struct Record {
    key: String,
}

/// Stores a delivery with its key and returns the effective key: this key, or the key of the first
/// arrival.
pub(crate) async fn key_of_delivery(
    docs: &dyn DocumentStore,
    trigger: &str,
    delivery: &str,
    key: &str,
) -> Result<String> {
    first_key(docs, &document_key("delivery", trigger, delivery.as_bytes()), key, RETENTION).await
}

/// Like [`key_of_delivery`], by the signed body, which is remembered for `retention`.
pub(crate) async fn key_of_body(
    docs: &dyn DocumentStore,
    trigger: &str,
    body: &[u8],
    key: &str,
    retention: Ttl,
) -> Result<String> {
    first_key(docs, &document_key("signed", trigger, body), key, retention).await
}

async fn first_key(docs: &dyn DocumentStore, path: &str, key: &str, retention: Ttl) -> Result<String> {
    let record = Record { key: key.to_owned() };
    let body = serde_json::to_string(&record).expect("a delivery record is serializable");
    match docs.put_if(path, None, NewDocument::new(body).keep(retention)).await? {
        PutIf::Conflict(Some(doc)) => {
            let first = serde_json::from_str::<Record>(&doc.body);
            first.map(|first| first.key).map_err(|_| broken("invalid record of a remembered delivery"))
        }
        // The delivery is new, or its record expired during the call.
        PutIf::Written(_) | PutIf::Conflict(None) => Ok(record.key),
    }
}

/// Returns the document key. Uses a hash because ids have any length and any characters, and bodies
/// are large.
fn document_key(kind: &str, trigger: &str, content: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [trigger.as_bytes(), content] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{RESERVED_PREFIX}server/{kind}/{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use leasehold::Leasehold;

    use super::*;

    #[test]
    fn labels_are_unique() {
        let mut labels = Outcome::ALL.map(|(_, label)| label).to_vec();
        labels.extend(RejectReason::ALL.map(|(_, label)| label));
        let count = labels.len();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), count);
    }

    #[tokio::test]
    async fn a_delivery_keeps_the_key_that_it_came_with_first() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let store = leasehold.store();
        let docs = store.documents().unwrap();
        for (trigger, delivery, key, known) in [
            ("orders", "evt_1", "a", "a"),
            ("orders", "evt_1", "b", "a"),
            ("orders", "evt_2", "b", "b"),
            ("others", "evt_1", "c", "c"),
        ] {
            assert_eq!(key_of_delivery(docs, trigger, delivery, key).await.unwrap(), known);
        }
    }

    #[tokio::test]
    async fn a_delivery_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        for (key, known) in [("a", "a"), ("b", "a")] {
            let leasehold = Leasehold::connect(&url).await.unwrap();
            let store = leasehold.store();
            let docs = store.documents().unwrap();
            assert_eq!(key_of_delivery(docs, "orders", "evt_1", key).await.unwrap(), known);
            leasehold.close().await;
        }
    }

    #[tokio::test]
    async fn a_signed_body_keeps_the_key_that_it_came_with_first() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let store = leasehold.store();
        let docs = store.documents().unwrap();
        let key = async |trigger, body: &str, key| {
            key_of_body(docs, trigger, body.as_bytes(), key, Ttl::from_secs(60)).await.unwrap()
        };
        assert_eq!(key("push", "{}", "a").await, "a");
        assert_eq!(key("push", "{}", "b").await, "a");
        assert_eq!(key("push", "{ }", "b").await, "b");
        assert_eq!(key("other", "{}", "c").await, "c");
        // A body is not an id, even if it has the same bytes.
        assert_eq!(key_of_delivery(docs, "push", "{}", "d").await.unwrap(), "d");
    }

    #[test]
    fn each_delivery_has_its_own_document_key() {
        assert_ne!(document_key("x", "a", b"bc"), document_key("x", "ab", b"c"));
        assert_ne!(document_key("x", "a", b"b"), document_key("y", "a", b"b"));
        assert!(document_key("x", "y", "é\n".repeat(10_000).as_bytes()).len() < 100);
    }
}
