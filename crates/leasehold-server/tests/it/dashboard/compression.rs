//! Compression: which responses are compressed, and how large the first page is.

use std::io::Read;

use flate2::read::GzDecoder;
use leasehold::model::Payload;
use reqwest::header::HeaderMap;

use super::browser::{Browser, closed_server};
use crate::test_server::{TestServer, client};

/// Response as it is sent.
struct Sent {
    headers: HeaderMap,
    bytes: Vec<u8>,
}

impl Sent {
    async fn get(server: &TestServer, path: &str, accept: &str) -> Self {
        let request = client().get(format!("{}{path}", server.base)).header("accept-encoding", accept);
        let response = request.send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Self { headers: response.headers().clone(), bytes: response.bytes().await.unwrap().to_vec() }
    }

    fn is_compressed(&self) -> bool {
        let coding = self.headers.get("content-encoding");
        coding.is_some_and(|coding| coding == "gzip")
    }

    fn text(&self) -> String {
        let mut text = String::new();
        GzDecoder::new(self.bytes.as_slice()).read_to_string(&mut text).unwrap();
        text
    }
}

/// Returns the addresses of the assets of a page.
fn assets(page: &str) -> Vec<&str> {
    page.split('"').filter(|part| part.starts_with("/assets/")).collect()
}

#[tokio::test]
async fn pages_and_assets_are_compressed_if_the_browser_accepts_it() {
    let server = TestServer::open().await;
    let plain = Browser::new(&server).get("/").await;
    assert!(!plain.headers.contains_key("content-encoding"));
    for path in assets(&plain.text).into_iter().chain(["/", "/locks", "/locks/a", "/health"]) {
        let sent = Sent::get(&server, path, "gzip, deflate, br, zstd").await;
        assert!(sent.is_compressed(), "{path}");
        assert_eq!(sent.headers["vary"], "accept-encoding", "{path}");
        assert!(sent.headers.contains_key("content-security-policy"), "{path}");
        for accept in ["identity", "br", "gzip;q=0"] {
            let plain = Sent::get(&server, path, accept).await;
            assert!(!plain.is_compressed() && plain.headers["vary"] == "accept-encoding", "{path}: {accept}");
            let same_tag = plain.headers.get("etag").is_some_and(|tag| *tag == sent.headers["etag"]);
            assert!(!same_tag, "{path}");
            if path.starts_with("/assets/") {
                assert_eq!(sent.text().as_bytes(), plain.bytes, "{path}");
            } else {
                assert!(
                    sent.text().starts_with("<!DOCTYPE html>") && sent.bytes.len() < plain.bytes.len() / 2
                );
            }
        }
    }
    // A browser that has the compressed form of an asset need not load it again.
    let path = assets(&plain.text)[0];
    let tag = Sent::get(&server, path, "gzip").await.headers["etag"].clone();
    let again = client().get(format!("{}{path}", server.base)).header("accept-encoding", "gzip");
    assert_eq!(again.header("if-none-match", tag).send().await.unwrap().status().as_u16(), 304);
}

/// What another site could choose is never compressed together with what it must not know.
#[tokio::test]
async fn pages_with_a_query_streams_downloads_and_the_api_are_not_compressed() {
    let server = TestServer::open().await;
    let added = server.leasehold.enqueue_to("mail", Payload::of(&"x".repeat(5000)).unwrap()).await.unwrap();
    let payload = format!("/tasks/{}/payload.json", added.id);
    for path in ["/locks?q=a", "/tasks?queue=mail", "/api/v1/locks", "/api/v1/tasks", "/audit.csv", &payload]
    {
        assert!(!Sent::get(&server, path, "gzip").await.is_compressed(), "{path}");
    }
    let stream =
        client().get(format!("{}/live?view=%2Flocks", server.base)).header("accept-encoding", "gzip");
    let mut stream = stream.send().await.unwrap();
    assert!(!stream.headers().contains_key("content-encoding"));
    let first = stream.chunk().await.unwrap().unwrap();
    assert!(std::str::from_utf8(&first).unwrap().contains("event: changed"));
}

#[tokio::test]
async fn each_page_has_a_csrf_token_of_its_own_and_all_are_valid() {
    let (server, [.., admin]) = closed_server().await;
    let guard = server.leasehold.lock("a").acquire().await.unwrap();
    let browser = Browser::new(&server);
    browser.sign_in(&admin).await;
    let [first, second] = [browser.get("/locks/a/ask").await, browser.get("/locks/a/ask").await];
    let tokens = [first.field("csrf"), second.field("csrf")];
    assert_ne!(tokens[0], tokens[1]);
    for token in &tokens {
        assert_eq!(browser.post("/locks/a/ask", &[("csrf", token), ("reason", "r")]).await.status, 303);
    }
    assert_eq!(browser.post("/locks/a/ask", &[("csrf", "x"), ("reason", "r")]).await.status, 403);
    drop(guard);
}

/// The documentation names this figure.
#[tokio::test]
async fn the_first_page_with_all_its_resources_is_small() {
    let server = TestServer::open().await;
    let page = Sent::get(&server, "/", "gzip").await;
    let text = page.text();
    let mut size = page.bytes.len();
    for path in assets(&text) {
        size += Sent::get(&server, path, "gzip").await.bytes.len();
    }
    println!("the first page has {size} bytes");
    assert!((5_000..14_000).contains(&size), "{size} bytes");
}
