//! Bodies: only JSON objects within the limits of the `OpenAPI` document.

use leasehold::Leasehold;
use leasehold::store::protocol::{CLOCK_HEADER, UNTIL_HEADER, VERSION_HEADER};
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::{Reply, TestServer};

#[tokio::test]
async fn an_array_is_not_accepted_as_an_object() {
    let server = TestServer::open().await;
    let held = server.post("/api/v1/locks/a/acquire", &json!({})).await.body["lock"].clone();
    let (lease, token) = (held["leaseId"].clone(), held["token"].clone());
    for (path, body) in [
        ("/api/v1/locks/a/release", json!([lease, token])),
        ("/api/v1/locks/a/renew", json!([lease, token, null])),
        ("/api/v1/locks/b/acquire", json!(["me"])),
        ("/api/v1/locks/a/ask", json!(["because"])),
        ("/api/v1/queues/q/pause", json!([null])),
        ("/api/v1/queues/q/tasks", json!([[1]])),
        ("/api/v1/queues/q/lease", json!({ "worker": [uuid::Uuid::from_u128(1)] })),
        ("/api/v1/tasks/settle", json!({ "tasks": [[uuid::Uuid::from_u128(1), 1, "complete"]] })),
        ("/tf/prod/lock", json!(["id", "OperationTypePlan"])),
        ("/tf/prod", json!([1, "lineage"])),
    ] {
        let reply = server.post(path, &body).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{path} {body}: {}", reply.body);
    }
    assert_eq!(server.get_lock("a").await["isLocked"], true);
    let renewed = server.post("/api/v1/locks/a/renew", &json!({ "leaseId": lease, "token": token })).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
}

/// A client that sends its whole body before it reads would lose the response on a connection that is reset.
#[tokio::test]
async fn a_body_that_is_much_too_large_is_refused_with_a_response() {
    let server = TestServer::open().await;
    for _ in 0..5 {
        let mut stream = TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap();
        let body = "x".repeat(12 << 20);
        let head =
            "POST /api/v1/locks/a/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
        let request = format!("{head}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 413") && response.contains("TOO_LARGE"), "{response}");
    }
}

