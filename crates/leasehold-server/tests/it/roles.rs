//! Roles that the lock endpoints require.

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

#[tokio::test]
async fn each_role_may_use_its_lock_operations() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let token_store = TokenStore::new(leasehold);
    let lease = json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8057", "token": 1 });
    let cases: [(Method, &str, Value, Role); 9] = [
        (Method::GET, "/api/v1/locks", Value::Null, Role::Reader),
        (Method::GET, "/api/v1/locks/a", Value::Null, Role::Reader),
        (Method::GET, "/api/v1/locks/a/history", Value::Null, Role::Reader),
        (Method::POST, "/api/v1/locks/a/acquire", json!({}), Role::Worker),
        (Method::POST, "/api/v1/locks/a/renew", lease.clone(), Role::Worker),
        (Method::POST, "/api/v1/locks/a/release", lease, Role::Worker),
        (Method::POST, "/api/v1/fence/a", json!({ "token": 1 }), Role::Worker),
        (Method::POST, "/api/v1/locks/a/ask", json!({}), Role::Operator),
        (
            Method::DELETE,
            "/api/v1/locks/a?force=true",
            json!({ "reason": "r", "expectedToken": 1 }),
            Role::Admin,
        ),
    ];
    for role in [Role::Reader, Role::Worker, Role::Operator, Role::Admin] {
        let token = token_store.create(&format!("the-{role}"), role, None).await.unwrap();
        server.use_token(&token.text);
        for (method, path, body, needs) in &cases {
            let mut request = server.request(method.clone(), path);
            if !body.is_null() {
                request = request.json(body);
            }
            let reply = Reply::of(request).await;
            assert_eq!(reply.status == 403, role < *needs, "{role}: {method} {path} {}", reply.status);
        }
    }
    // The default holder is the name of the token.
    assert_eq!(server.get_lock("a").await["holder"], "the-worker");
}

#[tokio::test]
async fn events_require_a_token() {
    let server =
        TestServer::over(Leasehold::connect("memory:").await.unwrap(), Access::Tokens(Vec::new())).await;
    assert_eq!(server.get("/api/v1/events").await.code(), "UNAUTHENTICATED");
}

/// Requests that a page of another site can make a browser send, without tokens or with a stored
/// password.
#[tokio::test]
async fn a_page_of_another_site_is_refused() {
    let server = TestServer::open().await;
    let paths = [
        "/api/v1/locks/prod/acquire",
        "/api/v1/locks/victim/ask",
        "/api/v1/queues/q/pause",
        "/api/v1/queues/q/lease",
        "/api/v1/schedules/nightly/pause",
        "/api/v1/tasks/recover",
    ];
    for path in paths {
        for (name, value) in [
            ("origin", "https://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("x-forwarded-for", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
            ("via", "1.1 proxy"),
        ] {
            let reply = Reply::of(server.request(Method::POST, path).header(name, value)).await;
            assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{path} with {name}: {value}");
        }
    }
    assert_eq!(server.get("/api/v1/locks/prod").await.body["isLocked"], false);
    // Request of a page of the server itself.
    let origin = server.base.clone();
    let own = server
        .request(Method::POST, paths[0])
        .header("origin", &origin)
        .header("sec-fetch-site", "same-origin");
    assert_eq!(Reply::of(own).await.status, 200);
    server.stop().await;

    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token = TokenStore::new(leasehold.clone()).create("ada", Role::Admin, None).await.unwrap();
    let server = TestServer::over(leasehold, Access::Tokens(Vec::new())).await;
    let ask = |origin: Option<&str>| {
        let request = server.request(Method::POST, paths[0]).basic_auth("ada", Some(&token.text));
        origin.into_iter().fold(request, |request, origin| request.header("origin", origin))
    };
    assert_eq!(Reply::of(ask(Some("https://evil.example"))).await.status, 403);
    assert_eq!(Reply::of(ask(None)).await.status, 200);
    server.stop().await;
}
