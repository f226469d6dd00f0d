//! Errors of the HTTP engine. Errors that the server reports itself are passed on unchanged.

use std::error::Error as _;
use std::time::Duration;

use hyper_util::client::legacy;
use serde::Deserialize;

use super::connection::Reply;
use crate::error::{Error, StoreErrorKind};
use crate::model::ValidationError;
use crate::store::protocol::{VERSION, read_trouble};

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

#[derive(Debug)]
pub(super) struct ErrorResponse {
    pub(super) error: Error,
    /// Whether the server has not begun the request, according to its response.
    pub(super) not_begun: bool,
    pub(super) retryable: bool,
    pub(super) retry_delay: Duration,
}

#[derive(Debug, Deserialize)]
struct Problem {
    code: String,
    detail: String,
    #[serde(default)]
    hint: String,
    #[serde(default)]
    trouble: String,
}

impl ErrorResponse {
    /// Returns a successful response unchanged; converts any other one into an error.
    pub(super) fn of(reply: Reply, at: &str) -> Result<Reply, Self> {
        match reply.version.as_deref() {
            Some(VERSION) if (200..300).contains(&reply.status) => Ok(reply),
            Some(VERSION) => Err(Self::from_server(&reply, at)),
            Some(other) => {
                let message = format!(
                    "the server {at} speaks version {} of the protocol, this leasehold speaks {VERSION}",
                    other.escape_debug()
                );
                let hint = "use the same version of leasehold on both sides";
                Err(Self::permanent(Error::store(StoreErrorKind::Misconfigured, message, hint)))
            }
            None => Err(Self::from_proxy(&reply, at)),
        }
    }

    fn from_server(reply: &Reply, at: &str) -> Self {
        let Ok(problem) = serde_json::from_slice::<Problem>(&reply.body) else {
            let message = format!("the error response of the server {at} ({}) cannot be read", reply.status);
            return Self::permanent(Error::store(StoreErrorKind::Broken, message, "please report this"));
        };
        let not_begun = matches!(problem.code.as_str(), "LATE" | "DRAINING" | "RATE_LIMITED");
        let error = problem.error(at);
        Self {
            not_begun,
            retryable: matches!(&error, Error::Store { kind: StoreErrorKind::Unavailable, .. }),
            // The response carried the server's clock, so the next attempt has a correct deadline.
            retry_delay: if problem.code == "LATE" {
                Duration::ZERO
            } else {
                reply.retry_after.unwrap_or(RETRY_DELAY)
            },
            error,
        }
    }

    /// Converts a response of a proxy, or of another program that is not a leasehold server.
    fn from_proxy(reply: &Reply, at: &str) -> Self {
        let (kind, what, hint) = match reply.status {
            401 | 403 => (
                StoreErrorKind::NotPermitted,
                "rejected the credentials",
                "a proxy in front of the server requires credentials; set LEASEHOLD_API_TOKEN, or write https://TOKEN@HOST",
            ),
            429 | 502..=504 => (
                StoreErrorKind::Unavailable,
                "is unavailable according to the proxy in front of it",
                "check that the server is running",
            ),
            _ => (
                StoreErrorKind::Misconfigured,
                "is not a leasehold server",
                "check the address; if the server is mounted under a path, the path comes last: https://HOST/path",
            ),
        };
        let message = format!("the store {at} {what} ({})", reply.status);
        let retry_delay = reply.retry_after.unwrap_or(RETRY_DELAY);
        let retryable = kind == StoreErrorKind::Unavailable;
        Self { error: Error::store(kind, message, hint), not_begun: false, retryable, retry_delay }
    }

    fn permanent(error: Error) -> Self {
        Self { error, not_begun: false, retryable: false, retry_delay: RETRY_DELAY }
    }
}

/// Delay before a retry if the response has no `Retry-After`.
const RETRY_DELAY: Duration = Duration::from_millis(200);

impl Problem {
    fn error(&self, at: &str) -> Error {
        if let Some(kind) = read_trouble(&self.trouble) {
            return Error::store(kind, &self.detail, &self.hint);
        }
        let message = format!("the server {at} reported: {}", self.detail);
        let (kind, hint) = match self.code.as_str() {
            "INVALID" | "TOO_LARGE" => return ValidationError::other(self.detail.clone()).into(),
            "UNAUTHENTICATED" => (
                StoreErrorKind::NotPermitted,
                "set LEASEHOLD_API_TOKEN to a token of this server, or LEASEHOLD_TOKEN_FILE to a file that contains it, \
                 or write https://TOKEN@HOST; leasehold token new creates a token in the server's own store",
            ),
            "FORBIDDEN" if !self.hint.is_empty() => (StoreErrorKind::NotPermitted, self.hint.as_str()),
            "FORBIDDEN" => (StoreErrorKind::NotPermitted, "use a token with a higher role"),
            "LATE" | "DRAINING" | "RATE_LIMITED" | "STORE_UNAVAILABLE" | "TOO_SLOW" => {
                (StoreErrorKind::Unavailable, self.hint.as_str())
            }
            "PROTOCOL" | "UNKNOWN_PATH" | "NOT_SUPPORTED" => {
                (StoreErrorKind::Misconfigured, self.hint.as_str())
            }
            _ => (StoreErrorKind::Broken, self.hint.as_str()),
        };
        Error::store(kind, message, hint)
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
