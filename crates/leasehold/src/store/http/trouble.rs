//! Errors of the HTTP engine. Errors that the server reports itself are passed on unchanged.

use std::error::Error as _;
use std::time::Duration;

use hyper_util::client::legacy;
use serde::Deserialize;

use super::link::Reply;
use crate::error::{Error, StoreErrorKind};
use crate::model::ValidationError;
use crate::store::protocol::{VERSION, read_trouble};

/// Reason why a request got no response.
#[derive(Debug)]
pub(super) enum Failed {
    /// No connection: nothing was sent.
    NotConnected(legacy::Error),
    /// The connection broke, or the server sent something else than a response.
    Broken(legacy::Error),
    /// The response was incomplete.
    BrokenOff(hyper::Error),
    /// The deadline passed.
    TooLate,
}

impl Failed {
    pub(super) fn of_request(error: legacy::Error) -> Self {
        if error.is_connect() { Self::NotConnected(error) } else { Self::Broken(error) }
    }

    pub(super) fn of_body(error: hyper::Error) -> Self {
        Self::BrokenOff(error)
    }

    /// Whether the server may have received the request, or may still receive it.
    pub(super) fn may_have_been_sent(&self) -> bool {
        !matches!(self, Self::NotConnected(_))
    }

    /// Whether a retry may succeed.
    pub(super) fn may_pass(&self) -> bool {
        self.trouble() == StoreErrorKind::Unavailable
    }

    fn trouble(&self) -> StoreErrorKind {
        match self {
            Self::NotConnected(error) | Self::Broken(error) if is_about_tls(error) => {
                StoreErrorKind::Misconfigured
            }
            Self::Broken(error) if is_no_http(error) => StoreErrorKind::Misconfigured,
            _ => StoreErrorKind::Unavailable,
        }
    }

    pub(super) fn explain(self, at: &str) -> Error {
        let trouble = self.trouble();
        let (what, hint) = match &self {
            Self::NotConnected(error) | Self::Broken(error) if is_alert(error) => (
                "does not accept this client's TLS",
                "if the server wants client certificates (client_ca), name one with ?cert=PATH&key=PATH",
            ),
            Self::NotConnected(error) | Self::Broken(error) if is_about_tls(error) => (
                "does not speak TLS that can be trusted",
                "name the right CA with ?ca=PATH and the host as in its certificate, or write http: if it has no TLS",
            ),
            Self::Broken(error) if is_no_http(error) => {
                ("does not answer like a web server", "is it another program, or does it want https?")
            }
            Self::NotConnected(_) => (
                "cannot be reached",
                "is a leasehold server running there, with TLS if the address says https, and is the way to it open?",
            ),
            Self::Broken(_) | Self::BrokenOff(_) => {
                ("hung up before it had answered", "try again; did the server end, or something in between?")
            }
            Self::TooLate => ("did not answer in time", "try again; is it overloaded, or cut off?"),
        };
        let error = Error::store(trouble, format!("the store {at} {what}"), hint);
        match self {
            Self::NotConnected(cause) | Self::Broken(cause) => error.because(cause),
            Self::BrokenOff(cause) => error.because(cause),
            Self::TooLate => error,
        }
    }
}

/// Response that reports an error.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) error: Error,
    /// Whether the server has not begun the request, according to its response.
    pub(super) not_begun: bool,
    /// Whether a retry may succeed.
    pub(super) passing: bool,
    /// Delay before a retry.
    pub(super) pause: Duration,
}

/// Problem document of the server.
#[derive(Debug, Deserialize)]
struct Told {
    code: String,
    detail: String,
    #[serde(default)]
    hint: String,
    #[serde(default)]
    trouble: String,
}

impl Refusal {
    /// Returns a successful response unchanged; converts any other one into an error.
    pub(super) fn of(reply: Reply, at: &str) -> Result<Reply, Self> {
        match reply.version.as_deref() {
            Some(VERSION) if (200..300).contains(&reply.status) => Ok(reply),
            Some(VERSION) => Err(Self::told(&reply, at)),
            Some(other) => {
                let message = format!(
                    "the server {at} speaks version {} of the protocol, this leasehold speaks {VERSION}",
                    other.escape_debug()
                );
                let hint = "use the same version of leasehold on both sides";
                Err(Self::lasting(Error::store(StoreErrorKind::Misconfigured, message, hint)))
            }
            None => Err(Self::from_elsewhere(&reply, at)),
        }
    }

