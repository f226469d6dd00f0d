//! Error responses, of the server and of proxies in front of it. Errors of the server's store are passed on
//! unchanged.

use std::time::Duration;

use serde::Deserialize;

use super::connection::Reply;
use crate::error::{Error, StoreErrorKind, StoreRemedy};
use crate::model::ValidationError;
use crate::store::protocol::{VERSION, read_store_error_kind};

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
    #[serde(default, rename = "storeErrorKind")]
    store_error_kind: String,
}

impl ErrorResponse {
    /// Returns a successful response unchanged; converts any other one into an error. `is_known` is whether a
    /// leasehold server has answered at this address before.
    pub(super) fn of(reply: Reply, at: &str, is_known: bool) -> Result<Reply, Self> {
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
            None => Err(Self::from_proxy(&reply, at, is_known)),
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

    /// Converts a response of a proxy, or of another program that is not a leasehold server. Where a server
    /// has answered before, any other response is temporary: while a server is replaced, its proxy may answer
    /// with any status.
    fn from_proxy(reply: &Reply, at: &str, is_known: bool) -> Self {
        let (kind, what, hint) = match reply.status {
            401 | 403 => (
                StoreErrorKind::NotPermitted,
                "rejected the credentials",
                "a proxy in front of the server requires credentials; set LEASEHOLD_API_TOKEN, or write https://TOKEN@HOST",
            ),
            413 => {
                let message = format!("the proxy in front of the store {at} refuses so large a call (413)");
                return Self::permanent(ValidationError::other(message).into());
            }
            408 | 429 | 500..=599 => (
                StoreErrorKind::Unavailable,
                "is unavailable according to the proxy in front of it",
                "check that the server is running",
            ),
            _ if is_known => (
                StoreErrorKind::Unavailable,
                "is not reached: another program answers at its address",
                "check that the server is running, and the settings of the proxy in front of it",
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
        if let Some(kind) = read_store_error_kind(&self.store_error_kind) {
            return Error::store(kind, &self.detail, &self.hint);
        }
        let message = format!("the server {at} reported: {}", self.detail);
        let (kind, hint) = match self.code.as_str() {
            "INVALID" | "TOO_LARGE" => return ValidationError::other(self.detail.clone()).into(),
            "UNAUTHENTICATED" => (
                StoreErrorKind::NotPermitted,
                "set LEASEHOLD_API_TOKEN to a token of this server, or LEASEHOLD_TOKEN_FILE to a file that contains it, \
                 or write https://TOKEN@HOST",
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
        let error = Error::store(kind, message, hint);
        if kind == StoreErrorKind::NotPermitted { error.with_remedy(StoreRemedy::Token) } else { error }
    }
}
