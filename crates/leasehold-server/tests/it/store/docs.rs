//! Documents over a server: the server's own documents are not accessible.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::model::Ttl;
use leasehold::store::memory::MemoryStore;
use leasehold::store::{
    Capabilities, Cursor, Document, DocumentStore, LockStore, NewDocument, Page, PutIf, RESERVED_PREFIX,
    Store, Time,
};
use leasehold::{Leasehold, Result};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};

use super::support::{Served, open};

fn draft(body: &str) -> NewDocument {
    NewDocument::new(body).keep(Ttl::from_secs(60))
}

#[tokio::test]
async fn the_servers_own_documents_are_not_accessible() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("root", Role::Admin, None).await.unwrap();
    let tokens = Access::Tokens(Vec::new());
    let served = Served::with(leasehold, tokens, "127.0.0.1:0".parse().unwrap());
    let store = open(&format!("http://{}@{}", token.text, served.address)).await;
    let docs = store.documents().unwrap();
    let ours = format!("{RESERVED_PREFIX}server/token/{}", token.id);
    for refused in [
        docs.get(&ours).await.err(),
        docs.get_all(&["a".to_owned(), ours.clone()]).await.err(),
        docs.put_if(&ours, None, draft("x")).await.err(),
        docs.list(&format!("{RESERVED_PREFIX}server/"), None, 10).await.err(),
    ] {
        assert_eq!(refused.unwrap().code(), "STORE_NOT_PERMITTED");
    }
    // Other keys around them are allowed, and listings omit the server's own documents.
    for key in ["plain", "\u{1}before", "\u{1}zz"] {
        assert!(matches!(docs.put_if(key, None, draft(key)).await.unwrap(), PutIf::Written(_)));
    }
    for limit in [1, 2, 10] {
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let page = docs.list(&RESERVED_PREFIX.to_string(), after, limit).await.unwrap();
            keys.extend(page.items.into_iter().map(|(key, _)| key));
            after = page.next;
            match &after {
                Some(cursor) => assert!(!cursor.0.contains(&token.id)),
                None => break,
            }
        }
        assert_eq!(keys, ["\u{1}before", "\u{1}zz"], "by {limit}");
    }
}

/// A document with a REST endpoint requires the role of that endpoint.
#[tokio::test]
async fn a_worker_does_not_write_schedules_or_retention_as_documents() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let tokens = Access::Tokens(Vec::new());
    let served = Served::with(leasehold.clone(), tokens, "127.0.0.1:0".parse().unwrap());
    for (role, schedules, retention) in
        [(Role::Worker, false, false), (Role::Operator, true, false), (Role::Admin, true, true)]
    {
        let token = token_store.create("ada", role, None).await.unwrap();
        let store = open(&format!("http://{}@{}", token.text, served.address)).await;
        let docs = store.documents().unwrap();
        let may = async |key: String| docs.put_if(&key, None, draft("{}")).await.is_ok();
        assert_eq!(may(format!("schedule/{role}")).await, schedules, "{role}");
        assert_eq!(may(format!("retention/{role}")).await, retention, "{role}");
        assert!(may(format!("mine/{role}")).await, "{role}");
    }
}

/// Store in memory whose documents, by its own account, may be read in an older state.
struct OldReads(MemoryStore);

impl OldReads {
    fn documents(&self) -> &dyn DocumentStore {
        self.0.documents().unwrap()
    }
}

#[async_trait]
impl Store for OldReads {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn url(&self) -> String {
        self.0.url()
    }
    fn locks(&self) -> &dyn LockStore {
        self.0.locks()
    }
    fn documents(&self) -> Option<&dyn DocumentStore> {
        Some(self)
    }
}

#[async_trait]
impl DocumentStore for OldReads {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn url(&self) -> String {
        self.0.url()
    }
    async fn get(&self, key: &str) -> Result<Option<Document>> {
        self.documents().get(key).await
    }
    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        self.documents().put_if(key, expected, draft).await
    }
    async fn list(&self, start: &str, after: Option<Cursor>, limit: u32) -> Result<Page<(String, Document)>> {
        self.documents().list(start, after, limit).await
    }
    async fn time(&self) -> Result<Time> {
        self.documents().time().await
    }
    fn reads_may_be_old(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_client_knows_whether_its_reads_may_be_old() {
    for (store, expected) in [
        (Arc::new(MemoryStore::new()) as Arc<dyn Store>, false),
        (Arc::new(OldReads(MemoryStore::new())), true),
    ] {
        let served = Served::over(store);
        let client = open(&served.url()).await;
        assert_eq!(client.documents().unwrap().reads_may_be_old(), expected);
    }
}
