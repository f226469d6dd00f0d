//! One exchange with the server: a request, and its response or the reason why there is none. The
//! certificate of the server is always verified, against the named CA or those of the system.
//!
//! The clocks of the servers are here too, so that a request can carry a deadline until which it may
//! begin. Each response carries a reading of the clock of the server that sent it. Since the response
//! arrived, that clock has advanced at least as far as the clock of this machine, minus the possible
//! drift between two clocks. So a request can name a reading that every server will certainly have
//! passed when the call's deadline has passed on this machine.

use std::error::Error as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Response};
use hyper_util::client::legacy::{self, Client};
use rustls::client::WantsClientCert;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{self, PemObject};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use uuid::Uuid;

use super::options::{ClientCertificate, HttpOptions, misconfigured};
use crate::error::{Error, Result, StoreErrorKind, StoreRemedy};
use crate::store::protocol::{
    CALL_HEADER, CLOCK_HEADER, CallId, PATH, Tick, UNTIL_HEADER, VERSION, VERSION_HEADER,
};
use crate::store::support::connection::http_client::{self, DirectConnector};
use crate::store::support::connection::tls;
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, clock};

/// Maximum idle time of a connection that is reused: servers close idle connections, and a request
/// that is sent at that moment is lost.
const MAX_IDLE: Duration = Duration::from_secs(8);

/// Maximum drift between two clocks: one part in this number.
const DRIFT: u64 = 1000;
/// Time after which a server that has not responded, while another has, is dropped: it has
/// exited, or it no longer serves this address.
const STALE_AFTER: Duration = Duration::from_mins(1);
/// Maximum number of servers behind one address that are tracked.
const MAX_SERVERS: usize = 8;

/// HTTP client of one server.
pub(super) struct Connection {
    pub(super) options: HttpOptions,
    pub(super) clocks: ServerClocks,
    /// Id of this client for as long as the store is open.
    pub(super) client_id: Uuid,
    http: Client<DirectConnector, Full<Bytes>>,
    token: Option<HeaderValue>,
    next_request: AtomicU64,
}

pub(super) struct Request<'a> {
    /// Path after [`PATH`].
    pub(super) path: &'a str,
    /// Arguments of a `POST`; `None` for a `GET`.
    pub(super) body: Option<Bytes>,
    /// Header with the deadline until which a server may begin the request.
    pub(super) start_deadline: Option<&'a str>,
    /// Whether the request supersedes the in-doubt requests for its lease.
    pub(super) supersedes: bool,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// Protocol version of the server, if the response has the header.
    pub(super) version: Option<String>,
    /// Instance of the server.
    pub(super) server: Option<Uuid>,
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
}

impl Connection {
    /// Creates the client; sends nothing yet.
    pub(super) fn new(options: HttpOptions) -> Result<Self> {
        let token = match &options.token {
            Some(token) => Some(bearer(token)?),
            None => None,
        };
        let http = http_client::client(connector(&options)?, MAX_IDLE);
        let (clocks, next_request) = (ServerClocks::default(), AtomicU64::new(0));
        Ok(Self { options, clocks, client_id: clock::new_id(), http, token, next_request })
    }

    /// Returns the address of the server for output.
    pub(super) fn display_url(&self) -> &str {
        &self.options.display_url
    }

    /// Sends a request, and waits for the response until `deadline`.
    pub(super) async fn exchange(
        &self,
        request: Request<'_>,
        deadline: BootInstant,
    ) -> Result<Reply, HttpError> {
        let request = self.build(request);
        let timeout = deadline.after(BootInstant::now());
        match tokio::time::timeout(timeout, self.send(request)).await {
            Ok(reply) => reply,
            Err(_) => Err(HttpError::TimedOut),
        }
    }

    async fn send(&self, request: hyper::Request<Full<Bytes>>) -> Result<Reply, HttpError> {
        let response = self.http.request(request).await.map_err(HttpError::of_request)?;
        let reply = self.read_headers(&response);
        let body = response.into_body().collect().await.map_err(HttpError::IncompleteBody)?;
        Ok(Reply { body: body.to_bytes(), ..reply })
    }

