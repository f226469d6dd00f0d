//! TCP proxy on loopback between a worker and its engine, with faults on demand; which engines can be
//! reached through one, and the URL that leads through it.

use std::net::{SocketAddr, ToSocketAddrs};
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
    /// protocols whose requests are independent.
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

/// Engine that can be reached through a proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    /// Part of the URL before the address, and after it.
    around: (String, String),
    /// Whether each request is independent, so that it can arrive twice.
    pub(crate) is_http: bool,
}

impl Target {
    /// Returns the engine of this URL if its traffic is not encrypted and stays on this machine.
    /// Through a proxy, encryption would be lost or the name in the certificate would be wrong.
    pub(crate) fn of(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let default_port = match scheme {
            "postgres" | "postgresql" => 5432,
            "redis" => 6379,
            "http" => 80,
            "dynamodb" => return Self::of_endpoint(url),
            _ => return None,
        };
        if url.contains("sslmode=require") || url.contains("sslmode=verify") {
            return None;
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let start = rest[..end].rfind('@').map_or(0, |at| at + 1);
        let (before, host, after) = (&rest[..start], &rest[start..end], &rest[end..]);
        let is_http = scheme == "http";
        Self::new(format!("{scheme}://{before}"), host, default_port, after, is_http)
    }

    /// Returns the engine of `endpoint=http://…`.
    fn of_endpoint(url: &str) -> Option<Self> {
        const SETTING: &str = "endpoint=http://";
        let start = url.find(SETTING)? + SETTING.len();
        let end = start + url[start..].find(['&', '/']).unwrap_or(url.len() - start);
        Self::new(url[..start].to_owned(), &url[start..end], 80, &url[end..], true)
    }

    fn new(before: String, host: &str, default_port: u16, after: &str, is_http: bool) -> Option<Self> {
        let address = match host.to_socket_addrs() {
            Ok(mut addresses) => addresses.next(),
            Err(_) => (host, default_port).to_socket_addrs().ok()?.next(),
        }?;
        let around = (before, after.to_owned());
        address.ip().is_loopback().then_some(Self { address, around, is_http })
    }

    /// Returns the URL that leads to this address instead.
    pub(crate) fn redirected(&self, to: SocketAddr) -> String {
        format!("{}{to}{}", self.around.0, self.around.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_on_this_machine_is_reached_through_a_proxy() {
        let proxy = "127.0.0.1:9".parse().unwrap();
        for (url, redirected) in [
            ("postgres://u:p%40@127.0.0.1:5433/db?pool=2", "postgres://u:p%40@127.0.0.1:9/db?pool=2"),
            ("redis://127.0.0.1", "redis://127.0.0.1:9"),
            ("http://localhost:7420", "http://127.0.0.1:9"),
            (
                "dynamodb://t?endpoint=http://127.0.0.1:8000&region=x",
                "dynamodb://t?endpoint=http://127.0.0.1:9&region=x",
            ),
        ] {
            assert_eq!(Target::of(url).unwrap().redirected(proxy), redirected);
        }
    }

    #[test]
    fn encrypted_and_remote_engines_are_not_redirected() {
        for url in [
            "sqlite:leasehold.db",
            "https://127.0.0.1:7420",
            "rediss://127.0.0.1",
            "postgres://127.0.0.1/db?sslmode=verify-full",
            "redis://192.0.2.1",
            "dynamodb://table",
        ] {
            assert_eq!(Target::of(url), None, "{url}");
        }
    }
}
