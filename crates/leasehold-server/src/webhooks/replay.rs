//! Deliveries that have been here, in the store: so they are known after a restart, and to all servers over it.
//!
//! A delivery is remembered with the key it came with first. Whoever sends it again under another key, which senders do not
//! sign, means the same event all the same. That is all: a sender may deliver again what was not taken, and the key
//! tells what became of it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use leasehold::model::Ttl;
use leasehold::store::{BACK_ROOM, DocStore, Draft, PutIf};
use leasehold::{Error, Result, Trouble};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// So long a delivery is remembered.
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

    /// Remembers a delivery with its key, and gives the key that it has: its own, or the one that it came with first.
    pub(crate) async fn key(&self, trigger: &str, delivery: &str, key: &str) -> Result<String> {
        let place = place(trigger, delivery);
        let record = Record { key: key.to_owned() };
        let body = serde_json::to_string(&record).expect("a record of one text can be written");
        let draft = Draft { body, facts: Vec::new(), keep: Some(KEEP) };
        match self.docs.put_if(&place, None, draft).await? {
            PutIf::Clash(Some(doc)) => {
                serde_json::from_str::<Record>(&doc.body).map(|first| first.key).map_err(|_| broken())
            }
            // New, or forgotten while we looked.
            PutIf::Written(_) | PutIf::Clash(None) => Ok(record.key),
        }
    }
}

/// Ids are of any length and of any characters; a hash is not.
fn place(trigger: &str, delivery: &str) -> String {
    let mut hash = Sha256::new();
    for text in [trigger, delivery] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    format!("{BACK_ROOM}server/delivery/{}", URL_SAFE_NO_PAD.encode(hash.finalize()))
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

    #[test]
    fn no_two_deliveries_have_one_place() {
        assert_ne!(place("a", "bc"), place("ab", "c"));
        assert!(place("x", &"é\n".repeat(10_000)).len() < 100);
    }
}
