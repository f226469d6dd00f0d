//! Raw connections that tests can close: requests as bytes, without a client that retries or reuses
//! connections.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::test_server::TestServer;

/// Raw connection.
pub(crate) struct RawConnection {
    stream: TcpStream,
    received: Vec<u8>,
}

impl RawConnection {
    /// Sends a request and does not wait for the response.
    pub(crate) async fn send(server: &TestServer, method: &str, path: &str, body: Option<&Value>) -> Self {
        let host = server.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).await.unwrap();
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{kind}content-length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Sends the first line of a release request, followed by `rest`.
    pub(crate) async fn begin(server: &TestServer, rest: &str) -> Self {
        let host = server.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).await.unwrap();
        let head = format!("POST /api/v1/locks/a/release HTTP/1.1\r\nhost: {host}\r\n{rest}");
        stream.write_all(head.as_bytes()).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Waits until the server has closed the connection.
    pub(crate) async fn wait_for_close(&mut self) {
        let end = async { while self.stream.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
        tokio::time::timeout(Duration::from_secs(10), end).await.expect("the connection is still open");
    }

    /// Returns the received text as soon as it contains `wanted`.
    pub(crate) async fn read_until(&mut self, wanted: &str) -> String {
        self.read_while(|text| !text.contains(wanted)).await
    }

    /// Returns what the server sends until the event that contains this text is complete.
    pub(crate) async fn read_event(&mut self, wanted: &str) -> String {
        let is_complete = |text: &str| text.split(wanted).nth(1).is_some_and(|rest| rest.contains("\n\n"));
        self.read_while(|text| !is_complete(text)).await
    }

    async fn read_while(&mut self, is_missing: impl Fn(&str) -> bool) -> String {
        let read = async {
            while is_missing(&self.text()) {
                let mut part = [0; 4096];
                match self.stream.read(&mut part).await.unwrap() {
                    0 => panic!("the connection ended: {}", self.text()),
                    count => self.received.extend_from_slice(&part[..count]),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), read).await.expect("it does not come");
        self.text()
    }

    /// Returns everything that the server sends until it closes the connection.
    pub(crate) async fn read_to_end(mut self) -> String {
        let rest = self.stream.read_to_end(&mut self.received);
        tokio::time::timeout(Duration::from_secs(20), rest).await.expect("it does not end").unwrap();
        self.text()
    }

    /// Closes the connection, as the end of the client's process would.
    pub(crate) fn disconnect(self) {
        drop(self);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }
}
