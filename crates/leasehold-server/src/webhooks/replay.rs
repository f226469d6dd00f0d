//! Deliveries seen before, kept in the store, so that they are known after a restart and to all
//! servers over the store.
//!
//! A delivery is stored by its id, with the key of its first arrival: delivered again under another
//! key, it is the same event. If the sender does not sign an id, the signed body is stored in the same
//! way for a shorter time: a copy of the body under another id is the same event too. Nothing else is
//! stored: a sender may redeliver an event that was not accepted, and the key identifies its result.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::Ttl;
use leasehold::store::{DocStore, NewDocument, PutIf, RESERVED_PREFIX};
use leasehold::{Error, Result, StoreErrorKind};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Time for which the id of a delivery is remembered.
const RETENTION: Ttl = Ttl::from_secs(30 * 24 * 3600);

/// Remembered deliveries of a store.
pub(crate) struct Deliveries<'a> {
    docs: &'a dyn DocStore,
}

/// Stored record of a delivery.
#[derive(Serialize, Deserialize)]
struct Record {
    key: String,
}

impl<'a> Deliveries<'a> {
    pub(crate) fn of(docs: &'a dyn DocStore) -> Self {
        Self { docs }
    }

    /// Stores a delivery with its key and returns the effective key: this key, or the key of the
    /// first arrival.
    pub(crate) async fn key(&self, trigger: &str, delivery: &str, key: &str) -> Result<String> {
        self.first_key(&document_key("delivery", trigger, delivery.as_bytes()), key, RETENTION).await
    }

    /// Like [`Deliveries::key`], by the signed body, which is remembered for `retention`.
    pub(crate) async fn key_of_body(
        &self,
        trigger: &str,
        body: &[u8],
        key: &str,
        retention: Ttl,
    ) -> Result<String> {
        self.first_key(&document_key("signed", trigger, body), key, retention).await
    }

    async fn first_key(&self, path: &str, key: &str, retention: Ttl) -> Result<String> {
        let record = Record { key: key.to_owned() };
        let body = serde_json::to_string(&record).expect("a delivery record is serializable");
        let document = NewDocument { body, facts: Vec::new(), keep: Some(retention) };
        match self.docs.put_if(path, None, document).await? {
            PutIf::Conflict(Some(doc)) => {
                serde_json::from_str::<Record>(&doc.body).map(|first| first.key).map_err(|_| broken())
            }
            // The delivery is new, or its record expired during the call.
            PutIf::Written(_) | PutIf::Conflict(None) => Ok(record.key),
        }
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

fn broken() -> Error {
    let message = "invalid record of a remembered delivery".to_owned();
    Error::Store { kind: StoreErrorKind::Broken, message, hint: String::new(), source: None }
}

#[cfg(test)]
mod tests {
    use leasehold::Leasehold;

    use super::*;

    #[tokio::test]
    async fn a_delivery_keeps_the_key_that_it_came_with_first() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let store = leasehold.store();
        let deliveries = Deliveries::of(store.docs().unwrap());
        assert_eq!(deliveries.key("orders", "evt_1", "a").await.unwrap(), "a");
        assert_eq!(deliveries.key("orders", "evt_1", "b").await.unwrap(), "a");
        assert_eq!(deliveries.key("orders", "evt_2", "b").await.unwrap(), "b");
        assert_eq!(deliveries.key("others", "evt_1", "c").await.unwrap(), "c");
    }

    #[tokio::test]
    async fn a_delivery_is_known_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("store.db").display());
        for (key, known) in [("a", "a"), ("b", "a")] {
            let leasehold = Leasehold::connect(&url).await.unwrap();
            let store = leasehold.store();
            let deliveries = Deliveries::of(store.docs().unwrap());
            assert_eq!(deliveries.key("orders", "evt_1", key).await.unwrap(), known);
            leasehold.close().await;
        }
    }

    #[tokio::test]
    async fn a_signed_body_keeps_the_key_that_it_came_with_first() {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let store = leasehold.store();
        let deliveries = Deliveries::of(store.docs().unwrap());
        let key = async |trigger, body: &str, key| {
            deliveries.key_of_body(trigger, body.as_bytes(), key, Ttl::from_secs(60)).await.unwrap()
        };
        assert_eq!(key("push", "{}", "a").await, "a");
        assert_eq!(key("push", "{}", "b").await, "a");
        assert_eq!(key("push", "{ }", "b").await, "b");
        assert_eq!(key("other", "{}", "c").await, "c");
        // A body is not an id, even if it has the same bytes.
        assert_eq!(deliveries.key("push", "{}", "d").await.unwrap(), "d");
    }

    #[test]
    fn each_delivery_has_its_own_document_key() {
        assert_ne!(document_key("x", "a", b"bc"), document_key("x", "ab", b"c"));
        assert_ne!(document_key("x", "a", b"b"), document_key("y", "a", b"b"));
        assert!(document_key("x", "y", "é\n".repeat(10_000).as_bytes()).len() < 100);
    }
}
