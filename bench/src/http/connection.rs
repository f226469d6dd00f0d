//! Keep-alive connection of a client, with one request at a time.

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Connection to the server.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    pub(super) async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await.context("the server cannot be reached")?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, host: address.to_owned() })
    }

    /// Sends a request and returns the body of a successful response.
    pub(super) async fn post(&mut self, path: &str, body: String) -> Result<Bytes> {
        let request = Request::post(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        ensure!(status.is_success(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
        Ok(body)
    }

    /// Acquires a lock, and waits if necessary; returns the body of the release request.
    pub(super) async fn acquire(&mut self, lock: &str, wait_seconds: u32) -> Result<String> {
        let body = format!(r#"{{"holder":"bench","ttlSeconds":60,"waitSeconds":{wait_seconds}}}"#);
        let response = self.post(&format!("/api/v1/locks/{lock}/acquire"), body).await?;
        let response: Value = serde_json::from_slice(&response)?;
        let lock = &response["lock"];
        Ok(format!(r#"{{"leaseId":{},"token":{}}}"#, lock["leaseId"], lock["token"]))
    }

    /// Releases a lock.
    pub(super) async fn release(&mut self, lock: &str, lease: String) -> Result<()> {
        self.post(&format!("/api/v1/locks/{lock}/release"), lease).await.map(drop)
    }
}
