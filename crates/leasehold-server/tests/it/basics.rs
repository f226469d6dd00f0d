//! Properties of all requests.

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Limits, Role};
use reqwest::Method;
use serde_json::json;

use crate::raw_connection::RawConnection;
use crate::test_server::{Reply, TestServer};

const RELEASE: &str = "/api/v1/locks/a%2Fb/release";

fn lease() -> serde_json::Value {
    json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8057", "token": 1 })
}

#[tokio::test]
async fn a_server_is_alive_and_ready() {
    let server = TestServer::open().await;
    for path in ["/healthz", "/readyz"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, &reply.body), (200, &json!({ "status": "ok" })), "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_problem_contains_its_code_and_the_request() {
    let server = TestServer::open().await;
    let request = server.request(Method::POST, RELEASE).header("x-request-id", "mine-1").json(&lease());
    let reply = Reply::of(request).await;
    assert_eq!((reply.status, reply.code()), (404, "LOCK_NOT_HELD"));
    assert_eq!(reply.headers["x-request-id"], "mine-1");
    assert_eq!(reply.body["requestId"], "mine-1");
    assert_eq!(reply.body["instance"], RELEASE);
    assert_eq!(reply.body["detail"], "lock 'a/b' is not held by that lease; no holder has it");
    let reply = server.get("/nowhere").await;
    assert_eq!((reply.status, reply.code()), (404, "UNKNOWN_PATH"));
    assert!(!reply.headers["x-request-id"].is_empty());
    assert_eq!(server.get(RELEASE).await.code(), "METHOD_NOT_ALLOWED");
}

#[tokio::test]
async fn an_invalid_body_is_rejected_with_a_reason() {
    let mut limits = Limits::default();
    limits.body_bytes = 1000;
    let server = TestServer::with(Leasehold::connect("memory:").await.unwrap(), Access::Open, limits).await;
    let post = |body: &str| server.request(Method::POST, RELEASE).body(body.to_owned());
    let json = |body: &str| post(body).header("content-type", "application/json; charset=utf-8");
    let reply = Reply::of(json("{ nonsense")).await;
    assert_eq!((reply.status, reply.code()), (400, "INVALID"));
    let reply = Reply::of(json(r#"{ "leaseId": "x", "token": 1 }"#)).await;
    assert_eq!((reply.status, reply.code()), (400, "INVALID"));
    assert!(reply.body["detail"].as_str().unwrap().contains("UUID"), "{}", reply.body);
    assert_eq!(Reply::of(post("{}").header("content-type", "text/plain")).await.code(), "NOT_JSON");
    let reply = Reply::of(json(&"x".repeat(1001))).await;
    assert_eq!((reply.status, reply.code()), (413, "TOO_LARGE"));
}

#[tokio::test]
async fn an_open_server_accepts_only_local_requests() {
    let server = TestServer::open().await;
    let request = server.request(Method::POST, RELEASE).header("host", "evil.example").json(&lease());
    let reply = Reply::of(request).await;
    assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"));
}

#[tokio::test]
async fn a_token_allows_what_its_role_allows_until_it_is_revoked() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let token_store = TokenStore::new(leasehold);
    let reply = server.post(RELEASE, &lease()).await;
    assert_eq!((reply.status, reply.code()), (401, "UNAUTHENTICATED"));
    assert!(reply.headers.contains_key("www-authenticate"));

    let reader = token_store.create("ada", Role::Reader, None).await.unwrap();
    server.use_token(&reader.text);
    let reply = server.post(RELEASE, &lease()).await;
    assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"));
    assert_eq!(reply.body["detail"], "'ada' has the role reader; this operation requires the role worker");

    let worker = token_store.create("ci", Role::Worker, None).await.unwrap();
    server.use_token(&worker.text);
    assert_eq!(server.post(RELEASE, &lease()).await.code(), "LOCK_NOT_HELD");
    token_store.revoke(&worker.id).await.unwrap();
    let mut code = String::new();
    for _ in 0..40 {
        code = server.post(RELEASE, &lease()).await.code().to_owned();
        if code == "UNAUTHENTICATED" {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(code, "UNAUTHENTICATED");
    server.use_token("lh_000000000000_guess");
    assert_eq!(server.post(RELEASE, &lease()).await.code(), "UNAUTHENTICATED");
    let names: Vec<_> =
        token_store.list().await.unwrap().into_iter().map(|token| (token.name, token.active)).collect();
    assert!(
        names.contains(&("ada".to_owned(), true)) && names.contains(&("ci".to_owned(), false)),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_slow_client_is_disconnected() {
    let short = std::time::Duration::from_millis(200);
    let mut limits = Limits::default();
    limits.body_time = short;
    limits.header_time = short;
    let server = TestServer::with(Leasehold::connect("memory:").await.unwrap(), Access::Open, limits).await;
    let mut slow_body =
        RawConnection::begin(&server, "content-type: application/json\r\ncontent-length: 100\r\n\r\n{").await;
    let answer = slow_body.read_until("TOO_SLOW").await;
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let mut slow_head = RawConnection::begin(&server, "x-half: a hea").await;
    slow_head.wait_for_close().await;
    assert_eq!(server.get("/readyz").await.status, 200, "others are served");
}
