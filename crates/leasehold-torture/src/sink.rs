//! Resource that the locks protect: one number per lock behind a fence. Workers read it and write
//! the next number; a lost update is visible in the history.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use leasehold::BootInstant;
use leasehold::model::{Fence, Token};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::history::{Event, Record};

/// Request to the sink: a read, or a write of `seen` + 1.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    /// Number of the request on its connection.
    number: u64,
    worker: u32,
    op: u32,
    lock: String,
    token: u64,
    seen: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Response {
    /// Number of the request.
    number: u64,
    accepted: bool,
    value: u64,
}

/// Sink of a run. Ends when it is dropped.
pub(crate) struct Sink {
    pub(crate) address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Sink {
    /// Starts a sink on loopback that records what it answers.
    pub(crate) async fn start(records: mpsc::UnboundedSender<Record>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let values = Arc::new(Mutex::new(HashMap::new()));
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, values.clone(), records.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, _serving: serving })
    }
}

type Values = Arc<Mutex<HashMap<String, (Fence, u64)>>>;

async fn serve(mut stream: TcpStream, values: Values, records: mpsc::UnboundedSender<Record>) {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(request) = serde_json::from_str::<Request>(&line) else { return };
        let answer = answer(&values, &records, request);
        let mut answer = serde_json::to_vec(&answer).unwrap_or_default();
        answer.push(b'\n');
        if writer.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Answers and records in one step, so that the records are in the order of the answers.
fn answer(values: &Values, records: &mpsc::UnboundedSender<Record>, request: Request) -> Response {
    let mut values = values.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let Request { number, worker, op, lock, token, seen } = request;
    let (fence, value) = values.entry(lock.clone()).or_default();
    let accepted = Token::new(token).is_ok_and(|token| fence.admit(token).is_ok());
    if accepted && let Some(seen) = seen {
        *value = seen + 1;
    }
    let value = *value;
    let event = Event::Sink { worker, op, lock, token, seen, value, accepted };
    // The coordinator has ended if the receiver has been dropped.
    let _ = records.send(Record { at: BootInstant::now().as_micros(), process: 0, event });
    Response { number, accepted, value }
}

/// Connection of a worker to the sink.
pub(crate) struct SinkClient {
    worker: u32,
    stream: BufReader<TcpStream>,
    /// Number of requests so far.
    requests: u64,
    /// Received part of a response. A dropped call leaves its response to the next one.
    received: Vec<u8>,
}

impl SinkClient {
    pub(crate) async fn connect(worker: u32, address: SocketAddr) -> std::io::Result<Self> {
        let stream = BufReader::new(TcpStream::connect(address).await?);
        Ok(Self { worker, stream, requests: 0, received: Vec::new() })
    }

    /// Reads the number of a lock; returns `None` if the token is stale.
    pub(crate) async fn read(&mut self, op: u32, lock: &str, token: Token) -> std::io::Result<Option<u64>> {
        self.call(op, lock, token, None).await
    }

    /// Writes the number that follows `seen`; returns `None` if the token is stale.
    pub(crate) async fn write(
        &mut self,
        op: u32,
        lock: &str,
        token: Token,
        seen: u64,
    ) -> std::io::Result<Option<u64>> {
        self.call(op, lock, token, Some(seen)).await
    }

    async fn call(
        &mut self,
        op: u32,
        lock: &str,
        token: Token,
        seen: Option<u64>,
    ) -> std::io::Result<Option<u64>> {
        self.requests += 1;
        let (number, worker, lock, token) = (self.requests, self.worker, lock.to_owned(), token.get());
        let mut line = serde_json::to_vec(&Request { number, worker, op, lock, token, seen })?;
        line.push(b'\n');
        self.stream.write_all(&line).await?;
        loop {
            self.stream.read_until(b'\n', &mut self.received).await?;
            let answer: Response = serde_json::from_slice(&std::mem::take(&mut self.received))?;
            // A smaller number is the response to a call that was dropped.
            if answer.number == number {
                return Ok(answer.accepted.then_some(answer.value));
            }
        }
    }
}
