//! Waiting for locks: order, timeouts, and the end of the server.

use serde_json::{Value, json};

use crate::raw_connection::RawConnection;
use crate::test_server::TestServer;

const PATH: &str = "/api/v1/locks/a/acquire";

fn lease(lock: &Value) -> Value {
    json!({ "leaseId": lock["leaseId"], "token": lock["token"] })
}

#[tokio::test]
async fn waiters_are_served_in_the_order_of_priority_and_arrival() {
    for server in TestServer::each().await {
        let mut held = server.post(PATH, &json!({ "holder": "first" })).await.body["lock"].clone();
        let mut waiting = Vec::new();
        for (place, (holder, priority)) in [("b", 0), ("c", 0), ("d", 5), ("e", -5)].into_iter().enumerate() {
            let request =
                json!({ "holder": holder, "priority": priority, "waitSeconds": 30, "ttlSeconds": 60 });
            waiting.push((holder, RawConnection::send(&server, "POST", PATH, Some(&request)).await));
            server.wait_for_waiters("a", place + 1).await;
        }
        let listed = server.get("/api/v1/locks?status=waited").await;
        assert_eq!(listed.body["locks"][0]["waiters"].as_array().unwrap().len(), 4);
        for holder in ["d", "b", "c", "e"] {
            assert_eq!(server.post("/api/v1/locks/a/release", &lease(&held)).await.status, 200);
            let place = waiting.iter().position(|(waits, _)| *waits == holder).unwrap();
            let (_, mut connection) = waiting.remove(place);
            let answer = connection.read_until("}}").await;
            let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
            held = body["lock"].clone();
            assert_eq!(held["holder"], holder);
            // The whole TTL, not only that of a ticket.
            let now = server.get_lock("a").await;
            let (since, until) = (&now["holders"][0]["renewedAt"], &now["holders"][0]["expiresAt"]);
            // A renewal may have come in between.
            assert!(held["expiresAt"].as_str() <= until.as_str(), "{held} {now}");
            assert_eq!(seconds_between(since, until), 60);
        }
    }
}

fn seconds_between(from: &Value, to: &Value) -> i64 {
    // Compares minutes and seconds of times that are less than an hour apart.
    let seconds = |time: &Value| -> i64 {
        let time = time.as_str().unwrap();
        time[14..16].parse::<i64>().unwrap() * 60 + time[17..19].parse::<i64>().unwrap()
    };
    (seconds(to) - seconds(from)).rem_euclid(3600)
}

#[tokio::test]
async fn a_timed_out_wait_is_a_conflict_and_leaves_no_ticket() {
    for server in TestServer::each().await {
        server.post(PATH, &json!({ "holder": "ada" })).await;
        let reply = server.post(PATH, &json!({ "waitSeconds": 0.2 })).await;
        assert_eq!((reply.status, reply.code()), (409, "LOCK_CONFLICT"));
        assert!(reply.body["detail"].as_str().unwrap().contains("waited"), "{}", reply.body);
        assert_eq!(server.get_lock("a").await["waiters"], json!([]));
        let reply = server.post(PATH, &json!({ "strategy": "retry", "waitSeconds": 1.3 })).await;
        assert_eq!(reply.code(), "LOCK_CONFLICT");
        let kinds = server.get("/api/v1/locks/a/history").await.body;
        let queued = kinds["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "queued");
        assert_eq!(queued.count(), 1, "retrying draws no ticket");
    }
}

#[tokio::test]
async fn a_ticket_can_be_kept_between_requests() {
    for server in TestServer::each().await {
        let held = server.post(PATH, &json!({})).await.body["lock"].clone();
        let id = "01890a5d-ac96-774b-bcce-b302099a8059";
        let request = json!({ "leaseId": id, "waitSeconds": 0.1, "keepTicket": true, "holder": "patient" });
        assert_eq!(server.post(PATH, &request).await.code(), "LOCK_CONFLICT");
        let later = RawConnection::send(
            &server,
            "POST",
            PATH,
            Some(&json!({ "waitSeconds": 30, "holder": "later" })),
        )
        .await;
        let queue = server.wait_for_waiters("a", 2).await;
        assert_eq!(queue["waiters"][0]["holder"], "patient");
        let look = json!({ "leaseId": id, "keepTicket": true });
        assert_eq!(server.post(PATH, &look).await.code(), "LOCK_CONFLICT");
        server.post("/api/v1/locks/a/release", &lease(&held)).await;
        assert_eq!(server.get_lock("a").await["holder"], "patient");
        let mine = server.post(PATH, &request).await;
        assert_eq!((mine.status, &mine.body["lock"]["leaseId"]), (200, &json!(id)));
        later.disconnect();
    }
}

#[tokio::test]
async fn a_stopping_server_rejects_waiters() {
    for server in TestServer::each().await {
        server.post(PATH, &json!({})).await;
        let connection =
            RawConnection::send(&server, "POST", PATH, Some(&json!({ "waitSeconds": 60 }))).await;
        server.wait_for_waiters("a", 1).await;
        let leasehold = server.leasehold.clone();
        let _folder = server.stop().await;
        let answer = connection.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.contains("\"code\":\"DRAINING\"") && answer.contains("retry-after: 1"), "{answer}");
        leasehold.clone().close().await;
        let status = leasehold.locks().status("a").await.unwrap();
        assert!(status.waiters.is_empty(), "{status:?}");
    }
}

#[tokio::test]
async fn two_servers_over_one_store_hand_over_to_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let mut servers = Vec::new();
    for _ in 0..2 {
        let leasehold = leasehold::Leasehold::connect(&url).await.unwrap();
        servers.push(TestServer::over(leasehold, leasehold_server::Access::Open).await);
    }
    let held = servers[0].post(PATH, &json!({})).await.body["lock"].clone();
    let request = json!({ "waitSeconds": 30, "holder": "next" });
    let (taken, released) = tokio::join!(servers[1].post(PATH, &request), async {
        servers[0].wait_for_waiters("a", 1).await;
        servers[0].post("/api/v1/locks/a/release", &lease(&held)).await
    });
    assert_eq!((taken.status, released.status), (200, 200));
    assert_eq!(taken.body["lock"]["holder"], "next");
}
