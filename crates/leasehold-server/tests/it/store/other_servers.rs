//! Addresses without a leasehold server, and servers with another protocol.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use leasehold::{Error, Leasehold};
use leasehold_server::{Access, Server};
use tokio::net::TcpListener;

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
    assert_eq!(code(StatusCode::MOVED_PERMANENTLY).await, "STORE_MISCONFIGURED");
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
    assert_eq!(of("its memory").concern.as_ref().unwrap().code, "HTTP_FORGETS");
    let capabilities = store.capabilities();
    assert_eq!(
        (capabilities.engine, capabilities.detects_dead_processes, capabilities.persistent),
        ("http", false, true)
    );
}
