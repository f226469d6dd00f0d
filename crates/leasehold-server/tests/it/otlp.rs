//! Export of spans to a collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use leasehold_server::otlp::Exporter;
use tracing_subscriber::layer::SubscriberExt;

use crate::terraform::ADA;
use crate::test_server::TestServer;

type Got = Arc<Mutex<Vec<u8>>>;

/// Minimal collector: stores what is posted and responds with 200.
fn collector() -> (String, Got) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let got = Got::default();
    let keep = got.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let keep = keep.clone();
            std::thread::spawn(move || take(&stream.unwrap(), &keep));
        }
    });
    (address, got)
}

fn take(stream: &TcpStream, got: &Got) -> Option<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        got.lock().unwrap().extend(body);
        (&*stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_store_calls_are_exported() {
    let (address, got) = collector();
    let exporter = tokio::task::spawn_blocking(move || Exporter::new(&address).unwrap()).await.unwrap();
    // Global, because the server's tasks may run on any thread.
    let subscriber = tracing_subscriber::registry().with(exporter.layer());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let server = TestServer::open().await;
    assert_eq!(server.lock(ADA).await.status, 200);
    tokio::task::spawn_blocking(move || exporter.finish()).await.unwrap();
    let got = String::from_utf8_lossy(&got.lock().unwrap()).into_owned();
    for word in ["leasehold", "request", "/tf/{name}", "store", "lock_acquire", "tf/prod"] {
        assert!(got.contains(word), "{word} is not among {} bytes", got.len());
    }
}

#[test]
fn an_invalid_address_is_rejected() {
    assert!(Exporter::new("collector:4318").is_err());
    assert!(Exporter::new("https://collector:4318").is_err());
}
