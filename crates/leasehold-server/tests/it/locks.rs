//! Acquiring, renewing, releasing, querying, and forcing a release.

use reqwest::Method;
use serde_json::{Value, json};

use crate::test_server::{Reply, TestServer};

fn lease(reply: &Reply) -> Value {
    assert_eq!(reply.status, 200, "{}", reply.body);
    json!({ "leaseId": reply.body["lock"]["leaseId"], "token": reply.body["lock"]["token"] })
}

#[tokio::test]
async fn a_lock_is_acquired_renewed_and_released() {
    for server in TestServer::each().await {
        let request = json!({ "holder": "ada", "ttlSeconds": 20, "metadata": { "run": "7" } });
        let taken = server.post("/api/v1/locks/build/acquire", &request).await;
        let mine = lease(&taken);
        let lock = &taken.body["lock"];
        assert_eq!(taken.body["success"], true);
        assert_eq!((&lock["name"], &lock["holder"]), (&json!("build"), &json!("ada")));
        assert_eq!((&lock["mode"], &lock["slots"]), (&json!("exclusive"), &json!(1)));
        assert_eq!(lock["ttlSeconds"], 20.0);
        assert_eq!(lock["metadata"], json!({ "run": "7", "address": "127.0.0.1" }));
        assert!(lock["expiresAt"].as_str().unwrap() > lock["acquiredAt"].as_str().unwrap());
        assert!(lock["expiresAt"].as_str().unwrap().ends_with('Z'));

        let other = server.post("/api/v1/locks/build/acquire", &json!({ "holder": "bob" })).await;
        assert_eq!((other.status, other.code()), (409, "LOCK_CONFLICT"));
        assert_eq!(other.body["holders"][0]["holder"], "ada");
        assert_eq!(other.body["holders"][0]["token"], mine["token"]);
        let pause: u64 = other.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((18..=20).contains(&pause), "{pause}");
        assert_eq!(other.body["retryAfterSeconds"], pause);

        let renewed = server.post("/api/v1/locks/build/renew", &mine).await;
        assert_eq!(lease(&renewed), mine);
        assert_eq!(renewed.body["lock"]["renewals"], 1);
        let longer = json!({ "leaseId": mine["leaseId"], "token": mine["token"], "ttlSeconds": 90.5 });
        let renewed = server.post("/api/v1/locks/build/renew", &longer).await;
        assert_eq!(renewed.body["lock"]["ttlSeconds"], 90.5);
        let other = server.post("/api/v1/locks/build/acquire", &json!({})).await;
        assert_eq!(other.headers["retry-after"], "30");

        let fence = server.post("/api/v1/fence/build", &json!({ "token": mine["token"] })).await;
        assert_eq!((fence.status, &fence.body["valid"]), (200, &json!(true)));
        assert_eq!(fence.body["holder"], "ada");

        let released = server.post("/api/v1/locks/build/release", &mine).await;
        assert_eq!((released.status, released.body), (200, json!({ "success": true })));
        for path in ["release", "renew"] {
            let again = server.post(&format!("/api/v1/locks/build/{path}"), &mine).await;
            assert_eq!((again.status, again.code()), (404, "LOCK_NOT_HELD"), "{path}");
        }
        let fence = server.post("/api/v1/fence/build", &json!({ "token": mine["token"] })).await;
        assert_eq!((fence.status, fence.code()), (409, "STALE_TOKEN"));
        let next = server.post("/api/v1/locks/build/acquire", &json!({})).await;
        assert!(lease(&next)["token"].as_u64() > mine["token"].as_u64());
        assert_eq!(next.body["lock"]["holder"], "anybody");
        server.stop().await;
    }
}

