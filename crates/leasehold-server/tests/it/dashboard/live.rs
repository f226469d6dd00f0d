//! Live updates: the stream of a page, and that many tabs cause few reads.

use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Limits, Role, Server};
use tower::ServiceExt;

use super::browser::{Browser, closed_server};
use crate::test_server::TestServer;

/// Open stream of a page.
struct Stream {
    response: reqwest::Response,
    text: String,
}

impl Stream {
    async fn open(server: &TestServer, view: &str, cookie: &str) -> Self {
        let query = form_urlencoded::byte_serialize(view.as_bytes()).collect::<String>();
        let request = crate::test_server::client().get(format!("{}/live?view={query}", server.base));
        let response = request.header("cookie", cookie).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new() }
    }

    /// Waits until the stream has sent this text, and forgets everything up to it.
    async fn wait_for(&mut self, wanted: &str) {
        let waiting = async {
            while !self.text.contains(wanted) {
                let chunk =
                    self.response.chunk().await.unwrap().unwrap_or_else(|| panic!("ended: {}", self.text));
                self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .unwrap_or_else(|_| panic!("no {wanted}"));
        let end = self.text.find(wanted).unwrap() + wanted.len();
        self.text.drain(..end);
    }

    async fn ends(&mut self) -> bool {
        let ended = async { while self.response.chunk().await.is_ok_and(|chunk| chunk.is_some()) {} };
        tokio::time::timeout(Duration::from_secs(20), ended).await.is_ok()
    }
}

#[tokio::test]
async fn a_stream_tells_that_its_page_has_changed() {
    for server in TestServer::each().await {
        let mut locks = Stream::open(&server, "/locks", "").await;
        let mut lock = Stream::open(&server, "/locks/a%2Fb", "").await;
        locks.wait_for("event: changed").await;
        lock.wait_for("event: changed").await;
        let guard = server.leasehold.lock("a/b").acquire().await.unwrap();
        locks.wait_for("event: changed").await;
        lock.wait_for("event: changed").await;
        guard.release().await.unwrap();
        locks.wait_for("event: changed").await;
        lock.wait_for("event: changed").await;
        let mut queues = Stream::open(&server, "/queues", "").await;
        queues.wait_for("event: changed").await;
        let payload = leasehold::model::Payload::of("x").unwrap();
        server.leasehold.enqueue_to("mail", payload).await.unwrap();
        queues.wait_for("event: changed").await;
        // The streams end when the server stops, so that the pages say so and reconnect.
        server.server.drain();
        assert!(locks.ends().await && lock.ends().await && queues.ends().await);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_token_of_its_viewer() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let store = TokenStore::new(leasehold);
    let token = store.create("ada", Role::Reader, None).await.unwrap();
    let browser = Browser::new(&server);
    browser.sign_in(&token.text).await;
    let mut stream = Stream::open(&server, "/locks", &browser.cookie()).await;
    stream.wait_for("event: changed").await;
    store.revoke(&token.id).await.unwrap();
    stream.wait_for("event: signed-out").await;
    assert!(stream.ends().await);
}

#[tokio::test]
async fn a_stream_and_a_download_count_as_requests_until_they_end() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("ada", Role::Reader, None).await.unwrap();
    let mut limits = Limits::default();
    limits.requests_per_token = 1;
    let server = TestServer::with(leasehold, Access::Tokens(Vec::new()), limits).await;
    let browser = Browser::new(&server);
    browser.sign_in(&token.text).await;
    let stream = Stream::open(&server, "/locks", &browser.cookie()).await;
    assert_eq!(browser.get("/locks").await.status, 429);
    drop(stream);
    let admitted = async {
        while browser.get("/locks").await.status == 429 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), admitted).await.expect("the stream has ended");
    // The connection has not taken the first byte of the download.
    let export = Request::get("/audit.csv").header("host", "localhost").header("cookie", browser.cookie());
    let export = server.server.router().oneshot(export.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(export.status(), 200);
    assert_eq!(browser.get("/locks").await.status, 429);
    drop(export);
    assert_eq!(browser.get("/locks").await.status, 200);
}

#[tokio::test]
async fn the_pages_of_one_token_leave_room_for_those_of_others() {
    let (server, [reader, worker, ..]) = closed_server().await;
    let (ada, bob) = (Browser::new(&server), Browser::new(&server));
    ada.sign_in(&reader).await;
    bob.sign_in(&worker).await;
    let mut streams = Vec::new();
    for number in 0..50 {
        streams.push(Stream::open(&server, &format!("/locks?q=name%3A{number}"), &ada.cookie()).await);
    }
    let refused = ada.get("/live?view=%2Flocks%3Fq%3Dname%253A50").await;
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert!(refused.has("has 50 different pages open, which is its maximum"), "{}", refused.text);
    Stream::open(&server, "/locks?q=name%3A50", &bob.cookie()).await.wait_for("event: changed").await;
    // The same page in another tab is no further page.
    Stream::open(&server, "/locks?q=name%3A0", &ada.cookie()).await.wait_for("event: changed").await;
}

#[tokio::test]
async fn a_stream_needs_the_rights_of_its_page() {
    let (server, [reader, ..]) = closed_server().await;
    let browser = Browser::new(&server);
    assert_eq!(browser.get("/live?view=%2Flocks").await.status, 401);
    browser.sign_in(&reader).await;
    assert_eq!(browser.get("/live?view=%2Fnowhere").await.status, 404);
    assert_eq!(browser.get("/live").await.status, 400);
    let open = TestServer::open().await;
    let browser = Browser::new(&open);
    assert_eq!(browser.get_with("/live?view=%2Flocks", "origin", "https://evil.example").await.status, 403);
}

/// Fifty tabs load the page and listen; the store is read about as often as for one tab.
#[tokio::test]
async fn many_tabs_cause_few_reads() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let (counted, counters) = leasehold.instrumented();
    let server = Server::builder(counted.clone()).access(Access::Open).without_maintenance().build();
    let server = TestServer::serve(server, counted).await;
    let mut streams = Vec::new();
    for _ in 0..50 {
        let mut stream = Stream::open(&server, "/locks", "").await;
        stream.wait_for("event: changed").await;
        streams.push(stream);
    }
    let reads = || async {
        let operations = counters.read().await.operations;
        let listed = operations.into_iter().filter(|operation| operation.op.contains("list"));
        listed.map(|operation| operation.took.counts.iter().sum::<u64>()).sum::<u64>()
    };
    let (before, began) = (reads().await, std::time::Instant::now());
    for _ in 0..3 {
        let pages = (0..50).map(|_| server.get("/locks"));
        assert!(futures_util::future::join_all(pages).await.iter().all(|page| page.status == 200));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let (during, most) = (reads().await - before, 2 * began.elapsed().as_secs() + 4);
    assert!((1..=most).contains(&during), "{during} reads of the list for 150 pages and 50 streams");
    drop(streams);
    // Without tabs the store is not read: the poller ends.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    let before = reads().await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(reads().await, before);
}

/// The server stays, its store goes away and comes back.
#[tokio::test]
async fn the_page_says_that_the_store_is_away() {
    let memory = Leasehold::connect("memory:").await.unwrap();
    let store = TestServer::over(memory, Access::Open).await;
    let address = store.base.clone();
    let server = TestServer::over(Leasehold::connect(&address).await.unwrap(), Access::Open).await;
    let browser = Browser::new(&server);
    assert_eq!(browser.get("/locks").await.status, 200);
    let mut stream = Stream::open(&server, "/locks", "").await;
    stream.wait_for("event: changed").await;
    store.stop().await;
    stream.wait_for("event: store\ndata: unavailable").await;
    let page = browser.get("/locks").await;
    assert_eq!(page.status, 503, "{}", page.text);
    assert!(page.has("Store unavailable") && page.has("Try again"), "{}", page.text);
    assert!(!page.has(&address), "{}", page.text);
}
