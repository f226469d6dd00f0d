//! Connections that break: nothing stays behind of a client that is gone, and nothing is taken from one that comes back.

use axum::body::Body;
use axum::http::Request;
use leasehold::Leasehold;
use leasehold_server::{Access, Server};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::lab::both;
use crate::wire::Wire;

const PATH: &str = "/api/v1/locks/a/acquire";
/// Ids for each test: those who wait under one id are known to each other in the whole process.
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
    let (labs, _folder) = both().await;
    for lab in labs {
        lab.post(PATH, &json!({})).await;
        let wire = Wire::send(&lab, "POST", PATH, Some(&json!({ "waitSeconds": 60 }))).await;
        lab.until_waiters("a", 1).await;
        wire.cut();
        lab.until_waiters("a", 0).await;
        let newest = lab.get("/api/v1/locks/a/history").await.body["events"][0].clone();
        assert_eq!(newest["kind"], "left");
        // It left, and did not just run out: a ticket lives for 10 s.
        assert!(newest["afterSeconds"].as_f64().unwrap() < 8.0, "{newest}");
    }
}

#[tokio::test]
async fn a_waiter_with_an_id_keeps_its_place_when_its_connection_breaks_and_finds_it_again() {
    let (labs, _folder) = both().await;
    for lab in labs {
        let held = lab.post(PATH, &json!({})).await.body["lock"].clone();
        let ask = json!({ "waitSeconds": 60, "leaseId": IDS[0], "holder": "back" });
        let first = Wire::send(&lab, "POST", PATH, Some(&ask)).await;
        lab.until_waiters("a", 1).await;
        let other = json!({ "waitSeconds": 60, "holder": "other" });
        let other = Wire::send(&lab, "POST", PATH, Some(&other)).await;
        lab.until_waiters("a", 2).await;
        first.cut();
        let mut second = Wire::send(&lab, "POST", PATH, Some(&ask)).await;
        let queue = lab.until_waiters("a", 2).await;
        assert_eq!(queue["waiters"][0]["holder"], "back");
        lab.post("/api/v1/locks/a/release", &lease(&held)).await;
        let answer = second.hear("}}").await;
        assert!(answer.contains(IDS[0]) && answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(lab.look("a").await["holder"], "back");
        other.cut();
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_late_takes_nothing_from_the_one_that_came_after_it() {
    let (labs, _folder) = both().await;
    for lab in labs {
        let held = lab.post(PATH, &json!({})).await.body["lock"].clone();
        let ask = json!({ "waitSeconds": 60, "leaseId": IDS[1] });
        let first = Wire::send(&lab, "POST", PATH, Some(&ask)).await;
        lab.until_waiters("a", 1).await;
        // The client has given the first up and asks again; the server does not know yet that the first is gone.
        let mut second = Wire::send(&lab, "POST", PATH, Some(&ask)).await;
        lab.post("/api/v1/locks/a/release", &lease(&held)).await;
        let answer = second.hear("}}").await;
        let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        first.cut();
        // Whatever the drop of the first has left to be done is done after this.
        lab.leasehold.clone().close().await;
        let now = lab.look("a").await;
        assert_eq!((&now["holders"][0]["leaseId"], &now["token"]), (&json!(IDS[1]), &body["lock"]["token"]));
        let renewed = lab.post("/api/v1/locks/a/renew", &lease(&body["lock"])).await;
        assert_eq!(renewed.status, 200, "{}", renewed.body);
    }
}

#[tokio::test]
async fn a_first_request_whose_patience_ends_leaves_the_place_to_the_second() {
    let (labs, _folder) = both().await;
    for lab in labs {
        lab.post(PATH, &json!({})).await;
        // Long enough for the second request to arrive meanwhile, on a busy machine, too.
        let short = json!({ "waitSeconds": 5, "leaseId": IDS[2] });
        let mut first = Wire::send(&lab, "POST", PATH, Some(&short)).await;
        lab.until_waiters("a", 1).await;
        let long = json!({ "waitSeconds": 60, "leaseId": IDS[2] });
        let second = Wire::send(&lab, "POST", PATH, Some(&long)).await;
        let answer = first.hear("LOCK_CONFLICT").await;
        assert!(answer.starts_with("HTTP/1.1 409"), "{answer}");
        let kinds = lab.get("/api/v1/locks/a/history").await.body;
        let left = kinds["events"].as_array().unwrap().iter().any(|event| event["kind"] == "left");
        assert!(!left, "{kinds}");
        second.cut();
    }
}

#[tokio::test]
async fn a_lease_whose_answer_nobody_reads_is_taken_back() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).build();
    let name = "a".parse().unwrap();
    let post = |body: Value| {
        let request =
            Request::post(PATH).header("host", "localhost").header("content-type", "application/json");
        server.router().oneshot(request.body(Body::from(body.to_string())).unwrap())
    };
    // The answer is there, and the connection is gone before it takes its bytes.
    let answer = post(json!({ "ttlSeconds": 600 })).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(leasehold.status(&name).await.unwrap().is_locked);
    drop(answer);
    leasehold.clone().close().await;
    assert!(!leasehold.status(&name).await.unwrap().is_locked);

    // With an id of its own the client can ask for it again, so it stays.
    let answer = post(json!({ "ttlSeconds": 600, "leaseId": IDS[3] })).await.unwrap();
    drop(answer);
    leasehold.clone().close().await;
    let status = leasehold.status(&name).await.unwrap();
    assert!(status.is_locked);
    let again = post(json!({ "leaseId": IDS[3] })).await.unwrap();
    let again = axum::body::to_bytes(again.into_body(), 10_000).await.unwrap();
    let again: Value = serde_json::from_slice(&again).unwrap();
    assert_eq!(again["lock"]["token"], status.token.get());

    // One that was read stays, whatever becomes of the connection.
    leasehold.clone().close().await;
    assert!(leasehold.status(&name).await.unwrap().is_locked);
}

#[tokio::test]
async fn a_crowd_of_waiters_that_is_cut_leaves_nothing_and_blocks_nobody() {
    let (labs, _folder) = both().await;
    for lab in labs {
        let held = lab.post(PATH, &json!({})).await.body["lock"].clone();
        let mut crowd = Vec::new();
        for _ in 0..50 {
            let ask = json!({ "waitSeconds": 60, "ttlSeconds": 600 });
            crowd.push(Wire::send(&lab, "POST", PATH, Some(&ask)).await);
        }
        lab.until_waiters("a", 50).await;
        // All at once: some will be served while others are still in the queue.
        let mine = lease(&held);
        let released = lab.post("/api/v1/locks/a/release", &mine);
        let (released, ()) = tokio::join!(released, async { crowd.into_iter().for_each(Wire::cut) });
        assert_eq!(released.status, 200);
        let next = lab.post(PATH, &json!({ "waitSeconds": 20, "holder": "next" })).await;
        // One of the crowd may have had its answer on the way when it was cut; then it holds the lock.
        if next.status != 200 {
            assert_eq!(lab.look("a").await["waiters"], json!([]), "{}", next.body);
        }
    }
}
