//! A lease belongs to the token that acquired it: the ids that every reader sees grant no access.

use std::sync::Arc;

use leasehold::Leasehold;
use leasehold::model::{
    Acquire, Cancel, Holder, LeaseId, LeaseTasks, LockName, LockOp, LockRecord, LockRequest, NewTask,
    Outcome, Pause, Payload, QueueName, Reason, Retry, Task, TaskId, TaskOp, TaskState, TaskUpdate,
    Timestamp, Token, Ttl, WorkerId,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, NewDocument, Store};
use leasehold::testing::FaultyStore;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{Reply, TestServer};

/// Server with two workers and an operator.
struct Fixture {
    server: TestServer,
    ada: String,
    eve: String,
    operator: String,
}

impl Fixture {
    async fn new() -> Self {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let token_store = TokenStore::new(leasehold.clone());
        let token = async |name, role| token_store.create(name, role, None).await.unwrap().text;
        let ada = token("ada", Role::Worker).await;
        let eve = token("eve", Role::Worker).await;
        let operator = token("olga", Role::Operator).await;
        let server = TestServer::over(leasehold, Access::Tokens(Vec::new())).await;
        Self { server, ada, eve, operator }
    }

    async fn send(&self, token: &str, method: Method, path: &str, body: &Value) -> Reply {
        Reply::of(self.server.request(method, path).bearer_auth(token).json(body)).await
    }

    /// Waits until lock `a` has a waiter.
    async fn wait_for_waiter(&self) {
        self.wait_for_waiter_of("/api/v1/locks/a").await;
    }

