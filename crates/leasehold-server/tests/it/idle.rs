//! Idle connections: kept for longer than the head timeout, and closed after the idle timeout.

use std::time::{Duration, Instant};

use leasehold::Leasehold;
use leasehold_server::{Access, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::TestServer;

const HEAD: Duration = Duration::from_secs(1);

async fn server(idle: Duration) -> TestServer {
    let mut limits = Limits::default();
    limits.header_time = HEAD;
    limits.idle_time = idle;
    TestServer::with(Leasehold::connect("memory:").await.unwrap(), Access::Open, limits).await
}

async fn connect(server: &TestServer) -> TcpStream {
    TcpStream::connect(server.base.trim_start_matches("http://")).await.unwrap()
}

/// Sends a request and reads its response; the connection stays open.
async fn ask(stream: &mut TcpStream, method: &str) {
    let request = format!("{method} /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let end: &[u8] = if method == "HEAD" { b"\r\n\r\n" } else { b"{\"status\":\"ok\"}" };
    let mut heard = Vec::new();
    while !heard.ends_with(end) {
        let mut part = [0; 1024];
        let read = stream.read(&mut part).await.unwrap();
        assert!(read > 0, "the connection ended: {}", String::from_utf8_lossy(&heard));
        heard.extend_from_slice(&part[..read]);
    }
    assert!(heard.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&heard));
}

/// Returns the time until the server closes the connection without sending anything.
async fn until_closed(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut [0; 1024])).await;
    assert_eq!(read.expect("it is still open").unwrap(), 0, "something came");
    begun.elapsed()
}

#[tokio::test]
async fn an_idle_connection_can_be_used_after_the_time_of_a_head() {
    let server = server(Duration::from_secs(30)).await;
    let mut stream = connect(&server).await;
    ask(&mut stream, "GET").await;
    tokio::time::sleep(HEAD + Duration::from_secs(2)).await;
    ask(&mut stream, "HEAD").await;
    tokio::time::sleep(HEAD + Duration::from_millis(500)).await;
    ask(&mut stream, "GET").await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_idle_time() {
    let idle = Duration::from_secs(2);
    let server = server(idle).await;
    for method in ["GET", "HEAD"] {
        let mut stream = connect(&server).await;
        ask(&mut stream, method).await;
        let took = until_closed(&mut stream).await;
        assert!(took > idle.mul_f64(0.7) && took < idle * 4, "{method}: {took:?}");
    }
}

#[tokio::test]
async fn a_connection_that_sends_no_request_has_the_time_of_a_head() {
    let server = server(Duration::from_mins(1)).await;
    let mut stream = connect(&server).await;
    assert!(until_closed(&mut stream).await < Duration::from_secs(10));
}

#[tokio::test]
async fn a_slow_head_is_cut_also_on_an_idle_connection() {
    let server = server(Duration::from_mins(1)).await;
    for first in [false, true] {
        let mut stream = connect(&server).await;
        if !first {
            ask(&mut stream, "GET").await;
            tokio::time::sleep(HEAD * 2).await;
        }
        let (mut read, mut write) = stream.into_split();
        let drip = tokio::spawn(async move {
            let head = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-long: {}", "a".repeat(10_000));
            for byte in head.bytes() {
                if write.write_all(&[byte]).await.is_err() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let (begun, mut answer) = (Instant::now(), Vec::new());
        let _ =
            tokio::time::timeout(Duration::from_secs(20), read.read_to_end(&mut answer)).await.expect("cut");
        let took = begun.elapsed();
        assert!(took > HEAD / 2 && took < Duration::from_secs(10), "first {first}: {took:?}");
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        drip.abort();
    }
}

/// Waiting for a lock does not count as idle time.
#[tokio::test]
async fn a_request_that_waits_is_not_cut() {
    let server = server(HEAD).await;
    let guard = server.leasehold.lock("a").acquire().await.unwrap();
    let body = serde_json::json!({ "ttlSeconds": 30, "waitSeconds": 20 });
    let waiting = async { server.post("/api/v1/locks/a/acquire", &body).await.status };
    let release = async {
        server.wait_for_waiters("a", 1).await;
        tokio::time::sleep(HEAD * 3).await;
        guard.release().await.unwrap();
    };
    assert_eq!(tokio::join!(waiting, release).0, 200);
}