    fn told(reply: &Reply, at: &str) -> Self {
        let Ok(told) = serde_json::from_slice::<Told>(&reply.body) else {
            let message = format!("the server {at} answered {} and nothing that makes sense", reply.status);
            return Self::lasting(Error::store(StoreErrorKind::Broken, message, "please report this"));
        };
        let not_begun = matches!(told.code.as_str(), "LATE" | "DRAINING" | "RATE_LIMITED");
        let error = told.error(at);
        Self {
            not_begun,
            passing: matches!(&error, Error::Store { trouble: StoreErrorKind::Unavailable, .. }),
            // The response carried the server's clock, so the next attempt has a correct deadline.
            pause: if told.code == "LATE" { Duration::ZERO } else { reply.retry_after.unwrap_or(AWHILE) },
            error,
        }
    }

    /// Converts a response of a proxy, or of another program that is no leasehold server.
    fn from_elsewhere(reply: &Reply, at: &str) -> Self {
        let (trouble, what, hint) = match reply.status {
            401 | 403 => (
                StoreErrorKind::NotPermitted,
                "does not let us in",
                "a proxy before the server asks for credentials; set LEASEHOLD_API_TOKEN, or write https://TOKEN@HOST",
            ),
            429 | 502..=504 => (
                StoreErrorKind::Unavailable,
                "is away: what stands before it answers",
                "is the server running?",
            ),
            _ => (
                StoreErrorKind::Misconfigured,
                "is no leasehold server",
                "is the address right? a server that is mounted under a path has it at the end: https://HOST/path",
            ),
        };
        let message = format!("the store {at} {what} ({})", reply.status);
        let pause = reply.retry_after.unwrap_or(AWHILE);
        let passing = trouble == StoreErrorKind::Unavailable;
        Self { error: Error::store(trouble, message, hint), not_begun: false, passing, pause }
    }

    fn lasting(error: Error) -> Self {
        Self { error, not_begun: false, passing: false, pause: AWHILE }
    }
}

const AWHILE: Duration = Duration::from_millis(200);

impl Told {
    fn error(&self, at: &str) -> Error {
        if let Some(trouble) = read_trouble(&self.trouble) {
            return Error::store(trouble, &self.detail, &self.hint);
        }
        let told = format!("the server {at} says: {}", self.detail);
        let (trouble, hint) = match self.code.as_str() {
            "INVALID" | "TOO_LARGE" => return ValidationError(self.detail.clone()).into(),
            "UNAUTHENTICATED" => (
                StoreErrorKind::NotPermitted,
                "set LEASEHOLD_API_TOKEN to a token of this server, or name a file that has it with LEASEHOLD_TOKEN_FILE, \
                 or write https://TOKEN@HOST; leasehold token new makes a token in the server's own store",
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
        Error::store(trouble, told, hint)
    }
}

/// Whether TLS failed, at any depth of the error chain.
fn is_about_tls(error: &legacy::Error) -> bool {
    causes(error).any(<Cause>::is::<rustls::Error>)
}

/// Whether the server ended TLS with an alert.
fn is_alert(error: &legacy::Error) -> bool {
    let mut causes = causes(error).filter_map(|cause| cause.downcast_ref::<rustls::Error>());
    causes.any(|error| matches!(error, rustls::Error::AlertReceived(_)))
}

/// Whether the peer sent something else than HTTP, or sent data before the request. hyper has no name
/// for the latter: it is the remaining case when the connection has neither ended nor failed.
fn is_no_http(error: &legacy::Error) -> bool {
    causes(error).filter_map(|cause| cause.downcast_ref::<hyper::Error>()).any(|error| {
        let has_ended = error.is_incomplete_message() || error.is_canceled() || error.is_closed();
        error.is_parse() || (!has_ended && error.source().is_none())
    })
}

type Cause = dyn std::error::Error + 'static;

fn causes(error: &legacy::Error) -> impl Iterator<Item = &Cause> {
    fn below<'a>(cause: &&'a Cause) -> Option<&'a Cause> {
        // The inner error of an I/O error is not its `source`.
        match cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner as &Cause),
            None => (*cause).source(),
        }
    }
    std::iter::successors(error.source(), below)
}
