//! Event stream of locks.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Limits, Role};
use reqwest::Method;
use serde_json::{Value, json};

use crate::raw_connection::RawConnection;
use crate::test_server::TestServer;

async fn once(server: &TestServer, name: &str) {
    let taken = server.post(&format!("/api/v1/locks/{name}/acquire"), &json!({})).await;
    let lock = &taken.body["lock"];
    let mine = json!({ "leaseId": lock["leaseId"], "token": lock["token"] });
    assert_eq!(server.post(&format!("/api/v1/locks/{name}/release"), &mine).await.status, 200);
}

/// Parses the events of a stream: id and data.
fn events(text: &str) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut id = String::new();
    for line in text.lines() {
        if let Some(new) = line.strip_prefix("id: ") {
            new.clone_into(&mut id);
        }
        if let Some(data) = line.strip_prefix("data: ") {
            found.push((id.clone(), serde_json::from_str(data).unwrap()));
        }
    }
    found
}

fn names(text: &str) -> Vec<(String, String)> {
    let part = |event: &Value, key: &str| event[key].as_str().unwrap().to_owned();
    events(text).iter().map(|(_, event)| (part(event, "lock"), part(event, "kind"))).collect()
}

#[tokio::test]
async fn a_stream_without_an_id_starts_with_new_events() {
    for server in TestServer::each().await {
        once(&server, "before").await;
        let mut connection = RawConnection::send(&server, "GET", "/api/v1/events", None).await;
        let begin = connection.read_until("retry: 1000").await;
        assert!(begin.contains("text/event-stream") && begin.contains("x-accel-buffering: no"), "{begin}");
        once(&server, "ü%2F1").await;
        let text = connection.read_event("released").await;
        let heard = names(&text);
        let expected = ["acquired", "released"].map(|kind| ("ü/1".to_owned(), kind.to_owned()));
        assert_eq!(heard, expected);
        server.stop().await;
        // The stream ended properly when the server stopped.
        assert!(connection.read_to_end().await.ends_with("0\r\n\r\n"));
    }
}

#[tokio::test]
async fn a_stream_contains_only_matching_events() {
    let server = TestServer::open().await;
    let mut one = RawConnection::send(&server, "GET", "/api/v1/events?lock=b%2F2", None).await;
    let mut some = RawConnection::send(&server, "GET", "/api/v1/events?prefix=b%2F", None).await;
    for connection in [&mut one, &mut some] {
        connection.read_until("retry: ").await;
    }
    for name in ["a", "b%2F1", "b%2F2"] {
        once(&server, name).await;
    }
    let (one, some) = (
        names(&one.read_event("released").await),
        names(&some.read_event("b/2\",\"kind\":\"released").await),
    );
    assert!(one.iter().all(|(lock, _)| lock == "b/2"), "{one:?}");
    assert_eq!(some.iter().map(|(lock, _)| lock.as_str()).collect::<Vec<_>>(), ["b/1", "b/1", "b/2", "b/2"]);
    assert_eq!(server.get("/api/v1/events?lock=%20").await.code(), "INVALID");
    assert_eq!(server.get("/api/v1/events?lastEventId=a%0Ab").await.code(), "INVALID");
    assert_eq!(server.get("/api/v1/events?what=1").await.code(), "INVALID");
}

#[tokio::test]
async fn a_resumed_stream_misses_and_repeats_no_event() {
    for server in TestServer::each().await {
        let mut connection = RawConnection::send(&server, "GET", "/api/v1/events", None).await;
        connection.read_until("retry: ").await;
        for n in 0..10 {
            once(&server, &format!("lock-{n}")).await;
        }
        let all = events(&connection.read_event("lock-9\",\"kind\":\"released").await);
        assert_eq!(all.len(), 20);
        // Resumes from every position while other streams are open and new events occur.
        for (place, (id, _)) in all.iter().enumerate() {
            let path = format!("/api/v1/events?lastEventId={}", id.replace('/', "%2F"));
            let mut back = RawConnection::send(&server, "GET", &path, None).await;
            let last = format!("after-{place}");
            once(&server, &last).await;
            let heard = events(&back.read_event(&format!("{last}\",\"kind\":\"released")).await);
            let expected: Vec<_> = all[place + 1..].iter().map(|(_, event)| event).collect();
            let again: Vec<_> = heard.iter().map(|(_, event)| event).take(expected.len()).collect();
            assert_eq!(again, expected, "from {id}");
            let rest: Vec<_> = heard[expected.len()..].iter().map(|(_, event)| event.to_string()).collect();
            let mut once_each = rest.clone();
            once_each.dedup();
            assert_eq!(rest.len(), 2 * (place + 1), "from {id}: {rest:?}");
            assert_eq!(once_each, rest);
            back.disconnect();
        }
    }
}

#[tokio::test]
async fn the_last_event_id_may_be_a_header() {
    let server = TestServer::open().await;
    once(&server, "a").await;
    once(&server, "b").await;
    let request = server.request(Method::GET, "/api/v1/events").header("last-event-id", "2~0");
    let mut response = request.send().await.unwrap();
    let mut text = String::new();
    while !text.contains("released") {
        text += std::str::from_utf8(&response.chunk().await.unwrap().unwrap()).unwrap();
    }
    assert_eq!(names(&text)[0].0, "b");
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_revoked() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let server = TestServer::over(leasehold, Access::Tokens(Vec::new())).await;
    let token = token_store.create("ada", Role::Reader, None).await.unwrap();
    let mut streams = Vec::new();
    for path in ["/api/v1/events", "/api/v1/events?lastEventId=0~0", "/api/v1/events?tasks=true"] {
        let stream = server.request(Method::GET, path).bearer_auth(&token.text).send().await.unwrap();
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    token_store.revoke(&token.id).await.unwrap();
    for mut stream in streams {
        let ends = async { while stream.chunk().await.unwrap().is_some() {} };
        tokio::time::timeout(Duration::from_mins(1), ends).await.expect("the stream ends");
    }
}

#[tokio::test]
async fn a_stream_counts_as_a_request_until_it_ends() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("ada", Role::Reader, None).await.unwrap();
    let mut limits = Limits::default();
    limits.requests_per_token = 2;
    let mut server = TestServer::with(leasehold, Access::Tokens(Vec::new()), limits).await;
    server.use_token(&token.text);
    let mut streams = Vec::new();
    for path in ["/api/v1/events", "/api/v1/events?tasks=true"] {
        let stream = server.request(Method::GET, path).send().await.unwrap();
        assert_eq!(stream.status(), 200);
        streams.push(stream);
    }
    let refused = server.get("/api/v1/locks").await;
    assert_eq!((refused.status, refused.code()), (429, "RATE_LIMITED"));
    drop(streams);
    let admitted = async {
        while server.get("/api/v1/locks").await.status != 200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), admitted).await.expect("the streams have ended");
}
