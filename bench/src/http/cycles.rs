//! Load of the server: acquire and release over a few connections, and waiters for a lock.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::server::ServerProcess;
use crate::measure::{float, now};

#[derive(Debug, Clone)]
pub(super) struct Cycles {
    pub(super) per_second: f64,
    pub(super) times: Histogram<u64>,
}

/// Runs cycles on several connections for this time.
pub(super) async fn measure(address: &str, connections: u32, time: Duration) -> Result<Cycles> {
    let begun = now();
    let until = begun + u64::try_from(time.as_nanos())?;
    let mut clients = Vec::new();
    for number in 0..connections {
        let connection = Connection::open(address).await?;
        clients.push(tokio::spawn(client(connection, format!("bench-{number}"), until)));
    }
    let mut times = Histogram::new(3)?;
    for client in clients {
        times.add(client.await??)?;
    }
    let seconds = float(now() - begun) / 1e9;
    Ok(Cycles { per_second: float(times.len()) / seconds, times })
}

async fn client(mut connection: Connection, lock: String, until: u64) -> Result<Histogram<u64>> {
    let mut times = Histogram::new(3)?;
    let mut begun = now();
    while begun < until {
        let lease = connection.acquire(&lock, 0).await?;
        connection.release(&lock, lease).await?;
        let ended = now();
        times.record(ended - begun)?;
        begun = ended;
    }
    Ok(times)
}

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

    pub(super) async fn release(&mut self, lock: &str, lease: String) -> Result<()> {
        self.post(&format!("/api/v1/locks/{lock}/release"), lease).await.map(drop)
    }
}

pub(super) const WAITERS_PER_LOCK: u32 = 100;
const WAIT_SECONDS: u32 = 60;
/// Number of connections that are opened without a pause: the accept backlog of the server is bounded.
const CONNECT_BATCH: u32 = 100;

/// Measures the time from the start of a release until the next waiter has its response.
pub(super) async fn hand_overs(address: &str) -> Result<Histogram<u64>> {
    let (sender, mut turns) = mpsc::unbounded_channel();
    let mut first = Connection::open(address).await?;
    let lease = first.acquire("queue", 0).await?;
    for _ in 0..WAITERS_PER_LOCK {
        let mut connection = Connection::open(address).await?;
        let sender = sender.clone();
        tokio::spawn(async move {
            let turn = async {
                let lease = connection.acquire("queue", WAIT_SECONDS).await?;
                let acquired = now();
                // Hold the lock for a moment, so that the other waiters observe a held lock.
                tokio::time::sleep(Duration::from_millis(2)).await;
                let released = now();
                connection.release("queue", lease).await?;
                Ok::<_, anyhow::Error>((acquired, released))
            };
            let _ = sender.send(turn.await);
        });
    }
    wait_for_waiters(address, "queue", WAITERS_PER_LOCK).await?;
    let mut released = now();
    first.release("queue", lease).await?;
    let mut times = Histogram::new(3)?;
    for _ in 0..WAITERS_PER_LOCK {
        let turn = turns.recv().await.expect("every waiter sends its turn")?;
        times.record(turn.0.saturating_sub(released))?;
        released = turn.1;
    }
    Ok(times)
}

#[derive(Debug, Clone)]
pub(super) struct WaiterLoad {
    pub(super) waiters: u32,
    /// Memory of the server for each waiter, in bytes.
    pub(super) memory_each: u64,
    pub(super) errors: u32,
    /// Time from the first release until the last waiter had its turn.
    pub(super) nanos: u64,
}

/// Lets very many clients wait at once, a hundred for each lock, until each has been granted its lock.
pub(super) async fn waiter_load(server: &ServerProcess, waiters: u32) -> Result<WaiterLoad> {
    let address = &server.address;
    let locks = waiters.div_ceil(WAITERS_PER_LOCK);
    let before = server.memory()?;
    let mut holder = Connection::open(address).await?;
    let mut held = Vec::new();
    for lock in 0..locks {
        held.push(holder.acquire(&format!("waiters-{lock}"), 0).await?);
    }
    let mut clients = Vec::new();
    for number in 0..waiters {
        let (address, lock) = (address.clone(), format!("waiters-{}", number % locks));
        clients.push(tokio::spawn(async move {
            let mut connection = Connection::open(&address).await?;
            let lease = connection.acquire(&lock, WAIT_SECONDS).await?;
            connection.release(&lock, lease).await
        }));
        if number % CONNECT_BATCH == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    for lock in 0..locks {
        let expected = (0..waiters).filter(|number| number % locks == lock).count();
        wait_for_waiters(address, &format!("waiters-{lock}"), u32::try_from(expected)?).await?;
    }
    let memory_each = server.memory()?.saturating_sub(before) / u64::from(waiters);
    let begun = now();
    for (lock, lease) in held.into_iter().enumerate() {
        holder.release(&format!("waiters-{lock}"), lease).await?;
    }
    let mut errors = 0;
    for client in clients {
        if client.await?.is_err() {
            errors += 1;
        }
    }
    Ok(WaiterLoad { waiters, memory_each, errors, nanos: now() - begun })
}

async fn wait_for_waiters(address: &str, lock: &str, count: u32) -> Result<()> {
    let client = reqwest::Client::new();
    let url = format!("http://{address}/api/v1/locks/{lock}");
    for _ in 0..600 {
        let status: Value = client.get(&url).send().await?.json().await?;
        let waiters = status["waiters"].as_array().or_else(|| status["lock"]["waiters"].as_array());
        if waiters.is_some_and(|waiters| waiters.len() >= count as usize) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    bail!("lock '{lock}' did not get {count} waiters")
}
