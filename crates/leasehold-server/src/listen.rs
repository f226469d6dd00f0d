//! Connections: accepting them, not too many at once, none that only takes up room, and an end without broken answers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
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
    http.timer(TokioTimer::new()).header_read_timeout(limits.header_time).pipeline_flush(true);
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
        if is_early && let Some(server) = &*server.borrow() {
            (router, is_early) = (server.router(), false);
        }
        let service = router.clone().map_request(move |mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(from));
            request.map(axum::body::Body::new)
        });
        let connection = http.serve_connection(io_of(stream), TowerToHyperService::new(service));
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
            drop(place);
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

fn io_of(stream: TcpStream) -> TokioIo<TcpStream> {
    // Answers are small and are waited for.
    let _ = stream.set_nodelay(true);
    TokioIo::new(stream)
}
