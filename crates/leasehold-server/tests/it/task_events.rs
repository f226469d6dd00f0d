//! Event stream of tasks, and the history of a task.

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};

use crate::raw_connection::RawConnection;
use crate::test_server::TestServer;

const SETTINGS: &str = "[workflows.deploy]\nrunner = \"external\"";

/// Parses the data of a stream.
fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).unwrap())
        .collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["kind"].as_str().unwrap()).collect()
}

async fn add(server: &TestServer, queue: &str) -> String {
    let added = server.post(&format!("/api/v1/queues/{queue}/tasks"), &json!({ "payload": 1 })).await;
    assert!(added.status < 300, "{}", added.body);
    added.body["task"]["id"].as_str().unwrap_or_else(|| panic!("{}", added.body)).to_owned()
}

/// Leases one task of the queue, and settles it.
async fn settle(server: &TestServer, queue: &str, how: &str, mut body: Value) {
    let leased = server.post(&format!("/api/v1/queues/{queue}/lease"), &json!({})).await.body;
    let task = &leased["tasks"][0];
    body["token"] = task["token"].clone();
    let path = format!("/api/v1/tasks/{}/{how}", task["id"].as_str().unwrap());
    let settled = server.post(&path, &body).await;
    assert!(settled.status < 300, "{}", settled.body);
}

#[tokio::test]
async fn a_stream_has_the_new_events_of_a_queue() {
    for server in TestServer::each().await {
        add(&server, "mail").await;
        let mut connection = RawConnection::send(&server, "GET", "/api/v1/events?queue=mail", None).await;
        let begin = connection.read_until("retry: 1000").await;
        assert!(begin.contains("text/event-stream") && begin.contains("x-accel-buffering: no"), "{begin}");
        add(&server, "other").await;
        settle(&server, "mail", "complete", json!({})).await;
        let first = events(&connection.read_event("succeeded").await);
        assert_eq!(kinds(&first), ["started", "succeeded"]);
        let id = add(&server, "mail").await;
        settle(&server, "mail", "fail", json!({ "error": "no route to host", "final": true })).await;
        let all = events(&connection.read_event("\"failed\"").await);
        assert_eq!(kinds(&all[2..]), ["added", "started", "attempt_failed", "failed"]);
        assert!(all.iter().all(|event| event["queue"] == "mail"), "{all:?}");
        let end = all.last().unwrap();
        assert_eq!(
            (&end["task"], &end["attempt"], &end["reason"]),
            (&json!(id), &json!(1), &json!("no route to host"))
        );
        // The history has the same events.
        let history = server.get(&format!("/api/v1/tasks/{id}/history")).await.body;
        assert_eq!(history["events"].as_array().unwrap()[..], all[2..]);
        server.stop().await;
        // The stream ended properly when the server stopped.
        assert!(connection.read_to_end().await.ends_with("0\r\n\r\n"));
    }
}

#[tokio::test]
async fn executions_and_all_queues_have_streams_of_their_own() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::configured(leasehold, Access::Open, SETTINGS).await;
    let mut deploy = RawConnection::send(&server, "GET", "/api/v1/events?workflow=deploy", None).await;
    let mut all = RawConnection::send(&server, "GET", "/api/v1/events?tasks=true", None).await;
    for connection in [&mut deploy, &mut all] {
        connection.read_until("retry: ").await;
    }
    add(&server, "mail").await;
    let started = server.post("/api/v1/workflows/deploy/executions", &json!({})).await.body;
    let deploy = events(&deploy.read_event("added").await);
    assert_eq!((deploy.len(), &deploy[0]["execution"]), (1, &started["executionId"]));
    let all = events(&all.read_event("workflow/deploy").await);
    assert_eq!(
        all.iter().map(|event| event["queue"].as_str().unwrap()).collect::<Vec<_>>(),
        ["mail", "workflow/deploy"]
    );
}

#[tokio::test]
async fn filters_that_exclude_each_other_are_rejected() {
    let server = TestServer::open().await;
    for query in [
        "queue=mail&workflow=deploy",
        "queue=mail&tasks=true",
        "queue=mail&lock=a",
        "tasks=true&prefix=a",
        "queue=mail&lastEventId=2~0",
        "queue=%20",
        "workflow=a%0Ab",
        "tasks=1",
    ] {
        let reply = server.get(&format!("/api/v1/events?{query}")).await;
        assert_eq!((reply.status, reply.code()), (400, "INVALID"), "{query}: {}", reply.body);
    }
    assert_eq!(
        server.get("/api/v1/tasks/00000000-0000-7000-8000-000000000001/history").await.code(),
        "UNKNOWN_TASK"
    );
}

#[tokio::test]
async fn a_token_with_scopes_follows_its_queues_only() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let scopes = ["queues:mail", "workflows:deploy"].map(|scope| scope.parse().unwrap()).to_vec();
    let tokens = TokenStore::new(leasehold.clone());
    let token = tokens.create_scoped("ci", Role::Reader, None, scopes).await.unwrap().text;
    let server = TestServer::configured(leasehold, Access::Tokens(Vec::new()), SETTINGS).await;
    let status = async |query: &str| {
        let request = server.request(Method::GET, &format!("/api/v1/events{query}"));
        request.bearer_auth(&token).send().await.unwrap().status().as_u16()
    };
    for query in ["?queue=mail", "?workflow=deploy", "?queue=workflow/deploy"] {
        assert_eq!(status(query).await, 200, "{query}");
    }
    for query in ["", "?queue=other", "?queue=workflow/other", "?workflow=other", "?tasks=true", "?lock=mail"]
    {
        assert_eq!(status(query).await, 403, "{query}");
    }
}
