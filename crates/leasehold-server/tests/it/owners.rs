//! What a token took belongs to it: the ids that every reader sees open nothing.

use leasehold::Leasehold;
use leasehold::model::{Holder, LockName, Reason};
use leasehold_server::access::TokenDesk;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::{Value, json};

use crate::lab::{Lab, Reply};

/// A server with two workers and an operator.
struct Town {
    lab: Lab,
    ada: String,
    eve: String,
    operator: String,
}

impl Town {
    async fn new() -> Self {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let desk = TokenDesk::new(leasehold.clone());
        let token = async |name, role| desk.create(name, role, None).await.unwrap().text;
        let ada = token("ada", Role::Worker).await;
        let eve = token("eve", Role::Worker).await;
        let operator = token("olga", Role::Operator).await;
        let lab = Lab::over(leasehold, Access::Tokens(Vec::new())).await;
        Self { lab, ada, eve, operator }
    }

    async fn ask(&self, token: &str, method: Method, path: &str, body: &Value) -> Reply {
        Reply::of(self.lab.request(method, path).bearer_auth(token).json(body)).await
    }

    /// Waits until a caller waits for lock `a`.
    async fn until_one_waits(&self) {
        self.until_one_waits_for("/api/v1/locks/a").await;
    }

    async fn until_one_waits_for(&self, lock: &str) {
        let waiters = async || {
            let reply = self.ask(&self.ada, Method::GET, lock, &json!({})).await.body;
            reply["waiters"].as_array().map_or(0, Vec::len)
        };
        while waiters().await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn post(&self, token: &str, path: &str, body: &Value) -> Reply {
        self.ask(token, Method::POST, path, body).await
    }
}

#[tokio::test]
async fn a_seen_id_renews_releases_and_doubles_nothing() {
    let town = Town::new().await;
    let held =
        town.post(&town.ada, "/api/v1/locks/a/acquire", &json!({ "metadata": { "token": "eve" } })).await;
    let lease = json!({ "leaseId": held.body["lock"]["leaseId"], "token": held.body["lock"]["token"] });
    let same = json!({ "leaseId": lease["leaseId"] });
    for (path, body) in [("renew", &lease), ("release", &lease), ("acquire", &same)] {
        let reply = town.post(&town.eve, &format!("/api/v1/locks/a/{path}"), body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{path}: {}", reply.body);
        assert!(reply.body["detail"].as_str().unwrap().contains("'ada'"), "{}", reply.body);
    }
    // It is still hers, under the token that took it, whatever she says.
    let look = town.ask(&town.ada, Method::GET, "/api/v1/locks/a", &json!({})).await.body;
    assert_eq!(look["holders"][0]["metadata"]["token"], "ada", "{look}");
    assert_eq!(town.post(&town.ada, "/api/v1/locks/a/renew", &lease).await.status, 200);
    assert_eq!(town.post(&town.ada, "/api/v1/locks/a/acquire", &same).await.status, 200);
    // An operator may.
    assert_eq!(town.post(&town.operator, "/api/v1/locks/a/release", &lease).await.status, 200);
}

/// With the id of a waiter: when the lock comes free, the waiter has it and nobody else.
#[tokio::test]
async fn the_id_of_a_waiter_makes_no_second_holder() {
    let town = Town::new().await;
    let held = town.post(&town.ada, "/api/v1/locks/a/acquire", &json!({})).await.body["lock"].clone();
    let id = "01890a5d-ac96-774b-bcce-b302099a8058";
    let wait = json!({ "leaseId": id, "waitSeconds": 20 });
    let (waiter, thief, released) = tokio::join!(
        town.post(&town.ada, "/api/v1/locks/a/acquire", &wait),
        async {
            town.until_one_waits().await;
            town.post(&town.eve, "/api/v1/locks/a/acquire", &wait).await
        },
        async {
            town.until_one_waits().await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            let lease = json!({ "leaseId": held["leaseId"], "token": held["token"] });
            town.post(&town.ada, "/api/v1/locks/a/release", &lease).await
        },
    );
    assert_eq!(released.status, 200);
    assert_ne!(thief.status, 200, "{}", thief.body);
    // If the thief was served first, the waiter may have to ask again: with its own id it has the lock.
    let again = json!({ "leaseId": id });
    let waiter = if waiter.status == 200 {
        waiter
    } else {
        town.post(&town.ada, "/api/v1/locks/a/acquire", &again).await
    };
    assert_eq!(waiter.status, 200, "{}", waiter.body);
}

/// With the id of a waiter, for another lock: each waiter is granted its own lock and no other.
#[tokio::test]
async fn the_id_of_a_waiter_for_another_lock_changes_nothing() {
    let town = Town::new().await;
    let [a, b] = ["a", "b"].map(|lock| format!("/api/v1/locks/{lock}"));
    let held = async |lock: &str| {
        town.post(&town.ada, &format!("{lock}/acquire"), &json!({})).await.body["lock"].clone()
    };
    let (held_a, held_b) = (held(&a).await, held(&b).await);
    let release = async |lock: &str, held: &Value| {
        let lease = json!({ "leaseId": held["leaseId"], "token": held["token"] });
        assert_eq!(town.post(&town.ada, &format!("{lock}/release"), &lease).await.status, 200);
    };
    let wait = json!({ "leaseId": "01890a5d-ac96-774b-bcce-b302099a8060", "waitSeconds": 20 });
    let acquire = async |token: &str, lock: &str| town.post(token, &format!("{lock}/acquire"), &wait).await;
    let (first, second, ()) = tokio::join!(
        async {
            // Eve's request is the older one: the place of Ada's is the last under this id.
            town.until_one_waits_for(&b).await;
            acquire(&town.ada, &a).await
        },
        acquire(&town.eve, &b),
        async {
            town.until_one_waits_for(&b).await;
            town.until_one_waits_for(&a).await;
            release(&b, &held_b).await;
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            release(&a, &held_a).await;
        },
    );
    for (reply, name, before) in [(first, "a", &held_a), (second, "b", &held_b)] {
        assert_eq!((reply.status, &reply.body["lock"]["name"]), (200, &json!(name)), "{}", reply.body);
        assert!(reply.body["lock"]["token"].as_u64() > before["token"].as_u64(), "{}", reply.body);
        let look = town.ask(&town.operator, Method::GET, &format!("/api/v1/locks/{name}"), &json!({})).await;
        assert_eq!(look.body["holders"][0]["token"], reply.body["lock"]["token"], "{}", look.body);
    }
}

#[tokio::test]
async fn stealing_is_for_operators() {
    let town = Town::new().await;
    assert_eq!(
        town.post(&town.ada, "/api/v1/locks/a/acquire", &json!({ "ttlSeconds": 600 })).await.status,
        200
    );
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    let steal = json!({ "strategy": "stealStale", "staleAfterSeconds": 0.001 });
    assert_eq!(town.post(&town.eve, "/api/v1/locks/a/acquire", &steal).await.code(), "FORBIDDEN");
    assert_eq!(town.post(&town.operator, "/api/v1/locks/a/acquire", &steal).await.status, 200);
}

/// Over the store protocol, as the library and the binary speak it.
#[tokio::test]
async fn the_store_protocol_has_the_same_owners() {
    let town = Town::new().await;
    let client = async |token: &str| {
        let url = town.lab.base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap()
    };
    let (ada, eve, operator) =
        (client(&town.ada).await, client(&town.eve).await, client(&town.operator).await);
    let name = LockName::new("a").unwrap();
    let guard = ada.lock("a").acquire().await.unwrap();
    let (id, token) = (guard.lease_id(), guard.token());
    let refused = |error: leasehold::Error| assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error}");
    refused(eve.release_lease(&name, id, token).await.unwrap_err());
    refused(eve.renew_lease(&name, id, token, None).await.unwrap_err());
    refused(eve.lock("a").lease_id(id).acquire().await.unwrap_err());
    refused(eve.lock("a").steal_stale(std::time::Duration::from_millis(1)).acquire().await.unwrap_err());
    guard.confirm().await.unwrap();
    assert_eq!(ada.status(&name).await.unwrap().token, token);
    guard.release().await.unwrap();
    // The history has the token beside what its caller says.
    let guard = ada.lock("a").acquire().await.unwrap();
    let by = Holder::new("auditor").unwrap();
    operator.ask_release(&name, by, Some(Reason::new("now").unwrap())).await.unwrap();
    let asked = guard.asked().await;
    assert_eq!(asked.by.as_str(), "auditor via olga");
}

/// A token that asks too much at once is refused, and no other token is.
#[tokio::test]
async fn one_token_cannot_take_all_places() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let desk = TokenDesk::new(leasehold.clone());
    let token = async |name| desk.create(name, Role::Worker, None).await.unwrap().text;
    let (ada, eve) = (token("ada").await, token("eve").await);
    let limits = leasehold_server::Limits { requests_per_token: 3, ..leasehold_server::Limits::default() };
    let lab = Lab::with(leasehold, Access::Tokens(Vec::new()), limits).await;
    let ask = async |token: &str, wait: u32| {
        let body = json!({ "waitSeconds": wait });
        Reply::of(lab.request(Method::POST, "/api/v1/locks/a/acquire").bearer_auth(token).json(&body)).await
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
    let town = Town::new().await;
    let add = json!({ "payload": 1 });
    let id = town.post(&town.ada, "/api/v1/queues/mail/tasks", &add).await.body["task"]["id"].clone();
    let (id, lease) = (id.as_str().unwrap(), "/api/v1/queues/mail/lease");
    let worker = json!({ "worker": { "id": "01890a5d-ac96-774b-bcce-b302099a8057" } });
    let leased = town.post(&town.ada, lease, &worker).await.body;
    let seen = town.ask(&town.eve, Method::GET, &format!("/api/v1/tasks/{id}"), &json!({})).await.body;
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
        let reply = town.post(&town.eve, &format!("/api/v1/tasks/{path}"), &body).await;
        assert_eq!((reply.status, reply.code()), (403, "FORBIDDEN"), "{path}: {}", reply.body);
    }
    // Under a seen id of a worker she is another worker, and removes none but herself.
    let other = town.post(&town.eve, lease, &json!({ "worker": eve_as_ada })).await.body;
    assert_ne!(other["worker"], leased["worker"]);
    let gone = format!("/api/v1/workers/{}", leased["worker"].as_str().unwrap());
    assert_eq!(town.ask(&town.eve, Method::DELETE, &gone, &json!({})).await.status, 200);
    let workers = town.ask(&town.ada, Method::GET, "/api/v1/workers", &json!({})).await.body;
    assert!(
        workers["workers"].as_array().unwrap().iter().any(|one| one["id"] == leased["worker"]),
        "{workers}"
    );
    // It is still hers, under the id that she gave and under the one that she was given.
    for worker in [&worker["worker"], &json!({ "id": leased["worker"] })] {
        let beat = town.post(&town.ada, "/api/v1/tasks/heartbeat", &many(worker.clone())).await;
        assert_eq!(beat.body["tasks"][0]["kept"], true, "{}", beat.body);
    }
    assert_eq!(town.post(&town.ada, &format!("/api/v1/tasks/{id}/complete"), &token).await.status, 200);
}

