//! Authentication of requests, the limit of concurrent requests of one token, and the access of streams,
//! which are requests without an end: the token of a stream is checked every few seconds.

use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use leasehold::{BootInstant, Leasehold};

use super::Role;
use super::scope::Identity;
use super::token::{FixedToken, TokenStore, TokenText};
use crate::problem::{ApiResult, Problem};
use crate::sync::{Counts, InProgress};

/// Interval at which the token of a stream is checked again.
const STREAM_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Which callers are accepted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Access {
    /// Every caller, with all rights: for a server that is reachable only from this machine. The
    /// host of a request must name this machine, so that no web page can send requests under
    /// another host name.
    Open,
    /// Callers with a token: one of these, or one in the store.
    Tokens(Vec<FixedToken>),
}

pub(crate) struct Authenticator {
    access: Access,
    tokens: TokenStore,
}

impl Authenticator {
    pub(crate) fn new(leasehold: Leasehold, access: Access) -> Self {
        Self { access, tokens: TokenStore::new(leasehold) }
    }

    /// Whether requests without a token are admitted.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.access, Access::Open)
    }

    pub(crate) async fn authenticate(&self, parts: &Parts) -> Result<Identity, Problem> {
        if self.is_open() {
            return admit_without_token(parts);
        }
        let Some(Credentials { token: text, by_browser }) = credentials(&parts.headers) else {
            let problem = Problem::new("UNAUTHENTICATED", "the request carries no token");
            return Err(problem.hint(
                "send the header: Authorization: Bearer lh_…; create a token on the server's machine with: \
                 leasehold token new --name NAME --role ROLE",
            ));
        };
        if by_browser {
            must_not_be_cross_site(parts)?;
        }
        self.identify(&text).await
    }

    /// Returns the identity for a cookie of the dashboard, which a browser adds by itself, or for a
    /// caller without a token if the server is open.
    pub(crate) async fn authenticate_browser(
        &self,
        parts: &Parts,
        token: Option<&str>,
    ) -> Result<Identity, Problem> {
        if self.is_open() {
            return admit_without_token(parts);
        }
        must_not_be_cross_site(parts)?;
        let missing = || Problem::new("UNAUTHENTICATED", "the request carries no token");
        self.identify(token.ok_or_else(missing)?).await
    }

    /// Returns the identity of the token with this text.
    pub(crate) async fn identify(&self, text: &str) -> Result<Identity, Problem> {
        let unknown = || {
            let problem =
                Problem::new("UNAUTHENTICATED", "the token is not known, has expired or was revoked");
            problem.hint(
                "create a token on the server's machine with: leasehold token new --name NAME --role ROLE",
            )
        };
        let text = TokenText::parse(text).ok_or_else(unknown)?;
        let fixed: &[FixedToken] = match &self.access {
            Access::Open => &[],
            Access::Tokens(fixed) => fixed,
        };
        if let Some(token) = fixed.iter().find(|token| token.hash.is_of(&text)) {
            let (name, scopes) = (token.name.clone(), token.scopes.clone());
            return Ok(Identity { name, role: token.role, has_token: true, scopes });
        }
        let record = self.tokens.find(&text).await?.ok_or_else(unknown)?;
        Ok(Identity { name: record.name, role: record.role, has_token: true, scopes: record.scopes })
    }
}

/// Returns the identity of a caller of an open server, which must be on this machine.
fn admit_without_token(parts: &Parts) -> Result<Identity, Problem> {
    if !names_this_machine(parts) || was_forwarded(parts) {
        let problem = Problem::new("FORBIDDEN", "this server accepts only requests from this machine");
        return Err(problem
            .hint("for use behind a proxy, create a token: leasehold token new --name NAME --role admin"));
    }
    must_not_be_cross_site(parts)?;
    let (name, scopes) = ("anybody".to_owned(), Vec::new());
    Ok(Identity { name, role: Role::Admin, has_token: false, scopes })
}

struct Credentials {
    token: String,
    /// Whether a browser that knows the token adds it by itself, whichever page causes the request.
    by_browser: bool,
}

/// Returns the token of a request: after `Bearer`, or as the password of `Basic`, for clients that
/// support nothing else.
fn credentials(headers: &HeaderMap) -> Option<Credentials> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(Credentials { token: rest.trim().to_owned(), by_browser: false });
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(rest.trim()).ok()?;
    let (_, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some(Credentials { token: password.to_owned(), by_browser: true })
}

/// Returns the token of a request with these headers.
pub(crate) fn token_in(headers: &HeaderMap) -> Option<String> {
    credentials(headers).map(|credentials| credentials.token)
}

/// Rejects a request that a page of another site causes a browser to send. Without a token, or with
/// a token that the browser adds by itself, the page would act on behalf of the browser's user.
pub(crate) fn must_not_be_cross_site(parts: &Parts) -> Result<(), Problem> {
    let text = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let is_own = |origin: &str| {
        let (_, origin) = origin.split_once("://").unwrap_or_default();
        Some(origin) == parts.headers.get(header::HOST).and_then(|host| host.to_str().ok())
    };
    let is_cross_site = text("origin").is_some_and(|origin| !is_own(origin))
        || text("sec-fetch-site").is_some_and(|site| !matches!(site, "none" | "same-origin"));
    if !is_cross_site {
        return Ok(());
    }
    let problem = Problem::new("FORBIDDEN", "the request was sent by a page of another site");
    Err(problem.hint(
        "a program must not send Origin or Sec-Fetch-Site; a page must send a token: Authorization: Bearer",
    ))
}

