//! Pages of tasks, queues, executions, schedules, workers, the audit and the health of the store.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold::client::OutputStream;
use leasehold::model::{MAX_PAYLOAD, Payload, QueueName, TaskState};
use leasehold_server::Access;
use serde_json::json;

use super::browser::{Browser, closed_server};
use super::scene::Scene;
use crate::test_server::TestServer;

const FAILED: &str = "<b>it broke</b>";

/// Leases the next task of a queue and lets it fail for good.
async fn fail_one(server: &TestServer, queue: &str) -> String {
    let lease = server.post(&format!("/api/v1/queues/{queue}/lease"), &json!({})).await.body;
    let task = &lease["tasks"][0];
    let (id, token) = (task["id"].as_str().unwrap().to_owned(), task["token"].clone());
    let body = json!({ "token": token, "error": FAILED, "final": true });
    let reply = server.post(&format!("/api/v1/tasks/{id}/fail"), &body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    id
}

#[tokio::test]
async fn tasks_are_listed_by_state_with_the_reason_why_they_wait() {
    for server in TestServer::each().await {
        let tasks = server.leasehold.tasks().unwrap();
        for number in 0..3 {
            let payload = Payload::of(&json!({ "number": number })).unwrap();
            server.leasehold.enqueue_to("mail", payload).await.unwrap();
        }
        let browser = Browser::new(&server);
        let page = browser.get("/tasks").await;
        assert_eq!(page.status, 200, "{}", page.text);
        assert_eq!(page.text.matches("<tr id=\"task-").count(), 3);
        assert!(
            page.has("pending <span class=\"count\">3</span>")
                && page.has("No worker leases tasks from queue"),
            "{}",
            page.text
        );
        assert!(browser.get("/tasks?state=running").await.has("No tasks here"));
        assert!(browser.get("/tasks?queue=other").await.has("No tasks here"));
        assert_eq!(browser.get("/tasks?state=odd").await.status, 400);

        let page = browser.act("/queues/mail/pause", &[("reason", "maintenance <b>")]).await;
        assert_eq!((page.status, page.location()), (303, "/queues?notice=queue-paused"));
        let page = browser.get("/queues?notice=queue-paused").await;
        for text in [
            "The queue is paused.",
            "paused",
            "maintenance &lt;b&gt;",
            "Resume…",
            "/tasks?queue=mail&amp;state=pending",
        ] {
            assert!(page.has(text), "{text}: {}", page.text);
        }
        let queue = QueueName::new("mail").unwrap();
        assert!(tasks.queue(&queue).await.unwrap().paused.is_some());
        assert!(browser.get("/tasks").await.has("is paused: by anybody"), "the reason names the pause");
        assert!(browser.get("/").await.has("paused"));
        assert_eq!(browser.act("/queues/mail/resume", &[]).await.status, 303);
        assert!(tasks.queue(&queue).await.unwrap().paused.is_none());
        server.stop().await;
    }
}

#[tokio::test]
async fn a_task_shows_its_attempts_and_can_be_retried_and_cancelled() {
    for server in TestServer::each().await {
        let tasks = server.leasehold.tasks().unwrap();
        server.leasehold.enqueue_to("mail", Payload::of("<script>").unwrap()).await.unwrap();
        let id = fail_one(&server, "mail").await;
        let browser = Browser::new(&server);
        let page = browser.get(&format!("/tasks/{id}")).await;
        for text in [
            "failed",
            "&lt;b&gt;it broke",
            "&lt;script&gt;",
            "Retry…",
            "leasehold tasks why",
            "section class=\"why\"",
        ] {
            assert!(page.has(text), "{text}: {}", page.text);
        }
        assert!(!page.has("Cancel…") && page.text.matches("<script").count() == 1);
        let page = browser.act(&format!("/tasks/{id}/retry"), &[]).await;
        assert_eq!(page.location(), format!("/tasks/{id}?notice=retried"));
        assert_eq!(tasks.get(id.parse().unwrap()).await.unwrap().state, TaskState::Pending);
        // A pending task cannot be retried: the form shows why.
        let page = browser.act(&format!("/tasks/{id}/retry"), &[]).await;
        assert_eq!(page.status, 409, "{}", page.text);
        let page = browser.act(&format!("/tasks/{id}/cancel"), &[("reason", "not needed")]).await;
        assert_eq!(page.status, 303);
        assert_eq!(tasks.get(id.parse().unwrap()).await.unwrap().state, TaskState::Aborted);
        assert!(browser.get(&format!("/tasks/{id}")).await.has("not needed"));
        assert_eq!(browser.get("/tasks/01890a5d-ac96-774b-bcce-b302099a8057").await.status, 404);
        assert_eq!(browser.get("/tasks/nonsense").await.status, 400);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_large_payload_is_cut_and_can_be_downloaded() {
    let server = TestServer::open().await;
    let json = |text: &str| json!({ "number": 90_071_992_547_409_931_u64, "text": text }).to_string();
    let big = json(&"x".repeat(MAX_PAYLOAD - json("").len()));
    assert_eq!(big.len(), 1 << 20, "the largest payload");
    let added = server.leasehold.enqueue_to("mail", Payload::new(&big).unwrap()).await.unwrap();
    let id = added.id.to_string();
    let browser = Browser::new(&server);
    let page = browser.get(&format!("/tasks/{id}")).await;
    assert!(page.text.len() < 60_000 && page.has("90071992547409931"), "{}", page.text.len());
    let file = browser.get(&format!("/tasks/{id}/payload.json")).await;
    assert_eq!((file.status, file.text == big), (200, true));
    assert!(file.headers["content-disposition"].to_str().unwrap().starts_with("attachment"));
    assert_eq!(file.headers["content-type"], "application/json");
    assert_eq!(browser.get(&format!("/tasks/{id}/result.json")).await.status, 404);
}

#[tokio::test]
async fn the_output_of_attempts_is_shown_as_text() {
    let server = TestServer::open().await;
    server.leasehold.enqueue_to("mail", Payload::of("x").unwrap()).await.unwrap();
    let lease = server.post("/api/v1/queues/mail/lease", &json!({})).await.body;
    let id = lease["tasks"][0]["id"].as_str().unwrap().to_owned();
    let tasks = server.leasehold.tasks().unwrap();
    let task = tasks.get(id.parse().unwrap()).await.unwrap();
    let recorder = tasks.record_output(&task, 10_000).unwrap();
    recorder.add(OutputStream::Stdout, b"first line\n");
    recorder.add(OutputStream::Stderr, b"<i>warning</i>\n");
    recorder.finish().await;
    let page = Browser::new(&server).get(&format!("/tasks/{id}")).await;
    assert!(page.has("first line") && page.has("&lt;i&gt;warning&lt;/i&gt;"), "{}", page.text);
    assert!(page.has("class=\"stderr\""));
}

#[tokio::test]
async fn schedules_can_be_paused_and_resumed() {
    let server = TestServer::open().await;
    let browser = Browser::new(&server);
    assert!(browser.get("/schedules").await.has("No schedules"));
    let schedule = server.leasehold.schedule_to("nightly", "0 3 * * *", "mail", Payload::of("x").unwrap());
    schedule.zone("Europe/Berlin").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let page = browser.get("/schedules").await;
    for text in ["nightly", "0 3 * * *", "Europe/Berlin", "Pause…", "in <time"] {
        assert!(page.has(text), "{text}: {}", page.text);
    }
    assert_eq!(browser.act("/schedules/nightly/pause", &[]).await.status, 303);
    assert!(server.leasehold.schedules().unwrap().get("nightly").await.unwrap().paused);
    assert!(browser.get("/schedules").await.has("Resume…"));
    assert_eq!(browser.act("/schedules/nightly/resume", &[]).await.status, 303);
    assert_eq!(browser.act("/schedules/other/pause", &[]).await.status, 404);
}

#[tokio::test]
async fn executions_are_shown_and_aborted() {
    let toml = "[workflows.build]\nrunner = \"external\"\n";
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::configured(leasehold, Access::Open, toml).await;
    let started =
        server.post("/api/v1/workflows/build/executions", &json!({ "input": { "ref": "<b>" } })).await;
    let id = started.body["executionId"].as_str().unwrap_or_else(|| panic!("{}", started.body)).to_owned();
    let browser = Browser::new(&server);
    let list = browser.get("/executions").await;
    assert!(list.has(&format!("/executions/{id}")) && list.has("build"), "{}", list.text);
    assert!(browser.get("/executions?workflow=build&state=pending").await.has(&id));
    assert!(browser.get("/executions?workflow=other").await.has("No executions here"));
    let page = browser.get(&format!("/executions/{id}")).await;
    assert!(page.has("Abort…") && page.has("/locks/workflow%2Fbuild"), "{}", page.text);
    let task = page.text.split("href=\"/tasks/").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(browser.get(&format!("/tasks/{task}")).await.status, 200);
    let page = browser.act(&format!("/executions/{id}/abort"), &[("reason", "wrong branch")]).await;
    assert_eq!(page.status, 303, "{}", page.text);
    let page = browser.get(&format!("/executions/{id}")).await;
    assert!(page.has("aborted") && !page.has("Abort…"), "{}", page.text);
}

#[tokio::test]
async fn workers_are_listed_with_their_state() {
    let server = TestServer::open().await;
    let browser = Browser::new(&server);
    assert!(browser.get("/workers").await.has("No workers"));
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let worker =
        json!({ "id": id, "host": "<i>web</i>", "pid": 7, "version": "9", "queues": ["mail"], "slots": 3 });
    let lease = server.post("/api/v1/queues/mail/lease", &json!({ "worker": worker })).await;
    assert_eq!(lease.status, 200, "{}", lease.body);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let page = browser.get("/workers").await;
    for text in ["alive", "&lt;i&gt;web&lt;/i&gt;", "pid 7", "0 of 3"] {
        assert!(page.has(text), "{text}: {}", page.text);
    }
}

#[tokio::test]
async fn the_audit_lists_and_exports_events() {
    for server in TestServer::each().await {
        let holder = "=cmd|' /C calc'!A0";
        let guard = server.leasehold.lock("a,b").holder(holder).acquire().await.unwrap();
        let browser = Browser::new(&server);
        let token = guard.token().to_string();
        let fields = [("name", "a,b"), ("reason", "say \"why\""), ("token", token.as_str())];
        assert_eq!(browser.act("/locks/a%2Cb/force-release", &fields).await.status, 303);
        let page = browser.get("/audit").await;
        assert!(
            page.has("acquired") && page.has("forced") && page.has("say &quot;why&quot;"),
            "{}",
            page.text
        );
        let page = browser.get("/audit?kind=actions").await;
        assert!(page.has("forced") && page.text.matches("<tr>").count() == 2, "{}", page.text);
        let json = browser.get("/audit.ndjson").await;
        assert_eq!(json.headers["content-type"], "application/x-ndjson");
        let lines: Vec<serde_json::Value> =
            json.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["kind"], &lines[0]["by"]), (&json!("forced"), &json!("anybody")));
        let csv = browser.get("/audit.csv?kind=forced").await;
        let lines: Vec<&str> = csv.text.lines().collect();
        assert_eq!(lines.len(), 2, "{}", csv.text);
        assert!(
            lines[1].contains("\"a,b\"")
                && lines[1].contains(",'=cmd|")
                && lines[1].contains("\"say \"\"why\"\"\""),
            "{}",
            lines[1]
        );
        drop(guard);
        server.stop().await;
    }
}

#[tokio::test]
async fn the_health_page_has_the_checks_and_not_the_address_of_the_store() {
    let [_, file] = TestServer::each().await;
    let page = Browser::new(&file).get("/health").await;
    assert!(page.has("sqlite") && page.has("Round trip"), "{}", page.text);
    assert!(!page.has("store.db"), "{}", page.text);
    file.stop().await;
}

#[tokio::test]
async fn a_reader_sees_every_page_and_no_action() {
    let (mut server, [reader, _, _, admin]) = closed_server().await;
    server.use_token(&admin);
    server.leasehold.enqueue_to("mail", Payload::of("x").unwrap()).await.unwrap();
    let id = fail_one(&server, "mail").await;
    let guard = server.leasehold.lock("a").acquire().await.unwrap();
    let browser = Browser::new(&server);
    browser.sign_in(&reader).await;
    let task = format!("/tasks/{id}");
    for path in [
        "/",
        "/locks",
        "/locks/a",
        "/queues",
        "/tasks",
        &task,
        "/executions",
        "/schedules",
        "/workers",
        "/audit",
        "/health",
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        assert!(!page.has("data-dialog"), "{path}");
        assert_eq!(page.text.matches("method=\"post\"").count(), 1, "{path}: only the form for signing out");
    }
    assert_eq!(browser.get(&format!("{task}/retry")).await.status, 403);
    assert_eq!(browser.get("/queues/mail/pause").await.status, 403);
    drop(guard);
}

#[tokio::test]
async fn the_charts_have_three_lengths() {
    let scene = Scene::play().await;
    let server = TestServer::over(scene.leasehold.clone(), Access::Open).await;
    let browser = Browser::new(&server);
    for (path, begin, step) in [
        ("/", "24 h ago", 10),
        ("/?span=24h", "24 h ago", 10),
        ("/?span=6h", "6 h ago", 5),
        ("/?span=1h", "60 min ago", 2),
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.text.matches(begin).count(), 6, "{path}: {}", page.text);
        assert!(page.has(&format!("Acquisitions per {step} minutes")) && !page.has("No figures"), "{path}");
        assert!(!page.has("NaN"), "{path}");
        // The chart has values at its end.
        let chart = page.text.split("aria-label=\"Acquisitions").nth(1).unwrap();
        assert!(!chart.contains("acquired: now 0,"), "{path}: {}", &chart[..200]);
    }
    assert!(browser.get("/?span=1h").await.has("href=\"/?span=6h\""));
    assert!(browser.get("/?span=6h").await.has("href=\"/\""));
    assert_eq!(browser.get("/?span=2h").await.status, 400);
}
