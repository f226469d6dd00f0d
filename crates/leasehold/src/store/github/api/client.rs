//! HTTP client of the GitHub API: authentication, rate limits, conditional reads. Each request is sent
//! once: only the caller knows whether it may be repeated.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, IF_NONE_MATCH, USER_AGENT};
use hyper::{Method, Request};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::auth::{App, Auth};
use super::http::HttpClient;
use super::rate_limit::{RateLimiter, ResponseLimits};
use super::responses::{AppInfo, ErrorBody, InstallationToken, User};
use crate::error::Result;
use crate::model::Timestamp;
use crate::store::backoff::{ExponentialBackoff, jittered};
use crate::store::github::options::GithubOptions;
use crate::store::server_clock::ServerClock;
use crate::store::support::mutex::lock;
use crate::store::{BootInstant, RateLimit};

pub(crate) struct Api {
    client: HttpClient,
    pub(crate) options: GithubOptions,
    pub(crate) rate_limiter: RateLimiter,
    pub(crate) dates: ServerClock,
    /// Installation token of the App, and the time until which this client uses it.
    app_token: tokio::sync::Mutex<Option<(String, BootInstant)>>,
    /// Login of the App as which this client authenticates, once GitHub has returned it.
    app_login: OnceLock<String>,
    cache: Mutex<ResponseCache>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Read {
    /// Unconditional read. Claims are read like this before anything is granted.
    Fresh,
    /// Read on the condition that the resource has changed since the last read. If it has not, the
    /// read costs nothing of the hour's rate limit.
    IfChanged,
}

/// Response: the value, and the service's time when the response was made.
pub(crate) struct Dated<T> {
    pub(crate) value: T,
    pub(crate) now: Timestamp,
}

/// Login of the token that a GitHub Actions workflow has.
const WORKFLOW_LOGIN: &str = "github-actions[bot]";
/// Author associations whose content counts.
const TRUSTED_ASSOCIATIONS: [&str; 3] = ["OWNER", "MEMBER", "COLLABORATOR"];
/// Status of a response that has not changed.
const NOT_MODIFIED: u16 = 304;
/// Status of a response to an invalid token.
const UNAUTHORIZED: u16 = 401;
/// Time for which the client uses an App's token, which is valid for an hour.
const APP_TOKEN_TTL: Duration = Duration::from_mins(50);

/// Response with any status.
pub(super) struct Raw {
    pub(super) status: u16,
    now: Timestamp,
    etag: Option<String>,
    body: Vec<u8>,
}

/// Cached responses by path, each with its `ETag`.
type ResponseCache = HashMap<String, (String, Arc<[u8]>)>;
/// Maximum number of bytes of cached responses.
const MAX_CACHED_BYTES: usize = 16 << 20;

impl Api {
    pub(crate) fn new(options: GithubOptions) -> Result<Self> {
        let client = HttpClient::new(&options.api)?;
        let (rate_limiter, dates) = (RateLimiter::new(options.gap), ServerClock::new());
        Ok(Self {
            client,
            options,
            rate_limiter,
            dates,
            app_token: tokio::sync::Mutex::default(),
            app_login: OnceLock::new(),
            cache: Mutex::default(),
        })
    }

    pub(crate) fn repository(&self) -> String {
        format!("{}/{}", self.options.owner, self.options.repo)
    }

    /// Sleeps for long enough that another client can give way.
    pub(crate) async fn backoff(&self, attempt: u32) {
        let min = (self.options.gap / 2).max(Duration::from_millis(20));
        let backoff = ExponentialBackoff::new(min, min * 8);
        tokio::time::sleep(jittered(backoff.delay(attempt))).await;
    }

    pub(super) fn path(&self, rest: &str) -> String {
        format!("/repos/{}/{}{rest}", self.options.owner, self.options.repo)
    }

    pub(super) async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Raw> {
        self.call_with(method, path, body, None, None).await
    }

    pub(super) async fn get(&self, path: &str, read: Read) -> Result<Raw> {
        if read == Read::Fresh {
            return self.call(Method::GET, path, None).await;
        }
        let cached = lock(&self.cache).get(path).cloned();
        let etag = cached.as_ref().map(|(etag, _)| etag.as_str());
        let raw = self.call_with(Method::GET, path, None, etag, None).await?;
        if let Some((etag, body)) = cached.filter(|_| raw.status == NOT_MODIFIED) {
            return Ok(Raw { status: 200, now: raw.now, etag: Some(etag), body: body.to_vec() });
        }
        self.cache_response(path, &raw);
        Ok(raw)
    }