#[tokio::test]
async fn an_acquire_needs_no_body_and_its_lease_expires() {
    let server = TestServer::open().await;
    let reply = Reply::of(server.request(Method::POST, "/api/v1/locks/a/acquire")).await;
    assert_eq!(reply.body["lock"]["ttlSeconds"], 30.0);
    let short = server.post("/api/v1/locks/b/acquire", &json!({ "ttlSeconds": 0.05 })).await;
    let lock = server.wait_for_lock("b", |lock| lock["isLocked"] == false).await;
    assert_eq!((&lock["isStale"], &lock["token"]), (&json!(true), &lease(&short)["token"]));
    assert_eq!(server.get("/api/v1/locks?status=stale").await.body["locks"][0]["name"], "b");
    assert_eq!(server.post("/api/v1/locks/b/acquire", &json!({})).await.status, 200);
}

#[tokio::test]
async fn names_may_contain_any_printable_character() {
    for server in TestServer::each().await {
        for (path, name) in [
            ("terraform%2Fprod%2F1", "terraform/prod/1"),
            ("%C3%9Cn%C3%AFc%C3%B6d%C3%A9%20%E5%90%8D%E5%89%8D", "Ünïcödé 名前"),
            ("a%25b%3Fc%23d~e%2B", "a%b?c#d~e+"),
        ] {
            let mine = lease(&server.post(&format!("/api/v1/locks/{path}/acquire"), &json!({})).await);
            let lock = server.get_lock(path).await;
            assert_eq!((&lock["name"], &lock["isLocked"]), (&json!(name), &json!(true)));
            let history = server.get(&format!("/api/v1/locks/{path}/history")).await;
            assert_eq!(history.body["events"][0]["lock"], name);
            let released = server.post(&format!("/api/v1/locks/{path}/release"), &mine).await;
            assert_eq!(released.status, 200);
        }
        for (path, why) in [
            ("%20a", "begins or ends with a blank"),
            ("a%0Ab", "control character"),
            ("%FF", "UTF-8"),
            (&"x".repeat(256), "255 is the most"),
        ] {
            let reply = server.post(&format!("/api/v1/locks/{path}/acquire"), &json!({})).await;
            assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{path}");
            assert!(reply.body["detail"].as_str().unwrap().contains(why), "{}", reply.body);
        }
        assert_eq!(server.get("/api/v1/locks/a/b").await.code(), "UNKNOWN_PATH");
    }
}

#[tokio::test]
async fn an_unknown_or_empty_status_is_rejected() {
    let server = TestServer::open().await;
    assert_eq!(server.get("/api/v1/locks?status=held").await.status, 200);
    for status in ["", "Held", "asked"] {
        let reply = server.get(&format!("/api/v1/locks?status={status}")).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "'{status}'");
    }
}

