//! One exchange with the server: a request, and its response or the reason why there is none.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, body::Incoming};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use uuid::Uuid;

use super::clocks::Clocks;
use super::options::HttpOptions;
use super::tls;
use super::trouble::Failed;
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::protocol::{
    CALL_HEADER, CLOCK_HEADER, CallId, PATH, Tick, UNTIL_HEADER, VERSION, VERSION_HEADER,
};
use crate::store::{BootInstant, clock};

/// Maximum idle time of a connection that is reused: servers close idle connections, and a request
/// that is sent at that moment is lost.
const IDLE: Duration = Duration::from_secs(8);

/// HTTP client of one server.
pub(super) struct Link {
    pub(super) options: HttpOptions,
    pub(super) clocks: Clocks,
    /// Id of this client for as long as the store is open.
    pub(super) client: Uuid,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    token: Option<HeaderValue>,
    requests: AtomicU64,
}

/// Request to be sent.
pub(super) struct Letter<'a> {
    /// Path after [`PATH`].
    pub(super) path: &'a str,
    /// Arguments of a `POST`; `None` for a `GET`.
    pub(super) body: Option<Bytes>,
    /// Header with the deadline until which the request may begin.
    pub(super) until: Option<&'a str>,
    pub(super) supersedes: bool,
}

/// Response.
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

impl Link {
    /// Creates the client; sends nothing yet.
    pub(super) fn new(options: HttpOptions) -> Result<Self> {
        let token = match &options.token {
            Some(token) => Some(bearer(token)?),
            None => None,
        };
        let mut http = Client::builder(TokioExecutor::new());
        http.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new()).timer(TokioTimer::new());
        let http = http.build(tls::connector(&options)?);
        let (clocks, requests) = (Clocks::default(), AtomicU64::new(0));
        Ok(Self { options, clocks, client: clock::new_id(), http, token, requests })
    }

    /// Returns the address of the server for output.
    pub(super) fn place(&self) -> &str {
        &self.options.shown
    }

    /// Sends a request, and waits for the response until `deadline`.
    pub(super) async fn exchange(&self, letter: Letter<'_>, deadline: BootInstant) -> Result<Reply, Failed> {
        let request = self.request(letter);
        let patience = deadline.after(BootInstant::now());
        match tokio::time::timeout(patience, self.send(request)).await {
            Ok(reply) => reply,
            Err(_) => Err(Failed::TooLate),
        }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Reply, Failed> {
        let response = self.http.request(request).await.map_err(Failed::of_request)?;
        let reply = self.head(&response);
        let body = response.into_body().collect().await.map_err(Failed::of_body)?;
        Ok(Reply { body: body.to_bytes(), ..reply })
    }

    /// Reads the headers. The clock must be read as soon as the headers have arrived.
    fn head(&self, response: &Response<Incoming>) -> Reply {
        let tick = text(response.headers(), CLOCK_HEADER).and_then(|ticks| Tick::read(ticks).pop());
        if let Some(tick) = tick {
            self.clocks.hear(tick, BootInstant::now());
        }
        let seconds = text(response.headers(), RETRY_AFTER.as_str()).and_then(|text| text.parse().ok());
        Reply {
            status: response.status().as_u16(),
            version: text(response.headers(), VERSION_HEADER).map(str::to_owned),
            server: tick.map(|tick| tick.instance),
            retry_after: seconds.map(Duration::from_secs),
            body: Bytes::new(),
        }
    }

    fn request(&self, letter: Letter<'_>) -> Request<Full<Bytes>> {
        let method = if letter.body.is_some() { Method::POST } else { Method::GET };
        let uri = format!("{}{PATH}/{}", self.options.base, letter.path);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let call = CallId { client: self.client, number, supersedes: letter.supersedes };
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(USER_AGENT, concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .header(VERSION_HEADER, VERSION)
            .header(CALL_HEADER, call.write());
        if letter.body.is_some() {
            request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(until) = letter.until {
            request = request.header(UNTIL_HEADER, until);
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let body = Full::new(letter.body.unwrap_or_default());
        request.body(body).expect("an address that was checked, and headers that are plain")
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn bearer(token: &str) -> Result<HeaderValue> {
    let value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| {
        let message = "the token has something that no token has";
        Error::store(StoreErrorKind::Misconfigured, message, "a token is one word, lh_…").because(error)
    });
    value.map(|mut value| {
        value.set_sensitive(true);
        value
    })
}

/// Omits the token.
impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("options", &self.options).finish_non_exhaustive()
    }
}