    async fn wait_for_waiter_of(&self, lock: &str) {
        let waiters = async || {
            let reply = self.send(&self.ada, Method::GET, lock, &json!({})).await.body;
            reply["waiters"].as_array().map_or(0, Vec::len)
        };
        while waiters().await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn post(&self, token: &str, path: &str, body: &Value) -> Reply {
        self.send(token, Method::POST, path, body).await
    }

    /// Opens the server as a store, with this token.
    async fn store(&self, token: &str) -> Arc<dyn Store> {
        let url = self.server.base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap().store()
    }

    /// Lets Ada's token hold a lock and wait for it, with a waiter without a token behind. Returns the ids
    /// of her lease and her ticket.
    async fn hold_and_wait(&self, name: &LockName) -> [LeaseId; 2] {
        let ids = [1, 2, 3].map(|number| LeaseId::from_uuid(Uuid::from_u128(number)));
        let store = self.server.leasehold.store();
        for (id, token) in ids.into_iter().zip([Some("ada"), Some("ada"), None]) {
            let op = acquire(id, token, Some(Ttl::from_secs(600)));
            store.locks().apply(name, &op).await.unwrap();
        }
        let record = self.record(name).await;
        assert_eq!((record.holders.len(), record.waiters.len()), (1, 2));
        [ids[0], ids[1]]
    }

    /// Returns the record of a lock in the server's store. Every change of a record changes its version.
    async fn record(&self, name: &LockName) -> LockRecord {
        self.server.leasehold.store().locks().get(name).await.unwrap().unwrap()
    }
}

/// Returns an acquire as the server stores it for a caller with this token.
fn acquire(id: LeaseId, token: Option<&str>, queue: Option<Ttl>) -> LockOp {
    let holder = Holder::new("client").unwrap();
    let mut request = LockRequest::new(id, holder, Ttl::from_secs(600));
    if let Some(token) = token {
        request.metadata.set("token", token).unwrap();
    }
    LockOp::Acquire(Acquire { request: Arc::new(request), queue, steal_after: None })
}

#[tokio::test]
async fn a_seen_id_renews_releases_and_doubles_nothing() {
    let fixture = Fixture::new().await;
    let held = fixture
        .post(&fixture.ada, "/api/v1/locks/a/acquire", &json!({ "metadata": { "token": "eve" } }))
        .await;
    let lease = json!({ "leaseId": held.body["lock"]["leaseId"], "token": held.body["lock"]["token"] });
    let same = json!({ "leaseId": lease["leaseId"] });
    for (path, body) in [("renew", &lease), ("release", &lease), ("acquire", &same)] {
        let reply = fixture.post(&fixture.eve, &format!("/api/v1/locks/a/{path}"), body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{path}: {}", reply.body);
        assert!(reply.body["detail"].as_str().unwrap().contains("'ada'"), "{}", reply.body);
    }
    // The lease still belongs to the token that acquired it, not to the one in its metadata.
    let look = fixture.send(&fixture.ada, Method::GET, "/api/v1/locks/a", &json!({})).await.body;
    assert_eq!(look["holders"][0]["metadata"]["token"], "ada", "{look}");
    assert_eq!(fixture.post(&fixture.ada, "/api/v1/locks/a/renew", &lease).await.status, 200);
    assert_eq!(fixture.post(&fixture.ada, "/api/v1/locks/a/acquire", &same).await.status, 200);
    // An operator may release it.
    assert_eq!(fixture.post(&fixture.operator, "/api/v1/locks/a/release", &lease).await.status, 200);
}

/// With the id of a waiter: when the lock becomes free, only the waiter gets it.
#[tokio::test]
async fn the_id_of_a_waiter_makes_no_second_holder() {
    let fixture = Fixture::new().await;
    let held = fixture.post(&fixture.ada, "/api/v1/locks/a/acquire", &json!({})).await.body["lock"].clone();
    let id = "01890a5d-ac96-774b-bcce-b302099a8058";
    let wait = json!({ "leaseId": id, "waitSeconds": 20 });
    let (waiter, thief, released) = tokio::join!(
        fixture.post(&fixture.ada, "/api/v1/locks/a/acquire", &wait),
        async {
            fixture.wait_for_waiter().await;
            fixture.post(&fixture.eve, "/api/v1/locks/a/acquire", &wait).await
        },
        async {
            fixture.wait_for_waiter().await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let lease = json!({ "leaseId": held["leaseId"], "token": held["token"] });
            fixture.post(&fixture.ada, "/api/v1/locks/a/release", &lease).await
        },
    );
    assert_eq!(released.status, 200);
    assert_ne!(thief.status, 200, "{}", thief.body);
    // If the other request was granted first, the waiter may have to retry; with its own id it gets
    // the lock.
    let again = json!({ "leaseId": id });
    let waiter = if waiter.status == 200 {
        waiter
    } else {
        fixture.post(&fixture.ada, "/api/v1/locks/a/acquire", &again).await
    };
    assert_eq!(waiter.status, 200, "{}", waiter.body);
}

/// With the id of a waiter for another lock: each waiter is granted its own lock and no other.
#[tokio::test]
async fn the_id_of_a_waiter_for_another_lock_changes_nothing() {
    let fixture = Fixture::new().await;
    let [a, b] = ["a", "b"].map(|lock| format!("/api/v1/locks/{lock}"));
    let held = async |lock: &str| {
        fixture.post(&fixture.ada, &format!("{lock}/acquire"), &json!({})).await.body["lock"].clone()
    };
    let (held_a, held_b) = (held(&a).await, held(&b).await);
    let release = async |lock: &str, held: &Value| {
        let lease = json!({ "leaseId": held["leaseId"], "token": held["token"] });
        assert_eq!(fixture.post(&fixture.ada, &format!("{lock}/release"), &lease).await.status, 200);
    };
    let wait = json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8060", "waitSeconds": 20 });
    let acquire =
        async |token: &str, lock: &str| fixture.post(token, &format!("{lock}/acquire"), &wait).await;
    let (first, second, ()) = tokio::join!(
        async {
            // Eve's request is older, so Ada's request is the newest one with this id.
            fixture.wait_for_waiter_of(&b).await;
            acquire(&fixture.ada, &a).await
        },
        acquire(&fixture.eve, &b),
        async {
            fixture.wait_for_waiter_of(&b).await;
            fixture.wait_for_waiter_of(&a).await;
            release(&b, &held_b).await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            release(&a, &held_a).await;
        },
    );
    for (reply, name, before) in [(first, "a", &held_a), (second, "b", &held_b)] {
        assert_eq!((reply.status, &reply.body["lock"]["name"]), (200, &json!(name)), "{}", reply.body);
        assert!(reply.body["lock"]["token"].as_u64() > before["token"].as_u64(), "{}", reply.body);
        let look =
            fixture.send(&fixture.operator, Method::GET, &format!("/api/v1/locks/{name}"), &json!({})).await;
        assert_eq!(look.body["holders"][0]["token"], reply.body["lock"]["token"], "{}", look.body);
    }
}

/// An acquire with a seen id is rejected before the store extends the lease, or changes or removes the
/// ticket.
#[tokio::test]
async fn a_seen_id_extends_no_lease_and_changes_no_ticket() {
    let fixture = Fixture::new().await;
    let name = LockName::new("a").unwrap();
    let [lease, ticket] = fixture.hold_and_wait(&name).await;
    let before = fixture.record(&name).await;
    for id in [lease, ticket] {
        for wait in [0, 1] {
            let body = json!({ "leaseId": id, "waitSeconds": wait });
            let reply = fixture.post(&fixture.eve, "/api/v1/locks/a/acquire", &body).await;
            assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{}", reply.body);
            assert_eq!(fixture.record(&name).await, before);
        }
    }
    let eve = fixture.store(&fixture.eve).await;
    for id in [lease, ticket] {
        for queue in [None, Some(Ttl::from_millis(1))] {
            let refused = eve.locks().apply(&name, &acquire(id, Some("ada"), queue)).await.unwrap_err();
            assert_eq!(refused.code(), "STORE_NOT_PERMITTED", "{refused}");
            assert_eq!(fixture.record(&name).await, before);
        }
    }
    // Ada refreshes her own ticket, also when the server has its owner in its cache.
    let ada = fixture.store(&fixture.ada).await;
    for _ in 0..2 {
        let outcome = ada.locks().apply(&name, &acquire(ticket, None, Some(Ttl::from_secs(600)))).await;
        assert!(matches!(&outcome, Ok(Outcome::Queued(queued)) if queued.ahead == 0), "{outcome:?}");
    }
    let refused = eve.locks().apply(&name, &acquire(ticket, None, None)).await.unwrap_err();
    assert_eq!(refused.code(), "STORE_NOT_PERMITTED", "{refused}");
    assert_eq!(fixture.record(&name).await.waiters.len(), 2);
}

#[tokio::test]
async fn stealing_is_for_operators() {
    let fixture = Fixture::new().await;
    assert_eq!(
        fixture.post(&fixture.ada, "/api/v1/locks/a/acquire", &json!({ "ttlSeconds": 600 })).await.status,
        200
    );
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let steal = json!({ "strategy": "stealStale", "staleAfterSeconds": 0.001 });
    assert_eq!(fixture.post(&fixture.eve, "/api/v1/locks/a/acquire", &steal).await.code(), "FORBIDDEN");
    assert_eq!(fixture.post(&fixture.operator, "/api/v1/locks/a/acquire", &steal).await.status, 200);
}

/// Over the store protocol, which the library and the CLI use.
#[tokio::test]
async fn the_store_protocol_has_the_same_owners() {
    let fixture = Fixture::new().await;
    let client = async |token: &str| {
        let url = fixture.server.base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap()
    };
    let (ada, eve, operator) =
        (client(&fixture.ada).await, client(&fixture.eve).await, client(&fixture.operator).await);
    let name = LockName::new("a").unwrap();
    let guard = ada.lock("a").acquire().await.unwrap();
    let (id, token) = (guard.lease_id(), guard.token());
    let refused = |error: leasehold::Error| assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    refused(eve.locks().release(&name, id, token).await.unwrap_err());
    refused(eve.locks().renew(&name, id, token, None).await.unwrap_err());
    refused(eve.lock("a").lease_id(id).acquire().await.unwrap_err());
    refused(eve.lock("a").steal_stale(std::time::Duration::from_millis(1)).acquire().await.unwrap_err());
    guard.confirm().await.unwrap();
    assert_eq!(ada.locks().status(&name).await.unwrap().token, token);
    guard.release().await.unwrap();
    // The history has the token beside the name that the caller claims.
    let guard = ada.lock("a").acquire().await.unwrap();
    let by = Holder::new("auditor").unwrap();
    operator.locks().request_release(&name, by, Some(Reason::new("now").unwrap())).await.unwrap();
    let asked = guard.release_requested().await;
    assert_eq!(asked.by.as_str(), "auditor via olga");
}

/// Over the store protocol, tasks and queues have the token beside the name that the caller claims.
#[tokio::test]
async fn interventions_on_tasks_name_the_token() {
    let fixture = Fixture::new().await;
    let operator = fixture.store(&fixture.operator).await;
    let tasks = operator.tasks().unwrap();
    let (id, queue) = (TaskId::from_uuid(Uuid::from_u128(1)), QueueName::new("mail").unwrap());
    tasks.enqueue(&[NewTask::new(id, queue.clone(), Payload::default())]).await.unwrap();
    let auditor = || Holder::new("auditor").unwrap();
    let at = Timestamp::from_micros(1);
    assert!(tasks.pause(&queue, Some(Pause { by: auditor(), reason: None, at })).await.unwrap());
    let paused = tasks.queue(&queue).await.unwrap().unwrap().paused.unwrap();
    assert_eq!(paused.by.as_str(), "auditor via olga");

    let change = async |op: TaskOp| tasks.change(id, &op).await.unwrap().unwrap().1;
    let last = |task: &Task| task.events.last().and_then(|event| event.by.clone()).unwrap().to_string();
    let expected = tasks.get(id).await.unwrap().unwrap().version;
    let update = TaskUpdate {
        expected,
        by: Some(auditor()),
        payload: Some(Payload::default()),
        ..TaskUpdate::default()
    };
    let updated = change(TaskOp::Update(update.clone())).await;
    assert_eq!(last(&updated), "auditor via olga");
    let nameless = TaskUpdate { expected: updated.version, by: None, ..update };
    assert_eq!(last(&change(TaskOp::Update(nameless)).await), "olga");
    let cancelled = change(TaskOp::Cancel(Cancel { by: auditor(), reason: None })).await;
    assert_eq!(last(&cancelled), "auditor via olga");
    assert_eq!(cancelled.cancel.unwrap().by.as_str(), "auditor via olga");
    assert_eq!(last(&change(TaskOp::Retry(Retry { by: auditor() })).await), "auditor via olga");
}

/// A token with too many concurrent requests is rejected, and other tokens are not.
#[tokio::test]
async fn one_token_cannot_exhaust_the_server() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let token_store = TokenStore::new(leasehold.clone());
    let token = async |name| token_store.create(name, Role::Worker, None).await.unwrap().text;
    let (ada, eve) = (token("ada").await, token("eve").await);
    let mut limits = leasehold_server::Limits::default();
    limits.requests_per_token = 3;
    let server = TestServer::with(leasehold, Access::Tokens(Vec::new()), limits).await;
    let ask = async |token: &str, wait: u32| {
        let body = json!({ "waitSeconds": wait });
        Reply::of(server.request(Method::POST, "/api/v1/locks/a/acquire").bearer_auth(token).json(&body))
            .await
    };
    assert_eq!(ask(&ada, 0).await.status, 200);
    let waiting = async { tokio::join!(ask(&eve, 3), ask(&eve, 3), ask(&eve, 3)) };
    let refused = async {
        let mut refused = ask(&eve, 0).await;
        while refused.status != 429 {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            refused = ask(&eve, 0).await;
        }
        let other = ask(&ada, 0).await;
        (refused, other)
    };
    let (_, (refused, other)) = tokio::join!(waiting, refused);
    assert_eq!(refused.code(), "RATE_LIMITED");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(other.status, 409, "{}", other.body);
    assert_eq!(ask(&eve, 0).await.status, 409);
}

#[tokio::test]
async fn a_seen_token_of_a_task_settles_nothing() {
    let fixture = Fixture::new().await;
    let add = json!({ "payload": 1 });
    let id = fixture.post(&fixture.ada, "/api/v1/queues/mail/tasks", &add).await.body["task"]["id"].clone();
    let (id, lease) = (id.as_str().unwrap(), "/api/v1/queues/mail/lease");
    let worker = json!({ "worker": { "id": "01890a5d-ac96-774b-bcce-b302099a8057" } });
    let leased = fixture.post(&fixture.ada, lease, &worker).await.body;
    let seen = fixture.send(&fixture.eve, Method::GET, &format!("/api/v1/tasks/{id}"), &json!({})).await.body;
    assert_eq!(seen["worker"], leased["worker"], "{seen}");
    let token = json!({ "token": seen["token"] });
    let with = |more: Value| {
        let mut body = token.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let many = |kind: Value| json!({ "tasks": [with(json!({ "id": id })), ], "worker": kind });
    let eve_as_ada = json!({ "id": leased["worker"] });
    let settle = json!({ "tasks": [with(json!({ "id": id, "outcome": "complete" }))] });
    for (path, body) in [
        (format!("{id}/complete"), with(json!({ "result": "forged" }))),
        (format!("{id}/fail"), token.clone()),
        (format!("{id}/release"), token.clone()),
        (format!("{id}/abort"), token.clone()),
        (format!("{id}/heartbeat"), token.clone()),
        ("heartbeat".to_owned(), many(eve_as_ada.clone())),
        ("settle".to_owned(), settle),
    ] {
        let reply = fixture.post(&fixture.eve, &format!("/api/v1/tasks/{path}"), &body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{path}: {}", reply.body);
    }
    // With the worker id of another token she is a different worker and can deregister only herself.
    let other = fixture.post(&fixture.eve, lease, &json!({ "worker": eve_as_ada })).await.body;
    assert_ne!(other["worker"], leased["worker"]);
    let gone = format!("/api/v1/workers/{}", leased["worker"].as_str().unwrap());
    assert_eq!(fixture.send(&fixture.eve, Method::DELETE, &gone, &json!({})).await.status, 200);
    let workers = fixture.send(&fixture.ada, Method::GET, "/api/v1/workers", &json!({})).await.body;
    assert!(
        workers["workers"].as_array().unwrap().iter().any(|one| one["id"] == leased["worker"]),
        "{workers}"
    );
    // The task is still leased to Ada's worker, under the id that she sent and the id that the
    // server returned.
    for worker in [&worker["worker"], &json!({ "id": leased["worker"] })] {
        let beat = fixture.post(&fixture.ada, "/api/v1/tasks/heartbeat", &many(worker.clone())).await;
        assert_eq!(beat.body["tasks"][0]["kept"], true, "{}", beat.body);
    }
    assert_eq!(fixture.post(&fixture.ada, &format!("/api/v1/tasks/{id}/complete"), &token).await.status, 200);
}

/// The store grants the lease after the server has checked the owner and before it settles.
#[tokio::test]
async fn a_guessed_token_settles_no_later_lease() {
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let store = FaultyStore::new(Arc::new(MemoryStore::with_clock(Clock::manual(now))));
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let eve = TokenStore::new(leasehold.clone()).create("eve", Role::Worker, None).await.unwrap().text;
    let builder = Server::builder(leasehold.clone()).access(Access::Tokens(Vec::new()));
    let server = TestServer::serve(builder.without_maintenance().build(), leasehold).await;
    let tasks = store.tasks().unwrap();
    let (id, queue) = (TaskId::from_uuid(Uuid::from_u128(1)), QueueName::new("mail").unwrap());
    tasks.enqueue(&[NewTask::new(id, queue.clone(), Payload::default())]).await.unwrap();
    // The token of a first lease is the time of the store.
    let guess = Token::new(now.as_micros()).unwrap();
    let body = json!({ "tasks": [{ "id": id, "token": guess, "outcome": "complete" }] });
    store.hold_settlements(true);
    let (settled, leased) = tokio::join!(
        Reply::of(server.request(Method::POST, "/api/v1/tasks/settle").bearer_auth(&eve).json(&body)),
        async {
            while store.task_calls().1 == 0 {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let worker = WorkerId::from_uuid(Uuid::from_u128(2));
            let request = LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(30));
            let leased = tasks.lease(&request).await.unwrap().tasks.remove(0);
            store.hold_settlements(false);
            leased
        },
    );
    assert_eq!(leased.token, guess);
    assert_eq!(
        (settled.status, &settled.body["tasks"][0]["settled"]),
        (200, &json!(false)),
        "{}",
        settled.body
    );
    assert_eq!(tasks.get(id).await.unwrap().unwrap().state, TaskState::Running);
}

/// Over the store protocol, and after a restart of the server, whose cache of owners is empty.
#[tokio::test]
async fn tasks_over_the_store_protocol_have_the_same_owners() {
    use leasehold::model::{AttemptResult, Settle};
    let fixture = Fixture::new().await;
    let client = async |base: &str, token: &str| {
        let url = base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap().store()
    };
    let ada = client(&fixture.server.base, &fixture.ada).await;
    let add = json!({ "payload": 1 });
    assert_eq!(fixture.post(&fixture.ada, "/api/v1/queues/mail/tasks", &add).await.status, 201);
    let worker = ada.new_worker_id();
    let queue = QueueName::new("mail").unwrap();
    let request = LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(30));
    let task = ada.tasks().unwrap().lease(&request).await.unwrap().tasks.remove(0);
    assert_eq!(task.worker, Some(worker), "the client knows its tag");
    let settle = [Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) }];
    let second = TestServer::over(fixture.server.leasehold.clone(), Access::Tokens(Vec::new())).await;
    for base in [&fixture.server.base, &second.base] {
        let eve = client(base, &fixture.eve).await;
        let refused = eve.tasks().unwrap().settle(&settle).await.unwrap_err();
        assert_eq!(refused.code(), "STORE_NOT_PERMITTED", "{refused}");
    }
    let ada = client(&second.base, &fixture.ada).await;
    assert_eq!(ada.tasks().unwrap().settle(&settle).await.unwrap().len(), 1);
    let many = vec![settle[0].clone(); 10_001];
    assert_eq!(ada.tasks().unwrap().settle(&many).await.unwrap_err().code(), "INVALID");
}