/// Over the store protocol; and after a restart of the server, which has forgotten what it gave to whom.
#[tokio::test]
async fn tasks_over_the_store_protocol_have_the_same_owners() {
    use leasehold::model::{AttemptResult, LeaseTasks, QueueName, Settle, Ttl};
    let town = Town::new().await;
    let client = async |base: &str, token: &str| {
        let url = base.replace("http://", &format!("http://{token}@"));
        Leasehold::connect(&url).await.unwrap().store()
    };
    let ada = client(&town.lab.base, &town.ada).await;
    let add = json!({ "payload": 1 });
    assert_eq!(town.post(&town.ada, "/api/v1/queues/mail/tasks", &add).await.status, 201);
    let worker = ada.new_worker_id();
    let queue = QueueName::new("mail").unwrap();
    let ask = LeaseTasks::new(worker, vec![queue], 1, Ttl::from_secs(30));
    let task = ada.tasks().unwrap().lease(&ask).await.unwrap().tasks.remove(0);
    assert_eq!(task.worker, Some(worker), "the client knows its tag");
    let settle = [Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) }];
    let second = Lab::over(town.lab.leasehold.clone(), Access::Tokens(Vec::new())).await;
    for base in [&town.lab.base, &second.base] {
        let eve = client(base, &town.eve).await;
        let refused = eve.tasks().unwrap().settle(&settle).await.unwrap_err();
        assert_eq!(refused.code(), "STORE_NOT_PERMITTED", "{refused}");
    }
    let ada = client(&second.base, &town.ada).await;
    assert_eq!(ada.tasks().unwrap().settle(&settle).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_seen_terraform_id_unlocks_and_writes_nothing() {
    let town = Town::new().await;
    let info =
        json!({ "ID": "8f1a0c8e-0000-4000-8000-000000000001", "Who": "ada@laptop", "Operation": "apply" });
    let eves = json!({ "ID": info["ID"], "Who": "eve@laptop" });
    assert_eq!(town.post(&town.ada, "/tf/prod/lock", &info).await.status, 200);
    assert_eq!(town.ask(&town.eve, Method::DELETE, "/tf/prod/lock", &eves).await.status, 403);
    assert_eq!(
        town.post(&town.eve, "/tf/prod/lock", &eves).await.status,
        423,
        "the same ID is not the same lock"
    );
    let state = json!({ "version": 4, "serial": 1, "lineage": "x", "terraform_version": "1.9.0" });
    let write = format!("/tf/prod?ID={}", info["ID"].as_str().unwrap());
    assert_eq!(town.post(&town.eve, &write, &state).await.status, 403);
    assert_eq!(town.post(&town.ada, &write, &state).await.status, 200);
    assert_eq!(town.ask(&town.ada, Method::DELETE, "/tf/prod/lock", &info).await.status, 200);
}