/// Whether a proxy forwarded the request, in which case its sender may be on any host.
fn was_forwarded(parts: &Parts) -> bool {
    let names = ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"];
    names.iter().any(|name| parts.headers.contains_key(*name))
}

/// Whether the host of the request is this machine, by a name that no third party can own.
fn names_this_machine(parts: &Parts) -> bool {
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| parts.uri.host()).unwrap_or("");
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub(crate) type Quota = Counts<String>;

/// Counts a request, or rejects it if the token has reached its maximum of concurrent requests.
pub(crate) fn enter(quota: &Quota, token: &str, max: usize) -> ApiResult<InProgress<String>> {
    InProgress::enter(quota, token.to_owned(), max).ok_or_else(|| {
        let detail = format!("the token '{token}' has {max} concurrent requests, which is its maximum");
        let problem = Problem::new("RATE_LIMITED", detail).retry_after(Duration::from_secs(1));
        problem.hint("send fewer concurrent requests, or raise [limits] requests_per_token")
    })
}

/// Token of a stream, and the time of its next check. The stream counts as a request of its token until it
/// ends.
pub(crate) struct StreamAccess {
    /// Text of the token; `None` on a server without tokens.
    token: Option<String>,
    due: BootInstant,
    _in_progress: Option<InProgress<String>>,
}

impl StreamAccess {
    /// Creates the access of a stream whose token was checked just now. `in_progress` is the count of the
    /// request.
    pub(crate) fn new(
        authenticator: &Authenticator,
        token: Option<String>,
        in_progress: Option<InProgress<String>>,
    ) -> Self {
        let token = token.filter(|_| !authenticator.is_open());
        Self { token, due: BootInstant::now().plus(STREAM_CHECK_INTERVAL), _in_progress: in_progress }
    }

    /// Waits until the token is to be checked again.
    pub(crate) async fn wait(&self) {
        match self.token {
            Some(_) => tokio::time::sleep(self.due.after(BootInstant::now())).await,
            None => std::future::pending().await,
        }
    }

    /// Checks the token if its check is due. Returns whether it was revoked or has expired, or no longer
    /// reaches what the stream follows. A store that does not respond is no reason to end the stream.
    pub(crate) async fn is_lost(
        &mut self,
        authenticator: &Authenticator,
        may_follow: impl Fn(&Identity) -> ApiResult<()>,
    ) -> bool {
        let now = BootInstant::now();
        let Some(token) = self.token.as_deref().filter(|_| self.due <= now) else { return false };
        self.due = now.plus(STREAM_CHECK_INTERVAL);
        match authenticator.identify(token).await {
            Ok(identity) => may_follow(&identity).is_err(),
            Err(problem) => problem.code() == "UNAUTHENTICATED",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(name: header::HeaderName, value: &str) -> Parts {
        let request = axum::http::Request::builder().uri("/x").header(name, value);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_token_is_sent_as_bearer_or_as_a_password() {
        let token = |value| token_in(&parts(header::AUTHORIZATION, value).headers);
        assert_eq!(token("Bearer lh_1_x").as_deref(), Some("lh_1_x"));
        assert_eq!(token("bearer  lh_1_x").as_deref(), Some("lh_1_x"));
        assert_eq!(token("Basic YWRhOmxoXzFfeA==").as_deref(), Some("lh_1_x"));
        assert_eq!(token("Basic ???"), None);
        assert_eq!(token("Digest x"), None);
    }

    #[test]
    fn pages_of_other_sites_are_rejected() {
        let from = |headers: &[(&str, &str)]| {
            let mut request = axum::http::Request::builder().uri("/x").header("host", "127.0.0.1:7420");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            must_not_be_cross_site(&request.body(()).unwrap().into_parts().0).is_ok()
        };
        assert!(from(&[]));
        assert!(from(&[("origin", "http://127.0.0.1:7420"), ("sec-fetch-site", "same-origin")]));
        assert!(from(&[("sec-fetch-site", "none")]));
        for other in ["https://evil.example", "null", "http://127.0.0.1:8080", "http://localhost:7420", ""] {
            assert!(!from(&[("origin", other)]), "{other}");
        }
        for site in ["cross-site", "same-site", "?"] {
            assert!(!from(&[("sec-fetch-site", site)]), "{site}");
        }
    }

    #[test]
    fn only_loopback_names_are_this_machine() {
        let here = |host| names_this_machine(&parts(header::HOST, host));
        for host in ["localhost", "localhost:7420", "127.0.0.1:7420", "[::1]:7420", "127.8.8.8"] {
            assert!(here(host), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "10.0.0.1:7420", "[::2]:1"] {
            assert!(!here(host), "{host}");
        }
    }

    #[test]
    fn each_token_has_its_own_limit() {
        let quota = Quota::default();
        let first = enter(&quota, "ada", 2).unwrap();
        let _second = enter(&quota, "ada", 2).unwrap();
        assert_eq!(enter(&quota, "ada", 2).err().unwrap().code(), "RATE_LIMITED");
        let other = enter(&quota, "eve", 2).unwrap();
        drop((first, other));
        assert!(enter(&quota, "ada", 2).is_ok());
        assert_eq!(quota.lock().unwrap().len(), 1, "only tokens with a request are counted");
    }
}