/// Every reader sees the id and the token of a task, and so the key of its output.
#[tokio::test]
async fn a_seen_token_of_a_task_writes_no_output() {
    use leasehold::model::{AttemptResult, Settle};
    let fixture = Fixture::new().await;
    let (ada, eve) = (fixture.store(&fixture.ada).await, fixture.store(&fixture.eve).await);
    let operator = fixture.store(&fixture.operator).await;
    let (id, queue) = (TaskId::from_uuid(Uuid::from_u128(1)), QueueName::new("mail").unwrap());
    ada.tasks().unwrap().enqueue(&[NewTask::new(id, queue.clone(), Payload::default())]).await.unwrap();
    let lease = async |store: &Arc<dyn Store>| {
        let request = LeaseTasks::new(store.new_worker_id(), vec![queue.clone()], 1, Ttl::from_secs(600));
        store.tasks().unwrap().lease(&request).await.unwrap().tasks.remove(0).token
    };
    let write_to = async |store: &Arc<dyn Store>, key: &str| {
        let written = store.documents().unwrap().put_if(key, None, NewDocument::new("{}")).await;
        written.map_or_else(|error| error.code(), |_| "OK")
    };
    let write = async |store: &Arc<dyn Store>, token: Token| {
        write_to(store, &format!("output/{id}/{:020}", token.get())).await
    };
    let refused = "STORE_NOT_PERMITTED";
    let first = lease(&ada).await;
    for (store, expected) in [(&eve, refused), (&ada, "OK"), (&operator, "OK")] {
        assert_eq!(write(store, first).await, expected);
    }
    let guess = Token::new(first.get() + 1).unwrap();
    assert_eq!(write(&ada, guess).await, refused);
    for rest in ["note".to_owned(), format!("{id}/{first}"), format!("{id}/{:020}/2", first.get())] {
        assert_eq!(write_to(&ada, &format!("output/{rest}")).await, "INVALID", "{rest}");
    }
    // The last output may arrive after the settlement, and after the lease of the next worker.
    let settle = [Settle { id, token: first, result: AttemptResult::Return }];
    ada.tasks().unwrap().settle(&settle).await.unwrap();
    assert_eq!(write(&ada, first).await, "OK");
    let second = lease(&eve).await;
    assert!(second > first);
    let other = TestServer::over(fixture.server.leasehold.clone(), Access::Tokens(Vec::new())).await;
    let connect = async |token: &str| {
        let url = other.base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap().store()
    };
    let (ada, eve) = (connect(&fixture.ada).await, connect(&fixture.eve).await);
    for (store, token, expected) in
        [(&ada, first, "OK"), (&eve, first, refused), (&ada, second, refused), (&eve, second, "OK")]
    {
        assert_eq!(write(store, token).await, expected, "{token}");
    }
}

