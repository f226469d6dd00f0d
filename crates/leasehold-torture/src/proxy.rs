//! TCP proxy on loopback between a worker and its engine, with faults on demand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Fault of the connections of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// Delays each direction by this time.
    Delay(Duration),
    /// Blocks all traffic. The connections stay open, and blocked data arrives when the fault ends.
    BlackHole,
    /// Resets each connection as soon as the engine has answered on it: the change is made, and its
    /// response is lost.
    DropResponse,
    /// Delays the next request by this time, whether or not its sender still waits; then no fault.
    DelayRequest(Duration),
    /// Delays the next response by this time; then no fault.
    DelayResponse(Duration),
    /// Sends the next request a second time on a connection of its own; then no fault. Only for
    /// protocols whose requests stand alone.
    Duplicate,
}

/// Proxy of one worker. Ends when it is dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

struct Shared {
    target: SocketAddr,
    fault: watch::Sender<Fault>,
    /// Number of calls of [`Proxy::cut`]; a connection ends when it rises.
    cuts: watch::Sender<u64>,
}

impl Proxy {
    /// Starts a proxy to the engine at this address.
    pub(crate) async fn start(target: SocketAddr) -> std::io::Result<Self> {
        let (fault, cuts) = (watch::Sender::new(Fault::None), watch::Sender::new(0));
        let shared = Arc::new(Shared { target, fault, cuts });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        let of_task = shared.clone();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(serve(client, of_task.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { address, shared, _serving: serving })
    }

    /// Returns the address to connect to instead of that of the engine.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Resets all open connections; new ones are accepted.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(server) = TcpStream::connect(shared.target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // A request that is on its way reaches the engine although its sender has disconnected.
    let requests = forward(Direction::Request, from_client, to_server, shared.clone());
    let responses = forward(Direction::Response, from_server, to_client, shared);
    tokio::pin!(requests, responses);
    tokio::select! {
        () = &mut requests => {}
        () = &mut responses => {}
        _ = cuts.changed() => {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Response,
}

async fn forward(direction: Direction, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: Arc<Shared>) {
    let mut fault = shared.fault.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if fault.wait_for(|fault| *fault != Fault::BlackHole).await.is_err() {
            return;
        }
        let now = *fault.borrow_and_update();
        match (now, direction) {
            (Fault::Delay(delay), _) => tokio::time::sleep(delay).await,
            (Fault::DelayRequest(delay), Direction::Request)
            | (Fault::DelayResponse(delay), Direction::Response) => {
                shared.fault.send_replace(Fault::None);
                tokio::time::sleep(delay).await;
            }
            (Fault::DropResponse, Direction::Response) => return reset(&to),
            (Fault::Duplicate, Direction::Request) => {
                shared.fault.send_replace(Fault::None);
                tokio::spawn(duplicate(shared.target, buffer[..length].to_vec()));
            }
            _ => {}
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

fn reset(connection: &OwnedWriteHalf) {
    let _ = connection.as_ref().set_zero_linger();
}

/// Sends a request on a connection of its own, and discards the response.
async fn duplicate(target: SocketAddr, request: Vec<u8>) {
    let send = async {
        let mut stream = TcpStream::connect(target).await?;
        stream.write_all(&request).await?;
        stream.read(&mut vec![0; 64 * 1024]).await
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), send).await;
}
