//! Roles that the task endpoints require.

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};
use reqwest::Method;
use serde_json::json;

use crate::test_server::{Reply, TestServer};

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[tokio::test]
async fn each_role_may_do_what_it_is_for_and_no_more() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let mut server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let token_store = TokenStore::new(leasehold);
    let requests = [
        (Role::Reader, Method::GET, format!("/api/v1/tasks/{ID}")),
        (Role::Reader, Method::GET, "/api/v1/tasks".to_owned()),
        (Role::Reader, Method::GET, "/api/v1/queues".to_owned()),
        (Role::Reader, Method::GET, "/api/v1/workers".to_owned()),
        (Role::Reader, Method::GET, "/api/v1/schedules".to_owned()),
        (Role::Reader, Method::GET, "/api/v1/schedules/s".to_owned()),
        (Role::Worker, Method::POST, "/api/v1/queues/q/tasks".to_owned()),
        (Role::Worker, Method::POST, "/api/v1/queues/q/lease".to_owned()),
        (Role::Worker, Method::POST, "/api/v1/tasks/heartbeat".to_owned()),
        (Role::Worker, Method::POST, "/api/v1/tasks/settle".to_owned()),
        (Role::Worker, Method::POST, "/api/v1/tasks/recover".to_owned()),
        (Role::Worker, Method::POST, format!("/api/v1/tasks/{ID}/heartbeat")),
        (Role::Worker, Method::POST, format!("/api/v1/tasks/{ID}/complete")),
        (Role::Worker, Method::POST, format!("/api/v1/tasks/{ID}/fail")),
        (Role::Worker, Method::POST, format!("/api/v1/tasks/{ID}/release")),
        (Role::Worker, Method::POST, format!("/api/v1/tasks/{ID}/abort")),
        (Role::Worker, Method::DELETE, format!("/api/v1/workers/{ID}")),
        (Role::Operator, Method::PATCH, format!("/api/v1/tasks/{ID}")),
        (Role::Operator, Method::POST, format!("/api/v1/tasks/{ID}/retry")),
        (Role::Operator, Method::POST, format!("/api/v1/tasks/{ID}/cancel")),
        (Role::Operator, Method::POST, "/api/v1/queues/q/pause".to_owned()),
        (Role::Operator, Method::POST, "/api/v1/queues/q/resume".to_owned()),
        (Role::Operator, Method::PUT, "/api/v1/schedules/s".to_owned()),
        (Role::Operator, Method::DELETE, "/api/v1/schedules/s".to_owned()),
        (Role::Operator, Method::POST, "/api/v1/schedules/s/pause".to_owned()),
        (Role::Operator, Method::POST, "/api/v1/schedules/s/resume".to_owned()),
        (Role::Reader, Method::GET, "/api/v1/queues/q/retention".to_owned()),
        (Role::Admin, Method::PUT, "/api/v1/queues/q/retention".to_owned()),
        (Role::Admin, Method::DELETE, "/api/v1/queues/q/retention".to_owned()),
        (Role::Admin, Method::DELETE, "/api/v1/tasks?before=2020-01-01T00:00:00Z".to_owned()),
    ];
    for (method, path) in requests.iter().map(|(_, method, path)| (method, path)) {
        let reply = Reply::of(server.request(method.clone(), path).json(&json!({}))).await;
        assert_eq!((reply.status, reply.code()), (401, "UNAUTHENTICATED"), "{method} {path}");
    }
    for role in [Role::Reader, Role::Worker, Role::Operator, Role::Admin] {
        server.use_token(&token_store.create("ada", role, None).await.unwrap().text);
        for (needs, method, path) in &requests {
            let reply = Reply::of(server.request(method.clone(), path).json(&json!({}))).await;
            assert_eq!(reply.status == 403, role < *needs, "{role}: {method} {path}: {}", reply.body);
        }
    }
}
