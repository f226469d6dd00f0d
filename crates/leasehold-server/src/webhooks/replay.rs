//! Deliveries that have been here, in the store: so they are known after a restart, and to all servers over it.
//!
//! A delivery is remembered by its id with the key it came with first: sent again under another key, it is the same event.
//! Where the sender signs no id, the signed body is remembered in the same way for a shorter time: a copy of it under another
//! id is the same event too. That is all: a sender may deliver again what was not taken, and the key tells what became of it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::Ttl;
use leasehold::store::{BACK_ROOM, DocStore, Draft, PutIf};
use leasehold::{Error, Result, Trouble};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Time that the id of a delivery is remembered.
const KEEP: Ttl = Ttl::from_secs(30 * 24 * 3600);

/// The deliveries of a store.
pub(crate) struct Deliveries<'a> {
    docs: &'a dyn DocStore,
}

/// What is kept of a delivery.
#[derive(Serialize, Deserialize)]
struct Record {
    key: String,
}

impl<'a> Deliveries<'a> {
    pub(crate) fn of(docs: &'a dyn DocStore) -> Self {
        Self { docs }
    }

    /// Remembers a delivery with its key, and returns the key that it has: its own, or the one that it came with first.
    pub(crate) async fn key(&self, trigger: &str, delivery: &str, key: &str) -> Result<String> {
        self.first_key(&place("delivery", trigger, delivery.as_bytes()), key, KEEP).await
    }

    /// The same by the signed body, for so long.
    pub(crate) async fn key_of_body(
        &self,
        trigger: &str,
        body: &[u8],
        key: &str,
        keep: Ttl,
    ) -> Result<String> {
        self.first_key(&place("signed", trigger, body), key, keep).await
    }

    async fn first_key(&self, place: &str, key: &str, keep: Ttl) -> Result<String> {
        let record = Record { key: key.to_owned() };
        let body = serde_json::to_string(&record).expect("a record of one text can be written");
        let draft = Draft { body, facts: Vec::new(), keep: Some(keep) };
        match self.docs.put_if(place, None, draft).await? {
            PutIf::Clash(Some(doc)) => {
                serde_json::from_str::<Record>(&doc.body).map(|first| first.key).map_err(|_| broken())
            }
            // New, or forgotten while we looked.
            PutIf::Written(_) | PutIf::Clash(None) => Ok(record.key),
        }
    }
}

/// Ids are of any length and of any characters, and bodies are large; a hash is neither.
fn place(kind: &str, trigger: &str, content: &[u8]) -> String {
    let mut hash = Sha256::new();
    for part in [trigger.as_bytes(), content] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    format!("{BACK_ROOM}server/{kind}/{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
}

fn broken() -> Error {
    let message = "a delivery that was remembered cannot be read".to_owned();
    Error::Store { trouble: Trouble::Broken, message, hint: String::new(), source: None }
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
        // A body is no id, even if it reads like one.
        assert_eq!(deliveries.key("push", "{}", "d").await.unwrap(), "d");
    }

    #[test]
    fn no_two_deliveries_have_one_place() {
        assert_ne!(place("x", "a", b"bc"), place("x", "ab", b"c"));
        assert_ne!(place("x", "a", b"b"), place("y", "a", b"b"));
        assert!(place("x", "y", "é\n".repeat(10_000).as_bytes()).len() < 100);
    }
}
