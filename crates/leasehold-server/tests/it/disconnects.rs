//! Broken connections: a disconnected client leaves nothing behind, and a client that reconnects
//! keeps its position.

use axum::body::Body;
use axum::http::Request;
use leasehold::Leasehold;
use leasehold_server::{Access, Server};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::raw_connection::RawConnection;
use crate::test_server::TestServer;

const PATH: &str = "/api/v1/locks/a/acquire";
/// Lease ids, one per test: waiters with the same id share their state in the whole process.
const IDS: [&str; 4] = [
    "01890a5d-ac96-774b-bcce-b302099a8061",
    "01890a5d-ac96-774b-bcce-b302099a8062",
    "01890a5d-ac96-774b-bcce-b302099a8063",
    "01890a5d-ac96-774b-bcce-b302099a8064",
];

fn lease(lock: &Value) -> Value {
    json!({ "leaseId": lock["leaseId"], "token": lock["token"] })
}

#[tokio::test]
async fn a_waiter_whose_connection_breaks_leaves_the_queue_at_once() {
    for server in TestServer::each().await {
        server.post(PATH, &json!({})).await;
        let connection =
            RawConnection::send(&server, "POST", PATH, Some(&json!({ "waitSeconds": 60 }))).await;
        server.wait_for_waiters("a", 1).await;
        connection.disconnect();
        server.wait_for_waiters("a", 0).await;
        let newest = server.get("/api/v1/locks/a/history").await.body["events"][0].clone();
        assert_eq!(newest["kind"], "withdrawn");
        // The ticket was withdrawn and did not expire: its TTL is 10 s.
        assert!(newest["afterSeconds"].as_f64().unwrap() < 8.0, "{newest}");
    }
}

#[tokio::test]
async fn a_waiter_with_an_id_keeps_its_position_across_connections() {
    for server in TestServer::each().await {
        let held = server.post(PATH, &json!({})).await.body["lock"].clone();
        let request = json!({ "waitSeconds": 60, "leaseId": IDS[0], "holder": "back" });
        let first = RawConnection::send(&server, "POST", PATH, Some(&request)).await;
        server.wait_for_waiters("a", 1).await;
        let other = json!({ "waitSeconds": 60, "holder": "other" });
        let other = RawConnection::send(&server, "POST", PATH, Some(&other)).await;
        server.wait_for_waiters("a", 2).await;
        first.disconnect();
        let mut second = RawConnection::send(&server, "POST", PATH, Some(&request)).await;
        let queue = server.wait_for_waiters("a", 2).await;
        assert_eq!(queue["waiters"][0]["holder"], "back");
        server.post("/api/v1/locks/a/release", &lease(&held)).await;
        let answer = second.read_until("}}").await;
        assert!(answer.contains(IDS[0]) && answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(server.get_lock("a").await["holder"], "back");
        other.disconnect();
    }
}

#[tokio::test]
async fn a_request_dropped_late_does_not_affect_its_successor() {
    for server in TestServer::each().await {
        let held = server.post(PATH, &json!({})).await.body["lock"].clone();
        let request = json!({ "waitSeconds": 60, "leaseId": IDS[1] });
        let first = RawConnection::send(&server, "POST", PATH, Some(&request)).await;
        server.wait_for_waiters("a", 1).await;
        // The client has abandoned the first request and repeats it; the server does not know yet
        // that the first is gone.
        let mut second = RawConnection::send(&server, "POST", PATH, Some(&request)).await;
        server.post("/api/v1/locks/a/release", &lease(&held)).await;
        let answer = second.read_until("}}").await;
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        first.disconnect();
        // Waits for the background work that the drop of the first request has caused.
        server.leasehold.clone().close().await;
        let now = server.get_lock("a").await;
        assert_eq!((&now["holders"][0]["leaseId"], &now["token"]), (&json!(IDS[1]), &body["lock"]["token"]));
        let renewed = server.post("/api/v1/locks/a/renew", &lease(&body["lock"])).await;
        assert_eq!(renewed.status, 200, "{}", renewed.body);
    }
}

#[tokio::test]
async fn a_request_that_times_out_leaves_its_position_to_the_second() {
    for server in TestServer::each().await {
        server.post(PATH, &json!({})).await;
        // Long enough for the second request to arrive, on a busy machine, too.
        let short = json!({ "waitSeconds": 5, "leaseId": IDS[2] });
        let mut first = RawConnection::send(&server, "POST", PATH, Some(&short)).await;
        server.wait_for_waiters("a", 1).await;
        let long = json!({ "waitSeconds": 60, "leaseId": IDS[2] });
        let second = RawConnection::send(&server, "POST", PATH, Some(&long)).await;
        let answer = first.read_until("LOCK_CONFLICT").await;
        assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
        let kinds = server.get("/api/v1/locks/a/history").await.body;
        let left = kinds["events"].as_array().unwrap().iter().any(|event| event["kind"] == "withdrawn");
        assert!(!left, "{kinds}");
        second.disconnect();
    }
}

#[tokio::test]
async fn a_lease_whose_response_is_not_read_is_released() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).build();
    let post = |body: Value| {
        let request =
            Request::post(PATH).header("host", "localhost").header("content-type", "application/json");
        server.router().oneshot(request.body(Body::from(body.to_string())).unwrap())
    };
    // The response exists, and the connection ends before it takes the bytes.
    let answer = post(json!({ "ttlSeconds": 600 })).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(leasehold.locks().status("a").await.unwrap().is_locked);
    drop(answer);
    leasehold.clone().close().await;
    assert!(!leasehold.locks().status("a").await.unwrap().is_locked);

    // With its own lease id the client can repeat the request, so the lease stays.
    let answer = post(json!({ "ttlSeconds": 600, "leaseId": IDS[3] })).await.unwrap();
    drop(answer);
    leasehold.clone().close().await;
    let status = leasehold.locks().status("a").await.unwrap();
    assert!(status.is_locked);
    let again = post(json!({ "leaseId": IDS[3] })).await.unwrap();
    let again = axum::body::to_bytes(again.into_body(), 10_000).await.unwrap();
    let again: Value = serde_json::from_slice(&again).unwrap();
    assert_eq!(again["lock"]["token"], status.token.get());

    // A lease whose response was read stays, whatever happens to the connection.
    leasehold.clone().close().await;
    assert!(leasehold.locks().status("a").await.unwrap().is_locked);
}

#[tokio::test]
async fn disconnected_waiters_leave_no_tickets_and_block_no_caller() {
    for server in TestServer::each().await {
        let held = server.post(PATH, &json!({})).await.body["lock"].clone();
        let mut crowd = Vec::new();
        for _ in 0..50 {
            let request = json!({ "waitSeconds": 60, "ttlSeconds": 600 });
            crowd.push(RawConnection::send(&server, "POST", PATH, Some(&request)).await);
        }
        server.wait_for_waiters("a", 50).await;
        // All at once: some are granted the lock while others are still in the queue.
        let mine = lease(&held);
        let released = server.post("/api/v1/locks/a/release", &mine);
        let (released, ()) =
            tokio::join!(released, async { crowd.into_iter().for_each(RawConnection::disconnect) });
        assert_eq!(released.status, 200);
        let next = server.post(PATH, &json!({ "waitSeconds": 20, "holder": "next" })).await;
        // One response may have been in flight when its client disconnected; then that client holds
        // the lock.
        if next.status != 200 {
            assert_eq!(server.get_lock("a").await["waiters"], json!([]), "{}", next.body);
        }
    }
}