    /// Caches a response that has an `ETag`. Dropping a cached response only costs a request.
    fn cache_response(&self, path: &str, raw: &Raw) {
        let mut cache = lock(&self.cache);
        cache.remove(path);
        let Some(etag) = raw.etag.clone().filter(|_| raw.status == 200 && raw.body.len() <= MAX_CACHED_BYTES)
        else {
            return;
        };
        if cache.values().map(|(_, body)| body.len()).sum::<usize>() + raw.body.len() > MAX_CACHED_BYTES {
            cache.clear();
        }
        cache.insert(path.to_owned(), (etag, raw.body.as_slice().into()));
    }

    /// Sends a request, with a new token of the App if its token is invalid. [`send`](Self::send) describes
    /// `etag` and `end`.
    pub(super) async fn call_with(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        etag: Option<&str>,
        end: Option<BootInstant>,
    ) -> Result<Raw> {
        let authorization = self.authorization().await?;
        let raw = self.send(method.clone(), path, body.clone(), &authorization, etag, end).await?;
        if raw.status != UNAUTHORIZED || !matches!(self.options.auth, Auth::App(_)) {
            return Ok(raw);
        }
        // The App's token has become invalid before its time. GitHub has executed nothing with it,
        // so the request may be repeated with a new token.
        *self.app_token.lock().await = None;
        let authorization = self.authorization().await?;
        self.send(method, path, body, &authorization, etag, end).await
    }