#[tokio::test]
async fn an_optional_body_must_not_be_null() {
    let server = TestServer::open().await;
    for path in ["/api/v1/locks/a/acquire", "/api/v1/queues/q/lease"] {
        assert_eq!(server.post(path, &Value::Null).await.code(), "INVALID", "{path}");
        assert_eq!(Reply::of(server.request(Method::POST, path)).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn json_is_nested_128_deep_at_most() {
    let server = TestServer::open().await;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let send = async |path: &str, body: String| {
        let request = server.request(Method::POST, path).header("content-type", "application/json");
        Reply::of(request.body(body)).await
    };
    let task = |depth| format!("{{\"payload\": {}}}", nested(depth));
    assert_eq!(send("/api/v1/queues/q/tasks", task(128)).await.status, 201);
    let state = |depth| format!("{{\"serial\": 1, \"resources\": {}}}", nested(depth));
    assert_eq!(send("/tf/prod", state(127)).await.status, 200);
    for depth in [129, 100_000] {
        for (path, body) in [("/api/v1/queues/q/tasks", task(depth)), ("/tf/prod", state(depth))] {
            let reply = send(path, body).await;
            assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{path} {depth}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn limits_out_of_range_are_rejected() {
    let server = TestServer::open().await;
    for path in [
        "/api/v1/executions?limit=2147483648",
        "/api/v1/executions?limit=0",
        "/api/v1/executions?limit=1001",
        "/api/v1/tasks?limit=2147483648",
        "/api/v1/locks?limit=2147483648",
        "/api/v1/locks/a/history?limit=2147483648",
        "/api/v1/locks?limit=99999999999",
    ] {
        assert_eq!(server.get(path).await.code(), "INVALID", "{path}");
    }
    let lease = server.post("/api/v1/queues/q/lease", &json!({ "waitSeconds": 61 })).await;
    assert_eq!(lease.code(), "INVALID");
    let token = server.post("/api/v1/fence/a", &json!({ "token": 1_u64 << 53 })).await;
    assert_eq!(token.code(), "INVALID", "a token is below 2^53");
    let whole = server.post("/api/v1/fence/a", &json!({ "token": 7.0 })).await;
    assert_eq!(whole.code(), "STALE_TOKEN", "7.0 is an integer in JSON Schema");
}

#[tokio::test]
async fn the_store_protocol_authenticates_first_and_validates_bodies() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let mut server = TestServer::over(leasehold, Access::Tokens(Vec::new())).await;
    for path in ["locks/get", "tasks/get", "docs/get", "notifications"] {
        let reply = server.post(&format!("/api/v1/store/{path}"), &json!([])).await;
        assert_eq!((reply.status, reply.code()), (401, "UNAUTHENTICATED"), "{path}");
    }
    assert_eq!(server.get("/api/v1/store/capabilities").await.code(), "UNAUTHENTICATED");

    server.use_token(&token_store.create("ada", Role::Admin, None).await.unwrap().text);
    let refused = server.get("/api/v1/store/capabilities").await;
    assert_eq!((refused.status, refused.code()), (400, "PROTOCOL"));
    let clock = refused.headers[CLOCK_HEADER].to_str().unwrap().to_owned();
    let (instance, _) = clock.split_once('=').unwrap();
    let until = format!("{instance}={}", u64::MAX);
    let call = async |path: &str, body: Value| {
        let request = server.request(Method::POST, &format!("/api/v1/store/{path}"));
        Reply::of(request.header(VERSION_HEADER, "1").header(UNTIL_HEADER, &until).json(&body)).await
    };
    let worker = |host: &str| {
        let id = uuid::Uuid::from_u128(7);
        let every = 1_000_000;
        json!({ "id": id, "host": host, "pid": 1, "version": "", "queues": [], "slots": 1, "busy": 0, "draining": false, "every": every })
    };
    assert_eq!(call("tasks/heartbeat", json!([worker("here"), [], 1_000_000])).await.status, 200);
    let long = call("tasks/heartbeat", json!([worker(&"x".repeat(256)), [], 1_000_000])).await;
    assert_eq!((long.status, long.code()), (400, "INVALID"), "{}", long.body);
    let controls = call("tasks/heartbeat", json!([worker("a\u{1b}[2K"), [], 1_000_000])).await;
    assert_eq!(controls.code(), "INVALID");
    let array = call("tasks/heartbeat", json!([["…", "here", 1, "", [], 1, 0, false, 1], [], 1])).await;
    assert_eq!(array.code(), "INVALID");
    let large = "x".repeat(3 * 1024 * 1024);
    let document = call("docs/put_if", json!(["note", null, large, null])).await;
    assert_eq!((document.status, document.code()), (413, "TOO_LARGE"), "{}", document.body);
    let deep = "[".repeat(200);
    assert_eq!(call("docs/put_if", json!(["note", null, deep, null])).await.code(), "INVALID");
    assert_eq!(call("docs/put_if", json!(["k".repeat(600), null, "{}", null])).await.code(), "INVALID");
    assert_eq!(call("locks/steal", json!([])).await.code(), "UNKNOWN_PATH");
}

#[tokio::test]
async fn an_unsupported_method_is_405_on_every_path() {
    let server = TestServer::open().await;
    let trace = |path: &str| Reply::of(server.request(Method::TRACE, path));
    for path in [
        "/healthz",
        "/api/v1/locks/a",
        "/api/v1/store/capabilities",
        "/api/v1/store/notifications",
        "/tf/prod",
    ] {
        let reply = trace(path).await;
        assert_eq!((reply.status, reply.code()), (405, "METHOD_NOT_ALLOWED"), "{path}");
        assert!(reply.headers.contains_key("allow"), "{path} says what it has");
    }
}

#[tokio::test]
async fn terraform_clients_get_401_and_403() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let mut server = TestServer::over(leasehold, Access::Tokens(Vec::new())).await;
    let reply = server.get("/tf/prod").await;
    assert_eq!((reply.status, reply.code()), (401, "UNAUTHENTICATED"));
    assert_eq!(reply.headers["www-authenticate"], "Basic realm=\"leasehold\"");
    server.use_token(&token_store.create("ada", Role::Reader, None).await.unwrap().text);
    let reply = server.get("/tf/prod").await;
    assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"));
}

#[tokio::test]
async fn a_lease_contains_its_remaining_time() {
    let server = TestServer::open().await;
    let holder =
        server.post("/api/v1/locks/a/acquire", &json!({ "ttlSeconds": 1 })).await.body["lock"].clone();
    let left = holder["remainingSeconds"].as_f64().unwrap();
    assert!(left > 0.5 && left <= 1.0, "{holder}");
    // A lease of one second that was waited for as long still lasts one second when it is granted.
    let waited = server.post("/api/v1/locks/a/acquire", &json!({ "ttlSeconds": 1, "waitSeconds": 20 })).await;
    assert_eq!(waited.status, 200, "{}", waited.body);
    let lock = &waited.body["lock"];
    let left = lock["remainingSeconds"].as_f64().unwrap();
    assert!(left > 0.5 && left <= 1.0, "{lock}");
    let renew = json!({ "leaseId": lock["leaseId"], "token": lock["token"], "ttlSeconds": 40 });
    let renewed = server.post("/api/v1/locks/a/renew", &renew).await.body;
    let left = renewed["lock"]["remainingSeconds"].as_f64().unwrap();
    assert!(left > 30.0 && left <= 40.0, "{renewed}");
}
