//! Conformance cases for every engine with documents, and the macro that generates a test for each.

#![expect(missing_docs, reason = "the names of the cases are sentences")]

use crate::model::Ttl;
use crate::store::{Document, DocumentStore, NewDocument, PutIf, Store};
use crate::testing::Fixture;

/// Generates one test per case. The argument is the path, from the crate's root, of an `async fn()
/// -> Fixture`.
#[macro_export]
macro_rules! doc_conformance {
    ($fresh:path) => {
        $crate::doc_conformance! { @tests $fresh;
            of_writers_that_expect_no_document_one_succeeds
            a_write_compares_the_version
            a_conflict_contains_the_current_document
            of_sixteen_writers_one_succeeds
            documents_are_listed_by_prefix_in_pages
            special_keys_and_bodies_are_returned_unchanged
            a_removed_document_does_not_reuse_its_version
        }
    };
    (@tests $fresh:path; $($case:ident)+) => {
        $(#[tokio::test]
        async fn $case() {
            $crate::testing::doc_cases::$case($fresh().await).await;
        })+
    };
}

fn docs(store: &dyn Store) -> &dyn DocumentStore {
    store.documents().expect("an engine that runs these cases has documents")
}

fn draft(body: &str) -> NewDocument {
    NewDocument { body: body.to_owned(), annotations: Vec::new(), keep: None }
}

async fn put(store: &dyn Store, key: &str, expected: Option<u64>, body: &str) -> PutIf {
    docs(store).put_if(key, expected, draft(body)).await.expect("written or not")
}

fn version(put: &PutIf) -> u64 {
    match put {
        PutIf::Written(version) => *version,
        PutIf::Conflict(doc) => panic!("a clash with {doc:?}"),
    }
}

pub async fn of_writers_that_expect_no_document_one_succeeds(f: Fixture) {
    assert_eq!(docs(&*f.one).get("a").await.expect("an answer"), None);
    let version = version(&put(&*f.one, "a", None, "one").await);
    assert!(version > 0);
    let there = Document { version, body: "one".to_owned() };
    assert_eq!(put(&*f.two, "a", None, "two").await, PutIf::Conflict(Some(there.clone())));
    assert_eq!(docs(&*f.two).get("a").await.expect("an answer"), Some(there));
}

pub async fn a_write_compares_the_version(f: Fixture) {
    let first = version(&put(&*f.one, "a", None, "one").await);
    let second = version(&put(&*f.two, "a", Some(first), "two").await);
    assert!(second > first);
    assert!(matches!(put(&*f.one, "a", Some(first), "three").await, PutIf::Conflict(Some(_))));
    assert_eq!(docs(&*f.one).get("a").await.expect("an answer").expect("a good value in a test").body, "two");
}

pub async fn a_conflict_contains_the_current_document(f: Fixture) {
    assert_eq!(put(&*f.one, "a", Some(7), "x").await, PutIf::Conflict(None));
    let version = version(&put(&*f.one, "a", None, "one").await);
    let there = Document { version, body: "one".to_owned() };
    assert_eq!(put(&*f.two, "a", Some(version + 1), "x").await, PutIf::Conflict(Some(there)));
}

pub async fn of_sixteen_writers_one_succeeds(f: Fixture) {
    let first = version(&put(&*f.one, "a", None, "").await);
    let writers = (0..16).map(|number| {
        let store = if number % 2 == 0 { f.one.clone() } else { f.two.clone() };
        tokio::spawn(async move { put(&*store, "a", Some(first), &number.to_string()).await })
    });
    let mut written = 0;
    for writer in writers.collect::<Vec<_>>() {
        written += u32::from(matches!(writer.await.expect("an answer"), PutIf::Written(_)));
    }
    assert_eq!(written, 1);
}

pub async fn documents_are_listed_by_prefix_in_pages(f: Fixture) {
    for key in ["b/2", "a/1", "b/1", "b/3", "b%", "c"] {
        put(&*f.one, key, None, key).await;
    }
    let first = docs(&*f.two).list("b/", None, 2).await.expect("an answer");
    let keys = |page: &crate::store::Page<(String, Document)>| {
        page.items.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    assert_eq!(keys(&first), ["b/1", "b/2"]);
    let second = docs(&*f.two).list("b/", first.next, 2).await.expect("an answer");
    assert_eq!(keys(&second), ["b/3"]);
    assert!(second.next.is_none());
    assert_eq!(docs(&*f.two).list("", None, 0).await.expect("an answer").items.len(), 6);
    let some = ["c".to_owned(), "none".to_owned(), "a/1".to_owned()];
    let found = docs(&*f.one).get_all(&some).await.expect("an answer");
    let bodies: Vec<_> = found.into_iter().map(|doc| doc.map(|doc| doc.body)).collect();
    assert_eq!(bodies, [Some("c".to_owned()), None, Some("a/1".to_owned())]);
}

pub async fn special_keys_and_bodies_are_returned_unchanged(f: Fixture) {
    let (key, body) = ("k'\"; DROP TABLE doc; -- 名", "{\"a\": \"'\\n\u{fffd}\"}\n".repeat(1000));
    let version = version(&put(&*f.one, key, None, &body).await);
    assert_eq!(docs(&*f.two).get(key).await.expect("an answer"), Some(Document { version, body }));
}

pub async fn a_removed_document_does_not_reuse_its_version(f: Fixture) {
    let keep = NewDocument { keep: Some(Ttl::from_secs(60)), ..draft("gone") };
    let PutIf::Written(first) = docs(&*f.one).put_if("a", None, keep).await.expect("an answer") else {
        panic!("a clash")
    };
    f.pass(59_000);
    assert!(docs(&*f.one).get("a").await.expect("an answer").is_some());
    f.pass(2_000);
    assert_eq!(docs(&*f.two).get("a").await.expect("an answer"), None);
    assert_eq!(docs(&*f.two).list("", None, 0).await.expect("an answer").items.len(), 0);
    let second = version(&put(&*f.two, "a", None, "new").await);
    assert!(second > first);
    assert_eq!(docs(&*f.one).get("a").await.expect("an answer").expect("a good value in a test").body, "new");
}
