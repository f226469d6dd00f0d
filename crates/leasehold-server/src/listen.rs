//! Connections: accepting them, not too many at once, none that only takes up room, and an end without broken answers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::early::early;
use crate::server::{Limits, Server};
use crate::slow_reader::WriteTimeout;

/// The most that is read of a connection before it is answered: the headers of a request have to fit.
const BUFFER: usize = 64 * 1024;
/// After a failed accept (too many open files) the next try waits so long.
const PAUSE: Duration = Duration::from_millis(100);

/// A server that listens.
pub struct Listening {
    address: SocketAddr,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

impl Listening {
    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops: nobody new is let in, those who wait are sent away, and what was begun has the grace time to end.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.done.await;
    }
}

/// A server that is not there yet, as its store cannot be reached. Until it is, requests are told to come back.
pub struct Stage(watch::Sender<Option<Server>>);

impl Stage {
    /// From now on the server answers.
    pub fn open(&self, server: &Server) {
        self.0.send_replace(Some(server.clone()));
    }
}

/// Answers requests that come in here, in the background, until it is told to stop.
pub fn listen(server: &Server, listener: TcpListener) -> io::Result<Listening> {
    let (listening, stage) = listen_early(server.limits(), listener)?;
    stage.open(server);
    Ok(listening)
}

/// The same for a server that is not there yet: until it is, `/healthz` says that the process is alive, and everything else
/// is answered with 503.
pub fn listen_early(limits: Limits, listener: TcpListener) -> io::Result<(Listening, Stage)> {
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let (stage, server) = watch::channel(None);
    let done = tokio::spawn(accept(server, limits, listener, stop.clone()));
    Ok((Listening { address, stop, done }, Stage(stage)))
}

async fn accept(
    server: watch::Receiver<Option<Server>>,
    limits: Limits,
    listener: TcpListener,
    stop: CancellationToken,
) {
    // Those who come before the server is there are told to come back on another connection.
    let (mut router, mut is_early) = (early(), true);
    let room = Arc::new(Semaphore::new(limits.connections));
    let connections = GracefulShutdown::new();
    let mut http = hyper::server::conn::http1::Builder::new();
    // Requests are answered one after the other, and what is not read yet is bounded.
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_time).max_buf_size(BUFFER);
    let crowd = Crowd::new(limits.connections_per_address);
    loop {
        let next = async {
            let place = room.clone().acquire_owned().await.expect("the room is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let Some(visitor) = crowd.enter(from.ip()) else {
            tracing::debug!(address = %from.ip(), "one address has as many connections as it may");
            continue;
        };
        if is_early && let Some(server) = &*server.borrow() {
            (router, is_early) = (server.router(), false);
        }
        let service = router.clone().map_request(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(from));
            request.map(axum::body::Body::new)
        });
        let stream = WriteTimeout::new(without_delay(stream), limits.write_time);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
            drop((place, visitor));
        });
    }
    drop(listener);
    if let Some(server) = &*server.borrow() {
        server.drain();
    }
    if tokio::time::timeout(limits.grace, connections.shutdown()).await.is_err() {
        tracing::warn!("some requests did not end in time");
    }
}

/// Answers are small and are waited for.
fn without_delay(stream: TcpStream) -> TcpStream {
    let _ = stream.set_nodelay(true);
    stream
}

/// How many connections each address has.
#[derive(Clone)]
struct Crowd {
    most: usize,
    addresses: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl Crowd {
    fn new(most: usize) -> Self {
        Self { most, addresses: Arc::default() }
    }

    /// One more connection from this address, until what it gives is dropped; none if it has too many.
    fn enter(&self, address: IpAddr) -> Option<Visitor> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let count = addresses.entry(address).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Visitor { address, crowd: self.clone() })
    }
}

/// One connection.
struct Visitor {
    address: IpAddr,
    crowd: Crowd,
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut addresses = self.crowd.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                addresses.remove(&self.address);
            }
        }
    }
}