#[tokio::test]
async fn invalid_values_are_rejected_and_acquire_nothing() {
    let server = TestServer::open().await;
    for (request, why) in [
        (json!({ "ttlSeconds": 0 }), "ttlSeconds: a duration of 0 is too short"),
        (json!({ "ttlSeconds": -1 }), "invalid ttlSeconds -1"),
        (json!({ "ttlSeconds": 1e300 }), "invalid ttlSeconds"),
        (json!({ "ttlSeconds": "30" }), "f64"),
        (json!({ "waitSeconds": -0.5 }), "invalid waitSeconds -0.5"),
        (json!({ "waitSeconds": 60.5 }), "must be at most 60"),
        (json!({ "mode": "both" }), "unknown variant `both`"),
        (json!({ "slots": 0 }), "slots"),
        (json!({ "slots": -1 }), "u32"),
        (json!({ "slots": 2, "mode": "shared" }), "a shared lock has no slots"),
        (json!({ "priority": 1001 }), "priority"),
        (json!({ "strategy": "hope" }), "unknown variant `hope`"),
        (json!({ "strategy": "failFast", "waitSeconds": 1 }), "failFast does not wait"),
        (json!({ "strategy": "stealStale" }), "staleAfterSeconds"),
        (json!({ "staleAfterSeconds": -1 }), "invalid staleAfterSeconds"),
        (json!({ "holder": "" }), "the holder is empty"),
        (json!({ "leaseId": "x" }), "UUID"),
        (json!({ "leaseId": "00000000-0000-0000-0000-000000000000" }), "must be a random UUID"),
        (json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8057", "with": ["b"] }), "several"),
        (json!({ "keepTicket": true, "waitSeconds": 1 }), "lease id"),
        (json!({ "with": ["a"] }), "named twice"),
        (json!({ "with": [" "] }), "blank"),
        (json!({ "metadata": { "": "x" } }), "metadata key"),
        (json!({ "metadata": { "k": 1 } }), "string"),
        (json!({ "metadata": { "k": "x".repeat(5000) } }), "too much metadata"),
        (json!({ "ttl": 30 }), "unknown field `ttl`"),
        (json!([]), "invalid body"),
    ] {
        let reply = server.post("/api/v1/locks/a/acquire", &request).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{request}");
        assert!(reply.body["detail"].as_str().unwrap().contains(why), "{request}: {}", reply.body);
    }
    assert_eq!(server.get_lock("a").await["token"], 0);
    let renew = json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8057", "token": 1, "ttlSeconds": 0 });
    assert_eq!(server.post("/api/v1/locks/a/renew", &renew).await.code(), "INVALID");
    assert_eq!(server.post("/api/v1/locks/a/renew", &json!({})).await.code(), "INVALID");
    assert_eq!(server.post("/api/v1/fence/a", &json!({ "token": "1" })).await.code(), "INVALID");
    assert_eq!(server.post("/api/v1/fence/a", &json!({ "token": -1 })).await.code(), "INVALID");
}

#[tokio::test]
async fn full_metadata_is_accepted_without_the_address() {
    let server = TestServer::open().await;
    let facts: serde_json::Map<_, _> = (0..32).map(|n| (format!("k{n}"), json!("v"))).collect();
    let taken = server.post("/api/v1/locks/a/acquire", &json!({ "metadata": facts })).await;
    assert_eq!(taken.body["lock"]["metadata"].as_object().unwrap().len(), 32);
    let own = json!({ "metadata": { "address": "rack 4" } });
    let taken = server.post("/api/v1/locks/b/acquire", &own).await;
    assert_eq!(taken.body["lock"]["metadata"]["address"], "rack 4");
}

#[tokio::test]
async fn shared_and_counted_locks_have_several_holders() {
    let server = TestServer::open().await;
    let (shared, three) = (json!({ "mode": "shared" }), json!({ "slots": 2 }));
    for (name, request) in [("s", &shared), ("c", &three)] {
        let path = format!("/api/v1/locks/{name}/acquire");
        let first = lease(&server.post(&path, request).await);
        let second = lease(&server.post(&path, request).await);
        assert_ne!(first, second);
        assert_eq!(server.post(&path, &json!({})).await.code(), "LOCK_CONFLICT");
        assert_eq!(server.get_lock(name).await["holders"].as_array().unwrap().len(), 2);
        // Both tokens are valid, although only one is the newest.
        for mine in [&first, &second] {
            let fence =
                server.post(&format!("/api/v1/fence/{name}"), &json!({ "token": mine["token"] })).await;
            assert_eq!((fence.status, &fence.body["newest"]), (200, &second["token"]));
        }
    }
    assert_eq!(server.post("/api/v1/locks/c/acquire", &three).await.code(), "LOCK_CONFLICT");
}

#[tokio::test]
async fn several_locks_are_acquired_together_or_not_at_all() {
    for server in TestServer::each().await {
        let request = json!({ "with": ["c", "a"] });
        let taken = server.post("/api/v1/locks/b/acquire", &request).await;
        assert_eq!(taken.body["lock"]["name"], "b");
        let names: Vec<_> = taken.body["with"].as_array().unwrap().iter().map(|lock| &lock["name"]).collect();
        assert_eq!(names, ["a", "c"]);
        assert_eq!(
            server.post("/api/v1/locks/x/acquire", &json!({ "with": ["c"] })).await.code(),
            "LOCK_CONFLICT"
        );
        let free = server.wait_for_lock("x", |lock| lock["isLocked"] == false).await;
        assert_eq!(free["isLocked"], false);
    }
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_can_be_stolen() {
    let server = TestServer::open().await;
    let old = lease(&server.post("/api/v1/locks/a/acquire", &json!({ "ttlSeconds": 600 })).await);
    let patient = json!({ "strategy": "stealStale", "staleAfterSeconds": 500 });
    assert_eq!(server.post("/api/v1/locks/a/acquire", &patient).await.code(), "LOCK_CONFLICT");
    let thief = json!({ "strategy": "stealStale", "staleAfterSeconds": 0.001, "holder": "thief" });
    let stolen = lease(&server.post("/api/v1/locks/a/acquire", &thief).await);
    assert!(stolen["token"].as_u64() > old["token"].as_u64());
    assert_eq!(server.post("/api/v1/locks/a/renew", &old).await.code(), "LOCK_NOT_HELD");
    let history = server.get("/api/v1/locks/a/history").await;
    let kinds: Vec<_> =
        history.body["events"].as_array().unwrap().iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["acquired", "stolen", "acquired"]);
    assert_eq!(history.body["events"][1]["by"], "thief");
}

#[tokio::test]
async fn the_same_lease_id_gives_the_same_lease_and_token() {
    for server in TestServer::each().await {
        let request = json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8057", "ttlSeconds": 30 });
        let first = server.post("/api/v1/locks/a/acquire", &request).await;
        let second = server.post("/api/v1/locks/a/acquire", &request).await;
        assert_eq!(lease(&first), lease(&second));
        assert_eq!(first.body["lock"]["leaseId"], request["leaseId"]);
        assert!(second.body["lock"]["expiresAt"].as_str() > first.body["lock"]["expiresAt"].as_str());
        assert_eq!(server.get_lock("a").await["holders"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn locks_are_listed_in_pages_and_by_state() {
    for server in TestServer::each().await {
        for name in ["ü%2F1", "b%2F1", "b%2F2", "b%2F3", "c"] {
            lease(&server.post(&format!("/api/v1/locks/{name}/acquire"), &json!({})).await);
        }
        let mine = lease(&server.post("/api/v1/locks/free/acquire", &json!({})).await);
        server.post("/api/v1/locks/free/release", &mine).await;
        server.post("/api/v1/locks/c/ask", &json!({})).await;
        let names = |reply: &Reply| -> Vec<String> {
            let locks = reply.body["locks"].as_array().unwrap_or_else(|| panic!("{}", reply.body));
            locks.iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
        };
        let first = server.get("/api/v1/locks?prefix=b/&cursor=&limit=2").await;
        assert_eq!(names(&first), ["b/1", "b/2"]);
        let next = first.body["nextCursor"].as_str().unwrap().replace('/', "%2F");
        let second = server.get(&format!("/api/v1/locks?prefix=b/&limit=2&cursor={next}")).await;
        assert_eq!(names(&second), ["b/3"]);
        assert!(second.body.get("nextCursor").is_none());
        assert_eq!(names(&server.get("/api/v1/locks").await).len(), 6);
        assert_eq!(names(&server.get("/api/v1/locks?prefix=%C3%BC").await), ["ü/1"]);
        assert_eq!(names(&server.get("/api/v1/locks?status=free").await), ["free"]);
        assert_eq!(names(&server.get("/api/v1/locks?status=held").await).len(), 5);
        assert_eq!(names(&server.get("/api/v1/locks?status=inUse").await).len(), 5);
        assert_eq!(names(&server.get("/api/v1/locks?status=releasing").await), ["c"]);
        assert_eq!(names(&server.get("/api/v1/locks?status=active&prefix=c").await), [""; 0]);
        assert_eq!(names(&server.get("/api/v1/locks?status=waited").await), [""; 0]);
        for bad in ["status=odd", "status=", "limit=0", "limit=1001", "limit=x", "nonsense=1"] {
            let reply = server.get(&format!("/api/v1/locks?{bad}")).await;
            assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{bad}");
        }
    }
}

#[tokio::test]
async fn history_is_paged_newest_first() {
    for server in TestServer::each().await {
        for _ in 0..3 {
            let mine = lease(&server.post("/api/v1/locks/a/acquire", &json!({})).await);
            server.post("/api/v1/locks/a/release", &mine).await;
        }
        let mut path = "/api/v1/locks/a/history?limit=4".to_owned();
        let mut kinds = Vec::new();
        loop {
            let page = server.get(&path).await;
            let events = page.body["events"].as_array().unwrap();
            kinds.extend(events.iter().map(|event| event["kind"].as_str().unwrap().to_owned()));
            match page.body["nextCursor"].as_str() {
                Some(next) => path = format!("/api/v1/locks/a/history?limit=4&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(kinds, ["released", "acquired"].repeat(3));
        assert_eq!(server.get("/api/v1/locks/never/history").await.body, json!({ "events": [] }));
        assert_eq!(server.get("/api/v1/locks/a/history?limit=0").await.code(), "INVALID");
    }
}

#[tokio::test]
async fn a_release_request_reaches_the_holder_with_its_renewal() {
    let server = TestServer::open().await;
    assert_eq!(server.post("/api/v1/locks/a/ask", &json!({})).await.code(), "LOCK_NOT_HELD");
    let mine = lease(&server.post("/api/v1/locks/a/acquire", &json!({})).await);
    let asked = server.post("/api/v1/locks/a/ask", &json!({ "reason": "deploy waits" })).await;
    assert_eq!(asked.body, json!({ "success": true, "name": "a", "holders": 1, "by": "anybody" }));
    let renewed = server.post("/api/v1/locks/a/renew", &mine).await;
    assert_eq!(renewed.body["lock"]["status"], "releasing");
    assert_eq!(renewed.body["lock"]["releaseRequest"]["reason"], "deploy waits");
    assert_eq!(renewed.body["lock"]["releaseRequest"]["by"], "anybody");
    // A request without a body has no reason.
    assert_eq!(Reply::of(server.request(Method::POST, "/api/v1/locks/a/ask")).await.status, 200);
    assert_eq!(server.post("/api/v1/locks/a/ask", &json!({ "why": 1 })).await.code(), "INVALID");
}

#[tokio::test]
async fn a_forced_release_requires_the_token_of_the_holder() {
    for server in TestServer::each().await {
        let mine = lease(&server.post("/api/v1/locks/a%2Fb/acquire", &json!({})).await);
        let force = json!({ "reason": "the runner is gone", "expectedToken": mine["token"] });
        for path in ["/api/v1/locks/a%2Fb", "/api/v1/locks/a%2Fb?force=false"] {
            let reply = server.delete(path, &force).await;
            assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{path}");
            assert!(reply.body["hint"].as_str().unwrap().contains("/release"), "{}", reply.body);
        }
        let path = "/api/v1/locks/a%2Fb?force=true";
        let other = json!({ "reason": "x", "expectedToken": mine["token"].as_u64().unwrap() - 1 });
        assert_eq!(server.delete(path, &other).await.code(), "LOCK_NOT_HELD");
        assert_eq!(server.delete(path, &json!({ "expectedToken": 1 })).await.code(), "INVALID");
        assert_eq!(server.delete(path, &json!({ "reason": "", "expectedToken": 1 })).await.code(), "INVALID");
        let reply = Reply::of(server.request(Method::DELETE, path)).await;
        assert_eq!((reply.status, reply.code()), (415, "NOT_JSON"));
        let taken = server.delete(path, &force).await;
        assert_eq!((taken.status, &taken.body["lock"]["isLocked"]), (200, &json!(false)));
        assert!(taken.body["lock"]["token"].as_u64() > mine["token"].as_u64());
        assert_eq!(server.post("/api/v1/locks/a%2Fb/renew", &mine).await.code(), "LOCK_NOT_HELD");
        let newest = &server.get("/api/v1/locks/a%2Fb/history").await.body["events"][0];
        assert_eq!((&newest["kind"], &newest["reason"]), (&json!("forced"), &force["reason"]));
        assert_eq!(newest["by"], "anybody");
    }
}