    /// Sends a request. If there is an `end`, sends it before that or not at all: a write may have to wait for
    /// its turn. If `etag` is that of a cached response, GitHub answers with 304 if the response would be
    /// the same.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        authorization: &str,
        etag: Option<&str>,
        end: Option<BootInstant>,
    ) -> Result<Raw> {
        self.rate_limiter.wait_turn(method != Method::GET).await?;
        if end.is_some_and(|end| BootInstant::now() >= end) {
            return Err(self.too_late());
        }
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.options.api))
            .header(ACCEPT, "application/vnd.github+json")
            .header("x-github-api-version", "2022-11-28")
            .header(USER_AGENT, concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .header(AUTHORIZATION, authorization);
        if let Some(etag) = etag {
            request = request.header(IF_NONE_MATCH, etag);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = request.body(body.into()).map_err(|error| self.invalid_request(error))?;
        let ((status, headers, date), body) = self
            .client
            .exchange(request, |response| {
                let date = date(response.headers());
                if let Some(date) = date {
                    let seconds = i64::try_from(date.as_micros() / 1_000_000).unwrap_or(0);
                    self.dates.observe(seconds, BootInstant::now());
                }
                (response.status().as_u16(), response.headers().clone(), date)
            })
            .await
            .map_err(|error| self.unreachable(error))?;
        let body = body.to_vec();
        let limits = ResponseLimits {
            status,
            retry_after: number(&headers, "retry-after"),
            rate_limit: rate_limit(&headers),
            date,
            limited: status >= 400 && String::from_utf8_lossy(&body).contains("rate limit"),
        };
        if let Some(refusal) = self.rate_limiter.observe(&limits) {
            return Err(refusal.error());
        }
        let now = date.ok_or_else(|| self.no_date(status))?;
        Ok(Raw { status, now, etag: text(&headers, "etag").map(str::to_owned), body })
    }

    async fn authorization(&self) -> Result<String> {
        match &self.options.auth {
            Auth::Token(token) => Ok(format!("Bearer {token}")),
            Auth::App(app) => Ok(format!("Bearer {}", self.installation_token(app).await?)),
            Auth::Missing => Err(self.no_token()),
        }
    }

    async fn installation_token(&self, app: &App) -> Result<String> {
        let mut app_token = self.app_token.lock().await;
        let now = BootInstant::now();
        if let Some((token, until)) = &*app_token
            && now < *until
        {
            return Ok(token.clone());
        }
        let path = format!("/app/installations/{}/access_tokens", app.installation);
        let mut raw = self.request_app_token(app, &path).await?;
        if raw.status == UNAUTHORIZED {
            // The JSON Web Token is dated. If this machine's clock is wrong, the response has
            // contained the right time.
            raw = self.request_app_token(app, &path).await?;
        }
        let token = self.parse::<InstallationToken>(&raw)?.value.token;
        *app_token = Some((token.clone(), now.plus(APP_TOKEN_TTL)));
        if self.app_login.get().is_none() {
            self.query_app_login(app).await;
        }
        Ok(token)
    }

    async fn request_app_token(&self, app: &App, path: &str) -> Result<Raw> {
        let json_web_token = app.json_web_token(self.dates.estimate(BootInstant::now()))?;
        let authorization = format!("Bearer {json_web_token}");
        self.send(Method::POST, path, Some(json!({})), &authorization, None, None).await
    }

    /// Queries the login of the App. Without its login, an App does not count the claims of its
    /// other processes before it has posted a comment itself: it acquires no lock wrongly because
    /// of that, but shows some locks as free.
    async fn query_app_login(&self, app: &App) {
        let query = async {
            let json_web_token = app.json_web_token(self.dates.estimate(BootInstant::now()))?;
            let authorization = format!("Bearer {json_web_token}");
            let raw = self.send(Method::GET, "/app", None, &authorization, None, None).await?;
            self.parse::<AppInfo>(&raw)
        };
        match query.await {
            Ok(app) => drop(self.app_login.set(format!("{}[bot]", app.value.slug))),
            Err(error) => tracing::debug!(%error, "GitHub did not return the login of this App"),
        }
    }

    /// Whether this user may be this client, which has not learned its login from a comment of its
    /// own. Never accepts all bots: some of them repeat what strangers write.
    fn may_be_own_login(&self, user: &User) -> bool {
        let is = |login: &str| user.login.eq_ignore_ascii_case(login);
        match self.app_login.get() {
            _ if !user.is_bot() || !self.options.auth.is_app() => false,
            Some(login) => is(login),
            None if self.options.bots.is_empty() => is(WORKFLOW_LOGIN),
            None => self.options.bots.iter().any(|login| is(login)),
        }
    }

    /// Whether content by this author, with this role, counts, for a client with this login if known.
    pub(crate) fn is_trusted(
        &self,
        author: Option<&User>,
        role: Option<&str>,
        own_login: Option<&str>,
    ) -> bool {
        role.is_some_and(|role| TRUSTED_ASSOCIATIONS.contains(&role))
            || author.is_some_and(|user| {
                self.is_listed_worker(&user.login)
                    || own_login.map_or_else(
                        || self.may_be_own_login(user),
                        |own| own.eq_ignore_ascii_case(&user.login),
                    )
            })
    }

    pub(crate) fn is_listed_worker(&self, login: &str) -> bool {
        self.options.workers.iter().any(|worker| worker.eq_ignore_ascii_case(login))
    }

    pub(super) fn parse<T: DeserializeOwned>(&self, raw: &Raw) -> Result<Dated<T>> {
        if !(200..300).contains(&raw.status) {
            return Err(self.error_response(raw));
        }
        let value = serde_json::from_slice(&raw.body).map_err(|error| self.invalid_response(error))?;
        Ok(Dated { value, now: raw.now })
    }

    pub(super) fn parse_if_found<T: DeserializeOwned>(&self, raw: &Raw) -> Result<Option<Dated<T>>> {
        match raw.status {
            404 | 410 => Ok(None),
            _ => self.parse(raw).map(Some),
        }
    }

    /// Returns the service's reason for refusing a request.
    pub(super) fn reason(raw: &Raw) -> String {
        serde_json::from_slice::<ErrorBody>(&raw.body).unwrap_or_default().message
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.trim().parse().ok()
}

fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let date = jiff::fmt::rfc2822::parse(text(headers, "date")?).ok()?;
    u64::try_from(date.timestamp().as_microsecond()).ok().map(Timestamp::from_micros)
}

fn rate_limit(headers: &HeaderMap) -> Option<RateLimit> {
    Some(RateLimit {
        limit: number(headers, "x-ratelimit-limit")?,
        remaining: number(headers, "x-ratelimit-remaining")?,
        renews_at: Timestamp::from_micros(number(headers, "x-ratelimit-reset")?.saturating_mul(1_000_000)),
    })
}
