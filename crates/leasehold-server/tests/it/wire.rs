//! Connections that can be cut: requests as bytes, without a client that tries again or keeps anything.

use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::lab::Lab;

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    heard: Vec<u8>,
}

impl Wire {
    /// Sends a request and does not wait for the answer.
    pub(crate) async fn send(lab: &Lab, method: &str, path: &str, body: Option<&Value>) -> Self {
        let host = lab.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).await.unwrap();
        let body = body.map(Value::to_string).unwrap_or_default();
        let kind = if body.is_empty() { "" } else { "content-type: application/json\r\n" };
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{kind}content-length: {length}\r\n\r\n");
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        Self { stream, heard: Vec::new() }
    }

    /// Begins a request to give a lock back, and goes on with this.
    pub(crate) async fn begin(lab: &Lab, rest: &str) -> Self {
        let host = lab.base.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).await.unwrap();
        let head = format!("POST /api/v1/locks/a/release HTTP/1.1\r\nhost: {host}\r\n{rest}");
        stream.write_all(head.as_bytes()).await.unwrap();
        Self { stream, heard: Vec::new() }
    }

    /// Waits until the server has ended the connection.
    pub(crate) async fn until_it_ends(&mut self) {
        let end = async { while self.stream.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
        tokio::time::timeout(Duration::from_secs(10), end).await.expect("the connection is still open");
    }

    /// The text that has come, as soon as it contains this.
    pub(crate) async fn hear(&mut self, wanted: &str) -> String {
        let hear = async {
            while !self.text().contains(wanted) {
                let mut part = [0; 4096];
                match self.stream.read(&mut part).await.unwrap() {
                    0 => panic!("the connection ended: {}", self.text()),
                    count => self.heard.extend_from_slice(&part[..count]),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), hear).await.expect("it does not come");
        self.text()
    }

    /// Everything until the server ends the connection.
    pub(crate) async fn rest(mut self) -> String {
        let rest = self.stream.read_to_end(&mut self.heard);
        tokio::time::timeout(Duration::from_secs(20), rest).await.expect("it does not end").unwrap();
        self.text()
    }

    /// Cuts the connection, as the end of its process would.
    pub(crate) fn cut(self) {
        drop(self);
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard).into_owned()
    }
}
