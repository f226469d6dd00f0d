//! Documents over a server: the server's own documents are not accessible.

use leasehold::Leasehold;
use leasehold::model::Ttl;
use leasehold::store::{NewDocument, PutIf, RESERVED_PREFIX};
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
