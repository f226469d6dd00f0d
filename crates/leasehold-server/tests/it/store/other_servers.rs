//! Addresses without a leasehold server, and servers with another protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use leasehold::model::{AttemptResult, LeaseTasks, Payload, Settle, Settled, TaskState, Ttl};
use leasehold::testing::task_fixture::{queue, task};
use leasehold::{Error, Leasehold};
use leasehold_server::{Access, Server};
use tokio::net::TcpListener;
use tower::ServiceExt;

use super::support::{Served, open};

/// Serves this router and returns its address.
pub(crate) async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(router.clone());
            let connection = hyper::server::conn::http1::Builder::new();
            tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
        }
    });
    format!("http://{address}")
}

async fn refused(url: &str) -> Error {
    match Leasehold::connect(url).await {
        Err(error) => error,
        Ok(_) => panic!("{url} was taken for a server"),
    }
}

#[tokio::test]
async fn a_foreign_server_is_detected() {
    let url = serve(Router::new().route("/", get(|| async { "hello" }))).await;
    let error = refused(&url).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().contains("is not a leasehold server (404)"), "{error}");
    let everything = Router::new().fallback(|| async { "hello" });
    assert!(refused(&serve(everything).await).await.to_string().contains("is not a leasehold server (200)"));
}

#[tokio::test]
async fn errors_of_a_proxy_are_mapped() {
    let code = async |status: StatusCode| {
        let url = serve(Router::new().fallback(move || async move { status })).await;
        refused(&url).await.code()
    };
    assert_eq!(code(StatusCode::UNAUTHORIZED).await, "STORE_NOT_PERMITTED");
    assert_eq!(code(StatusCode::FORBIDDEN).await, "STORE_NOT_PERMITTED");
    assert_eq!(code(StatusCode::BAD_GATEWAY).await, "STORE_UNAVAILABLE");
    assert_eq!(code(StatusCode::SERVICE_UNAVAILABLE).await, "STORE_UNAVAILABLE");
    assert_eq!(code(StatusCode::INTERNAL_SERVER_ERROR).await, "STORE_UNAVAILABLE");
    assert_eq!(code(StatusCode::REQUEST_TIMEOUT).await, "STORE_UNAVAILABLE");
    assert_eq!(code(StatusCode::MOVED_PERMANENTLY).await, "STORE_MISCONFIGURED");
}

/// Returns a proxy that answers the first settlement with this status.
fn proxy_that_answers_a_settlement(server: Router, status: StatusCode) -> Router {
    let is_first = Arc::new(AtomicBool::new(true));
    Router::new().fallback(move |mut request: Request| {
        let (server, is_first) = (server.clone(), is_first.clone());
        async move {
            // What this router has added to the request must not reach the router of the server.
            request.extensions_mut().clear();
            let is_settlement = request.uri().path().ends_with("/tasks/settle");
            if is_settlement && is_first.swap(false, Ordering::SeqCst) {
                return status.into_response();
            }
            server.oneshot(request).await.unwrap()
        }
    })
}

/// While a server is replaced, its proxy may answer with any status. A permanent error would settle the task
/// as failed.
#[tokio::test]
async fn a_result_outlasts_any_answer_of_a_proxy() {
    for status in [200, 404, 408, 500, 521, 413] {
        let leasehold = Leasehold::connect("memory:").await.unwrap();
        let server = Server::builder(leasehold.clone()).access(Access::Open).build().router();
        let proxy = proxy_that_answers_a_settlement(server, StatusCode::from_u16(status).unwrap());
        let store = open(&serve(proxy).await).await;
        let tasks = store.tasks().unwrap();
        tasks.enqueue(&[task(1)]).await.unwrap();
        let request = LeaseTasks::new(store.new_worker_id(), vec![queue("q")], 1, Ttl::from_secs(60));
        let leased = tasks.lease(&request).await.unwrap().tasks.remove(0);
        let result = Payload::new("\"done\"").unwrap();
        let verdict = AttemptResult::Done(Some(result.clone()));
        let settled = tasks.settle(&[Settle { id: leased.id, token: leased.token, result: verdict }]).await;
        if status == 413 {
            let error = settled.unwrap_err();
            assert_eq!(error.code(), "INVALID", "a smaller call may succeed: {error}");
            continue;
        }
        assert_eq!(settled.unwrap(), [Settled::Now(TaskState::Succeeded)], "{status}");
        let stored = leasehold.store().tasks().unwrap().get(leased.id).await.unwrap().unwrap();
        assert_eq!(stored.result, Some(result), "{status}");
    }
}

#[tokio::test]
async fn a_server_of_another_protocol_is_refused_by_both_sides() {
    let other = Router::new().fallback(|| async { ([("leasehold-protocol", "2")], "{}") });
    let error = refused(&serve(other).await).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(
        error.to_string().contains("speaks version 2 of the protocol, this leasehold speaks 1"),
        "{error}"
    );

    let served = Served::on_memory();
    let get = |version: Option<&'static str>| {
        let request = crate::test_server::client().get(format!("{}/api/v1/store/capabilities", served.url()));
        match version {
            Some(version) => request.header("leasehold-protocol", version),
            None => request,
        }
    };
    for version in [None, Some("2")] {
        let response = get(version).send().await.unwrap();
        assert_eq!(response.headers()["leasehold-protocol"], "1");
        let problem: serde_json::Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
        assert_eq!((&problem["status"], &problem["code"]), (&400.into(), &"PROTOCOL".into()));
    }
    assert_eq!(get(Some("1")).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_server_without_http_is_detected() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.readable().await;
            let _ = stream.try_read(&mut [0; 4096]);
            let _ = stream.try_write(b"-ERR unknown command\r\n");
            open.push(stream);
        }
    });
    let error = refused(&url).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED", "{error:?}");
    assert!(error.to_string().contains("does not answer like a web server"), "{error}");
}

#[tokio::test]
async fn a_closed_port_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let error = refused(&url).await;
    assert_eq!(error.code(), "STORE_UNAVAILABLE");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}

#[tokio::test]
async fn a_server_may_be_mounted_under_a_path() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold).access(Access::Open).build();
    let url = serve(Router::new().nest("/team/a", server.router())).await;
    let through = Leasehold::connect(&format!("{url}/team/a/")).await.unwrap();
    let guard = through.lock("lock").acquire().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(refused(&url).await.code(), "STORE_MISCONFIGURED");
}

#[tokio::test]
async fn the_health_check_describes_the_server() {
    let served = Served::on_memory();
    let store = open(&served.url()).await;
    let findings = store.check_health().await.unwrap();
    let of = |name: &str| findings.iter().find(|finding| finding.name == name).unwrap();
    assert!(of("server").detail.contains("protocol 1"), "{:?}", of("server"));
    assert_eq!(of("its engine").detail, "memory, with tasks");
    assert_eq!(of("its memory").issue.as_ref().unwrap().code, "HTTP_FORGETS");
    let capabilities = store.capabilities();
    assert_eq!(
        (capabilities.engine, capabilities.detects_dead_processes, capabilities.persistent),
        ("http", false, true)
    );
}
