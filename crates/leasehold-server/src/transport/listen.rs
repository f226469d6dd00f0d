//! Accepts connections: limits their number, enforces timeouts, and shuts down without truncated
//! responses.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::builder::Server;
use crate::problem::Problem;
use crate::request::request_id::{HiddenTexts, with_request_id};
use crate::server::Limits;
use crate::sync::{Counts, InProgress};
use crate::transport::timeouts::{Timed, Timeouts};
use crate::transport::tls::Tls;

/// Read buffer of a connection; the head of a request has to fit.
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Delay after a failed accept, for example because of too many open files.
const RETRY_DELAY: Duration = Duration::from_millis(100);

/// A running listener.
pub struct Listening {
    address: SocketAddr,
    stop: CancellationToken,
    done: tokio::task::JoinHandle<()>,
}

impl Listening {
    /// Returns the local address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server: closes the listener, ends waiting requests, and waits at most the grace
    /// time for running requests, and for writes of Terraform states whose clients have disconnected.
    pub async fn stop(self) {
        self.stop.cancel();
        let _ = self.done.await;
    }
}

/// Slot for a server whose store is not connected yet. Until [`PendingServer::open`] is called,
/// requests are answered with 503.
pub struct PendingServer(watch::Sender<Option<Server>>);

impl PendingServer {
    /// Hands requests on new connections to this server from now on.
    pub fn open(&self, server: &Server) {
        self.0.send_replace(Some(server.clone()));
    }
}

/// Serves requests on this listener in the background until [`Listening::stop`] is called.
pub fn listen(server: &Server, listener: TcpListener) -> io::Result<Listening> {
    open(server, None, listener)
}

/// Like [`listen`], but over TLS only. Reloads the certificates when their files change.
pub fn listen_tls(server: &Server, tls: Tls, listener: TcpListener) -> io::Result<Listening> {
    open(server, Some(tls), listener)
}

fn open(server: &Server, tls: Option<Tls>, listener: TcpListener) -> io::Result<Listening> {
    let (listening, pending) = listen_early(server.limits(), tls, listener)?;
    pending.open(server);
    Ok(listening)
}

/// Like [`listen`], for a server whose store is not connected yet. Until [`PendingServer::open`] is
/// called, `/healthz` reports that the process is alive and every other request is answered with
/// 503.
pub fn listen_early(
    limits: Limits,
    tls: Option<Tls>,
    listener: TcpListener,
) -> io::Result<(Listening, PendingServer)> {
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    let (pending, server) = watch::channel(None);
    let done = tokio::spawn(accept(listener, server, limits, tls, stop.clone()));
    Ok((Listening { address, stop, done }, PendingServer(pending)))
}

async fn accept(
    listener: TcpListener,
    server: watch::Receiver<Option<Server>>,
    limits: Limits,
    tls: Option<Tls>,
    stop: CancellationToken,
) {
    // Until the server is set, connections get `starting_router`, which closes them after one
    // response.
    let (mut router, mut is_starting) = (starting_router(), true);
    let permits = Arc::new(Semaphore::new(limits.connections));
    let connections = GracefulShutdown::new();
    let counts = Counts::default();
    if let Some(tls) = tls.clone() {
        let stop = stop.clone();
        tokio::spawn(async move { stop.run_until_cancelled(tls.follow_files()).await });
    }
    loop {
        let next = async {
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            (listener.accept().await, permit)
        };
        let (accepted, permit) = tokio::select! {
            next = next => next,
            () = stop.cancelled() => break,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
        };
        let Some(counted) = InProgress::enter(&counts, from.ip(), limits.connections_per_address) else {
            tracing::debug!(address = %from.ip(), "an address has reached its maximum number of connections");
            continue;
        };
        if is_starting && let Some(server) = &*server.borrow() {
            (router, is_starting) = (server.router(), false);
        }
        // Without Nagle's algorithm: responses are small and clients wait for them.
        let _ = stream.set_nodelay(true);
        let (router, watcher, slot) = (router.clone(), connections.watcher(), (permit, counted));
        let connection = Connection { router, limits, from, watcher, slot };
        // Two tasks, so that one without TLS does not have the size of one with TLS.
        match tls.clone() {
            None => tokio::spawn(connection.serve(stream)),
            Some(tls) => tokio::spawn(connection.serve_encrypted(stream, tls, stop.clone())),
        };
    }
    drop(listener);
    let server = server.borrow().clone();
    if let Some(server) = &server {
        server.drain();
    }
    let finished = async {
        connections.shutdown().await;
        if let Some(server) = &server {
            server.finish_state_writes().await;
        }
    };
    if tokio::time::timeout(limits.grace, finished).await.is_err() {
        tracing::warn!("some requests did not end within the grace time");
    }
}

/// Place of a connection within the limits of their number.
type Slot = (OwnedSemaphorePermit, InProgress<IpAddr>);

struct Connection {
    router: Router,
    limits: Limits,
    from: SocketAddr,
    watcher: Watcher,
    slot: Slot,
}

impl Connection {
    /// Serves the requests of this connection after its handshake. A handshake that is incomplete
    /// when the server stops is dropped.
    async fn serve_encrypted(self, stream: TcpStream, tls: Tls, stop: CancellationToken) {
        let encrypted = tls.handshake(stream, self.from, self.limits.header_time);
        if let Some(Some(stream)) = stop.run_until_cancelled(encrypted).await {
            self.serve(stream).await;
        }
    }

    /// Serves the requests of this connection one after the other until the connection ends. Not an
    /// `async fn`, because the future of one would contain the connection twice: a server may have
    /// many connections that wait.
    fn serve<S: AsyncRead + AsyncWrite + Unpin + 'static>(self, stream: S) -> impl Future<Output = ()> {
        let Self { router, limits, from, watcher, slot } = self;
        let Limits { header_time: head, idle_time: idle, write_time: write, .. } = limits;
        let stream = Timed::new(stream, Timeouts { head, idle, write });
        let (begun, answered) = (stream.phase(), stream.phase());
        let service = router
            .map_request(move |mut request: hyper::Request<Incoming>| {
                begun.begin_request();
                request.extensions_mut().insert(ConnectInfo(from));
                request.map(axum::body::Body::new)
            })
            .map_response(move |response| response.map(|body| answered.until_sent(body)));
        let mut http = hyper::server::conn::http1::Builder::new();
        // `Timed` enforces the timeouts; `max_buf_size` limits the unread data.
        http.header_read_timeout(None).max_buf_size(READ_BUFFER_BYTES);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
        watcher.watch(connection).map(move |ended| {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended with an error");
            }
            drop(slot);
        })
    }
}

/// Returns a router that reports the process as alive and answers every other request with 503.
fn starting_router() -> Router {
    let with_id = async |request: Request, next: Next| {
        with_request_id(&HiddenTexts::default(), request, |request| next.run(request)).await
    };
    Router::new().fallback(answer).layer(from_fn(with_id))
}

async fn answer(uri: Uri) -> Response {
    let mut response = if uri.path() == "/healthz" {
        axum::Json(serde_json::json!({ "status": "ok" })).into_response()
    } else {
        let problem = Problem::new("STORE_UNAVAILABLE", "the server has not connected to its store yet");
        problem
            .hint("retry in 1 s; the server is still connecting to the store")
            .retry_after(Duration::from_secs(1))
            .into_response()
    };
    // Closes the connection so that the next request reaches the server that may be ready by then.
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