#[tokio::test]
async fn a_seen_terraform_id_unlocks_and_writes_nothing() {
    let fixture = Fixture::new().await;
    let info =
        json!({ "ID": "8f1a0c8e-0000-4000-8000-000000000001", "Who": "ada@laptop", "Operation": "apply" });
    let eves = json!({ "ID": info["ID"], "Who": "eve@laptop" });
    assert_eq!(fixture.post(&fixture.ada, "/tf/prod/lock", &info).await.status, 200);
    assert_eq!(fixture.send(&fixture.eve, Method::DELETE, "/tf/prod/lock", &eves).await.status, 403);
    assert_eq!(
        fixture.post(&fixture.eve, "/tf/prod/lock", &eves).await.status,
        423,
        "the same ID is not the same lock"
    );
    let state = json!({ "version": 4, "serial": 1, "lineage": "x", "terraform_version": "1.9.0" });
    let write = format!("/tf/prod?ID={}", info["ID"].as_str().unwrap());
    assert_eq!(fixture.post(&fixture.eve, &write, &state).await.status, 403);
    assert_eq!(fixture.post(&fixture.ada, &write, &state).await.status, 200);
    assert_eq!(fixture.send(&fixture.ada, Method::DELETE, "/tf/prod/lock", &info).await.status, 200);
}

#[tokio::test]
async fn a_seen_terraform_id_extends_no_lease_and_removes_no_ticket() {
    let fixture = Fixture::new().await;
    let name = LockName::new("tf/prod").unwrap();
    let ids = fixture.hold_and_wait(&name).await;
    let before = fixture.record(&name).await;
    for id in ids {
        let reply =
            fixture.post(&fixture.eve, "/tf/prod/lock", &json!({ "ID": id, "Who": "eve@laptop" })).await;
        assert_eq!((reply.status, &reply.body["ID"]), (423, &json!(id)), "{}", reply.body);
        assert_eq!(fixture.record(&name).await, before);
    }
}