    /// Reads the headers. The clock must be read as soon as the headers have arrived.
    fn read_headers(&self, response: &Response<Incoming>) -> Reply {
        let tick = header(response.headers(), CLOCK_HEADER).and_then(|ticks| Tick::read(ticks).pop());
        if let Some(tick) = tick {
            self.clocks.observe(tick, BootInstant::now());
        }
        let seconds = header(response.headers(), RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
        Reply {
            status: response.status().as_u16(),
            version: header(response.headers(), VERSION_HEADER).map(str::to_owned),
            server: tick.map(|tick| tick.instance),
            retry_after: seconds.map(Duration::from_secs),
            body: Bytes::new(),
        }
    }

    fn build(&self, request: Request<'_>) -> hyper::Request<Full<Bytes>> {
        let method = if request.body.is_some() { Method::POST } else { Method::GET };
        let uri = format!("{}{PATH}/{}", self.options.base, request.path);
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        let call = CallId { client: self.client_id, number, supersedes: request.supersedes };
        let mut http = hyper::Request::builder()
            .method(method)
            .uri(uri)
            .header(USER_AGENT, concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .header(VERSION_HEADER, VERSION)
            .header(CALL_HEADER, call.write());
        if request.body.is_some() {
            http = http.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(deadline) = request.start_deadline {
            http = http.header(UNTIL_HEADER, deadline);
        }
        if let Some(token) = &self.token {
            http = http.header(AUTHORIZATION, token);
        }
        let body = Full::new(request.body.unwrap_or_default());
        http.body(body).expect("the URI was checked and the headers are ASCII")
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| {
        let message = "invalid token: must be printable ASCII without spaces";
        misconfigured(message, "a token looks like lh_…").with_remedy(StoreRemedy::Token).because(error)
    });
    value.map(|mut value| {
        value.set_sensitive(true);
        value
    })
}

/// Omits the token.
impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Timeout of a connection attempt; a slower attempt is abandoned and retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

fn connector(options: &HttpOptions) -> Result<DirectConnector> {
    let roots = if options.tls {
        tls::trusted_roots(options.ca.as_deref(), "?ca=/path/ca.pem")?
    } else {
        RootCertStore::empty()
    };
    let config = tls::config_builder(tls::provider())?.with_root_certificates(roots);
    let config = match &options.client {
        None => config.with_no_client_auth(),
        Some(files) => with_client_certificate(config, files)?,
    };
    Ok(http_client::connector(config, CONNECT_TIMEOUT))
}

fn with_client_certificate(
    config: ConfigBuilder<ClientConfig, WantsClientCert>,
    files: &ClientCertificate,
) -> Result<ClientConfig> {
    let unreadable = |path: &Path, hint, error: pem::Error| {
        misconfigured(&format!("{} cannot be read", path.display()), hint).because(error)
    };
    let hint = "cert names a file with the client's certificate in PEM";
    let chain = tls::pem_certificates(&files.cert).map_err(|error| unreadable(&files.cert, hint, error))?;
    let hint = "key names a file with the private key of the client's certificate in PEM, without a password";
    let key =
        PrivateKeyDer::from_pem_file(&files.key).map_err(|error| unreadable(&files.key, hint, error))?;
    config.with_client_auth_cert(chain, key).map_err(|error| {
        let (cert, key) = (files.cert.display(), files.key.display());
        misconfigured(&format!("{cert} and {key} cannot be used"), "the key must belong to the certificate")
            .because(error)
    })
}

/// Latest clock readings of the servers behind one address, newest first.
#[derive(Debug, Default)]
pub(super) struct ServerClocks(Mutex<Vec<ClockReading>>);

/// Reading of a server's clock, and an instant after that reading.
#[derive(Debug)]
struct ClockReading {
    tick: Tick,
    at: BootInstant,
}

/// Deadline until which a request may begin, on the clocks of the servers that could begin it.
#[derive(Debug, Default)]
pub(super) struct StartDeadline {
    pub(super) header: String,
    pub(super) servers: Vec<Uuid>,
}

impl ServerClocks {
    /// Records a clock reading that a server has just sent.
    pub(super) fn observe(&self, tick: Tick, at: BootInstant) {
        let mut readings = lock(&self.0);
        readings
            .retain(|reading| reading.tick.instance != tick.instance && at.after(reading.at) < STALE_AFTER);
        readings.insert(0, ClockReading { tick, at });
        readings.truncate(MAX_SERVERS);
    }

    /// Whether a server has answered at this address.
    pub(super) fn has_reading(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Returns the clock readings that let no server begin a request after `deadline` of this machine.
    pub(super) fn start_deadline(&self, deadline: BootInstant) -> StartDeadline {
        let readings = lock(&self.0);
        let servers = readings.iter().map(|reading| reading.tick.instance).collect();
        let ticks: Vec<_> = readings.iter().map(|reading| reading.at_deadline(deadline).write()).collect();
        StartDeadline { header: ticks.join(","), servers }
    }
}

impl ClockReading {
    /// Returns the reading that this clock has certainly passed at `deadline` of this machine.
    fn at_deadline(&self, deadline: BootInstant) -> Tick {
        let elapsed = u64::try_from(deadline.after(self.at).as_micros()).unwrap_or(u64::MAX);
        let elapsed = elapsed - elapsed.div_ceil(DRIFT);
        Tick { instance: self.tick.instance, micros: self.tick.micros.saturating_add(elapsed) }
    }
}

/// Error of a request that got no response.
#[derive(Debug)]
pub(super) enum HttpError {
    /// No connection: nothing was sent.
    NotConnected(legacy::Error),
    /// The connection broke, or the server sent something other than a response.
    Broken(legacy::Error),
    IncompleteBody(hyper::Error),
    TimedOut,
}

impl HttpError {
    pub(super) fn of_request(error: legacy::Error) -> Self {
        if error.is_connect() { Self::NotConnected(error) } else { Self::Broken(error) }
    }

    /// Whether the server may have received the request, or may still receive it.
    pub(super) fn may_have_been_sent(&self) -> bool {
        !matches!(self, Self::NotConnected(_))
    }

    pub(super) fn is_retryable(&self) -> bool {
        self.kind() == StoreErrorKind::Unavailable
    }

    fn kind(&self) -> StoreErrorKind {
        match self {
            Self::NotConnected(error) | Self::Broken(error) if is_tls_error(error) => {
                StoreErrorKind::Misconfigured
            }
            Self::Broken(error) if is_not_http(error) => StoreErrorKind::Misconfigured,
            _ => StoreErrorKind::Unavailable,
        }
    }

    pub(super) fn explain(self, at: &str) -> Error {
        let kind = self.kind();
        let (what, hint) = match &self {
            Self::NotConnected(error) | Self::Broken(error) if is_alert(error) => (
                "rejected the TLS handshake of this client",
                "if the server requires client certificates (client_ca), name one with ?cert=PATH&key=PATH",
            ),
            Self::NotConnected(error) | Self::Broken(error) if is_tls_error(error) => (
                "has no TLS certificate that can be trusted",
                "name the right CA with ?ca=PATH and the host as in its certificate, or write http: if the server has no TLS",
            ),
            Self::Broken(error) if is_not_http(error) => (
                "does not answer like a web server",
                "check whether another program listens there, or whether the server requires https",
            ),
            Self::NotConnected(_) => (
                "cannot be reached",
                "check that a leasehold server runs there, with TLS if the address says https, and that no firewall blocks it",
            ),
            Self::Broken(_) | Self::IncompleteBody(_) => (
                "closed the connection before it had answered",
                "try again; check whether the server or a proxy has stopped",
            ),
            Self::TimedOut => {
                ("did not answer in time", "try again; check whether the server is overloaded or unreachable")
            }
        };
        let error = Error::store(kind, format!("the store {at} {what}"), hint);
        match self {
            Self::NotConnected(cause) | Self::Broken(cause) => error.because(cause),
            Self::IncompleteBody(cause) => error.because(cause),
            Self::TimedOut => error,
        }
    }
}

/// Whether TLS failed, at any depth of the error chain.
fn is_tls_error(error: &legacy::Error) -> bool {
    causes(error).any(<Cause>::is::<rustls::Error>)
}

/// Whether the server ended TLS with an alert.
fn is_alert(error: &legacy::Error) -> bool {
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<rustls::Error>());
    causes.any(|error| matches!(error, rustls::Error::AlertReceived(_)))
}

/// Whether the peer sent something other than HTTP, or sent data before the request. hyper has no name
/// for the latter: it is the remaining case when the connection has neither ended nor failed.
fn is_not_http(error: &legacy::Error) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(|error| {
        let has_ended = error.is_incomplete_message() || error.is_canceled() || error.is_closed();
        error.is_parse() || (!has_ended && error.source().is_none())
    })
}

type Cause = dyn std::error::Error + 'static;

fn causes(error: &legacy::Error) -> impl Iterator<Item = &Cause> {
    fn source<'a>(cause: &&'a Cause) -> Option<&'a Cause> {
        // The inner error of an I/O error is not its `source`.
        match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &Cause),
            None => (*cause).source(),
        }
    }
    std::iter::successors(error.source(), source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_passed_its_tick_once_the_deadline_has_passed_here() {
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let clocks = ServerClocks::default();
        assert!(clocks.start_deadline(BootInstant::now()).servers.is_empty() && !clocks.has_reading());
        let at = BootInstant::from_micros(50_000_000);
        clocks.observe(Tick { instance: first, micros: 7_000_000 }, at);
        clocks.observe(Tick { instance: second, micros: 100 }, at);
        let deadline = clocks.start_deadline(at.plus(Duration::from_secs(5)));
        assert_eq!(deadline.servers, [second, first]);
        let ticks = Tick::read(&deadline.header);
        assert_eq!(ticks[1].micros, 7_000_000 + 4_995_000, "a little less than five seconds later");
        // A new reading replaces the older one, and a silent server is dropped.
        clocks.observe(Tick { instance: first, micros: 90_000_000 }, at.plus(Duration::from_secs(70)));
        assert_eq!(clocks.start_deadline(at).servers, [first]);
    }
}
