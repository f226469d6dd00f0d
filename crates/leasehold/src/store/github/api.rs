//! Calls to the GitHub API. Each request is sent once: only the caller knows whether it may be
//! repeated.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, IF_NONE_MATCH, USER_AGENT};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::answers::{AppAnswer, Comment, Drawn, Issue, IssueEvent, Refusal, Repository, User};
use super::auth::{App, Auth};
use super::options::GithubOptions;
use super::pace::{Pace, Said};
use super::trouble;
use crate::error::{Error, Result, StoreErrorKind};
use crate::model::{Timestamp, Ttl};
use crate::store::dates::Dates;
use crate::store::{BootInstant, RateLimit};

/// API client of one repository.
pub(super) struct Api {
    client: reqwest::Client,
    pub(super) options: GithubOptions,
    pub(super) pace: Pace,
    pub(super) dates: Dates,
    drawn: tokio::sync::Mutex<Option<(String, BootInstant)>>,
    /// Login of the App as which this client authenticates, once GitHub has returned it.
    app_login: OnceLock<String>,
    seen: Mutex<Seen>,
}

/// Mode of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// Unconditional read. Claims are read like this before anything is granted.
    Anew,
    /// Read on the condition that the resource has changed since the last read. If it has not, the
    /// read costs nothing of the hour's budget.
    IfChanged,
}

/// Response: the value, and the service's time when the response was made.
pub(super) struct Dated<T> {
    pub(super) what: T,
    pub(super) now: Timestamp,
}

/// Login of the token that a GitHub Actions workflow has.
const WORKFLOW_LOGIN: &str = "github-actions[bot]";
/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum page size of GitHub.
const PAGE: usize = 100;
/// Maximum number of pages of a list; a longer list is not leasehold's.
const MAX_PAGES: usize = 30;
/// Maximum number of pages of recent comments that are read, and maximum age of a comment that
/// counts.
const RECENT_PAGES: usize = 5;
const RECENT: Ttl = Ttl::from_secs(24 * 3600);
/// Status of a response that has not changed.
const UNCHANGED: u16 = 304;
/// Status of a response to an invalid token.
const REFUSED: u16 = 401;
/// Time for which the client uses an App's token, which is valid for an hour.
const DRAWN: Duration = Duration::from_mins(50);

/// Response with any status.
pub(super) struct Raw {
    pub(super) status: u16,
    now: Timestamp,
    etag: Option<String>,
    body: Vec<u8>,
}

/// Cached responses by path, each with its `ETag`.
type Seen = HashMap<String, (String, Arc<[u8]>)>;
/// Maximum number of bytes of cached responses.
const MAX_SEEN: usize = 16 << 20;

impl Api {
    pub(super) fn new(options: GithubOptions) -> Result<Self> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls()?)
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| trouble::unreachable(&options.repo, error))?;
        let (pace, dates) = (Pace::new(options.gap), Dates::new());
        Ok(Self {
            client,
            options,
            pace,
            dates,
            drawn: tokio::sync::Mutex::default(),
            app_login: OnceLock::new(),
            seen: Mutex::default(),
        })
    }

    pub(super) fn repository(&self) -> String {
        format!("{}/{}", self.options.owner, self.options.repo)
    }

    /// Returns the repository.
    pub(super) async fn look_at_repository(&self) -> Result<Repository> {
        let raw = self.call(Method::GET, &self.path(""), None).await?;
        self.read(&raw).map(|dated| dated.what)
    }

    /// Returns the service's time, and records what is left of the budget; costs nothing of it.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        let raw = self.call(Method::GET, "/rate_limit", None).await?;
        self.read::<Value>(&raw).map(|dated| dated.now)
    }

    /// Returns one issue; `None` if it does not exist.
    pub(super) async fn issue(&self, number: u64, read: Read) -> Result<Option<Dated<Issue>>> {
        let raw = self.get(&self.path(&format!("/issues/{number}")), read).await?;
        self.read_if_there(&raw)
    }

    /// Returns the issues with leasehold's label, including closed ones, oldest first.
    pub(super) async fn labelled(&self) -> Result<Dated<Vec<Issue>>> {
        let label =
            percent_encoding::utf8_percent_encode(&self.options.label, percent_encoding::NON_ALPHANUMERIC);
        let query = format!("labels={label}&state=all&sort=created&direction=asc");
        let mut listed: Dated<Vec<Issue>> = self.pages(&self.path("/issues"), &query, Read::Anew).await?;
        listed.what.retain(|issue| issue.pull_request.is_none());
        Ok(listed)
    }

    /// Returns the issues with this label, oldest first; the state is `open`, or `all` to include
    /// closed ones.
    pub(super) async fn queued(&self, label: &str, state: &str) -> Result<Dated<Vec<Issue>>> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let query = format!("labels={label}&state={state}&sort=created&direction=asc");
        let mut listed: Dated<Vec<Issue>> =
            self.pages(&self.path("/issues"), &query, Read::IfChanged).await?;
        listed.what.retain(|issue| issue.pull_request.is_none());
        Ok(listed)
    }

    /// Returns the events of an issue, oldest first.
    pub(super) async fn events(&self, number: u64) -> Result<Vec<IssueEvent>> {
        self.pages(&self.path(&format!("/issues/{number}/events")), "", Read::Anew)
            .await
            .map(|listed| listed.what)
    }

    /// Adds a label to an issue; creates the label if it does not exist.
    pub(super) async fn add_label(&self, number: u64, label: &str) -> Result<()> {
        let path = self.path(&format!("/issues/{number}/labels"));
        let raw = self.call(Method::POST, &path, Some(json!({ "labels": [label] }))).await?;
        self.read::<Value>(&raw).map(drop)
    }

    /// Removes a label from an issue; returns whether the issue had it.
    pub(super) async fn remove_label(&self, number: u64, label: &str) -> Result<bool> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let raw =
            self.call(Method::DELETE, &self.path(&format!("/issues/{number}/labels/{label}")), None).await?;
        self.read_if_there::<Value>(&raw).map(|found| found.is_some())
    }

    /// Creates an issue with labels. GitHub leaves the labels out if the token has no push access.
    pub(super) async fn create_issue(
        &self,
        title: &str,
        body: &str,
        labels: &[&str],
    ) -> Result<Dated<Issue>> {
        let asked = json!({ "title": title, "body": body, "labels": labels });
        let raw = self.call(Method::POST, &self.path("/issues"), Some(asked)).await?;
        self.read(&raw)
    }

    pub(super) async fn edit_issue(&self, number: u64, change: Value) -> Result<Dated<Issue>> {
        let raw = self.call(Method::PATCH, &self.path(&format!("/issues/{number}")), Some(change)).await?;
        self.read(&raw)
    }

    /// Returns all comments of an issue, by ascending id; `None` if the issue does not exist.
    pub(super) async fn comments(&self, number: u64, read: Read) -> Result<Option<Dated<Vec<Comment>>>> {
        match self.pages(&self.path(&format!("/issues/{number}/comments")), "", read).await {
            Ok(listed) => Ok(Some(listed)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the comments of all issues that changed last, newest first: those of one day, but at
    /// most 500.
    pub(super) async fn recent_comments(&self) -> Result<Dated<Vec<Comment>>> {
        let path = self.path("/issues/comments");
        let (mut all, mut first) = (Vec::<Comment>::new(), None);
        for page in 1..=RECENT_PAGES {
            let path = format!("{path}?sort=updated&direction=desc&per_page={PAGE}&page={page}");
            let raw = self.get(&path, Read::IfChanged).await?;
            let Dated { what, now } = self.read::<Vec<Comment>>(&raw)?;
            let (count, now) = (what.len(), *first.get_or_insert(now));
            all.extend(what);
            let is_old = all.last().is_none_or(|comment| comment.updated_at.plus(RECENT) < now);
            if count < PAGE || is_old {
                break;
            }
        }
        let now = first.expect("there is a first page");
        all.retain(|comment| now <= comment.updated_at.plus(RECENT));
        Ok(Dated { what: all, now })
    }

    /// Returns one comment; `None` if it does not exist.
    pub(super) async fn comment(&self, id: u64) -> Result<Option<Dated<Comment>>> {
        let raw = self.call(Method::GET, &self.path(&format!("/issues/comments/{id}")), None).await?;
        self.read_if_there(&raw)
    }

    pub(super) async fn post_comment(&self, number: u64, body: &str) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/{number}/comments"));
        let raw = self.call(Method::POST, &path, Some(json!({ "body": body }))).await?;
        self.read_if_there(&raw)
    }

    /// Edits a comment; returns `None` if it does not exist any more.
    pub(super) async fn edit_comment(&self, id: u64, body: &str) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/comments/{id}"));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "body": body }))).await?;
        self.read_if_there(&raw)
    }

    /// Deletes a comment; returns whether it existed.
    pub(super) async fn delete_comment(&self, id: u64) -> Result<bool> {
        let raw = self.call(Method::DELETE, &self.path(&format!("/issues/comments/{id}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 | 410 => Ok(false),
            _ => Err(self.refused(&raw)),
        }
    }

    /// Adds an assignee. GitHub may silently leave it out; the returned issue shows the result.
    pub(super) async fn assign(&self, number: u64, login: &str) -> Result<Dated<Issue>> {
        self.assignees(Method::POST, number, &[login]).await
    }

    /// Whether issues can be assigned to this login.
    pub(super) async fn is_assignable(&self, login: &str) -> Result<bool> {
        let login = percent_encoding::utf8_percent_encode(login, percent_encoding::NON_ALPHANUMERIC);
        let raw = self.call(Method::GET, &self.path(&format!("/assignees/{login}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 => Ok(false),
            _ => Err(self.refused(&raw)),
        }
    }

    pub(super) async fn unassign(&self, number: u64, logins: &[&str]) -> Result<Dated<Issue>> {
        self.assignees(Method::DELETE, number, logins).await
    }

    async fn assignees(&self, method: Method, number: u64, logins: &[&str]) -> Result<Dated<Issue>> {
        let path = self.path(&format!("/issues/{number}/assignees"));
        let raw = self.call(method, &path, Some(json!({ "assignees": logins }))).await?;
        self.read(&raw)
    }

    // --- requests --------------------------------------------------------------------------------

    pub(super) fn path(&self, rest: &str) -> String {
        format!("/repos/{}/{}{rest}", self.options.owner, self.options.repo)
    }

    /// Returns all pages of a list. Its time is that of the first page: everything that was written
    /// before that time is in the list.
    async fn pages<T: DeserializeOwned>(&self, path: &str, query: &str, read: Read) -> Result<Dated<Vec<T>>> {
        let mut all = Vec::new();
        let mut first = None;
        for page in 1..=MAX_PAGES {
            let raw = self.get(&format!("{path}?{query}&per_page={PAGE}&page={page}"), read).await?;
            let Dated { what, now } = self.read::<Vec<T>>(&raw)?;
            let (count, now) = (what.len(), *first.get_or_insert(now));
            all.extend(what);
            if count < PAGE {
                return Ok(Dated { what: all, now });
            }
        }
        Err(self.endless())
    }

    fn endless(&self) -> Error {
        let message = format!("a list of the GitHub repository {} has no end", self.repository());
        Error::store(StoreErrorKind::Misconfigured, message, "delete old issues or comments of leasehold's")
    }

    pub(super) async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Raw> {
        self.call_unless(method, path, body, None).await
    }

    /// Reads a resource, conditionally or not.
    async fn get(&self, path: &str, read: Read) -> Result<Raw> {
        if read == Read::Anew {
            return self.call(Method::GET, path, None).await;
        }
        let known = self.seen().get(path).cloned();
        let etag = known.as_ref().map(|(etag, _)| etag.as_str());
        let raw = self.call_unless(Method::GET, path, None, etag).await?;
        if let Some((etag, body)) = known.filter(|_| raw.status == UNCHANGED) {
            return Ok(Raw { status: 200, now: raw.now, etag: Some(etag), body: body.to_vec() });
        }
        self.see(path, &raw);
        Ok(raw)
    }

    /// Caches a response that has an `ETag`. Dropping a cached response only costs a request.
    fn see(&self, path: &str, raw: &Raw) {
        let mut seen = self.seen();
        seen.remove(path);
        let Some(etag) = raw.etag.clone().filter(|_| raw.status == 200 && raw.body.len() <= MAX_SEEN) else {
            return;
        };
        if seen.values().map(|(_, body)| body.len()).sum::<usize>() + raw.body.len() > MAX_SEEN {
            seen.clear();
        }
        seen.insert(path.to_owned(), (etag, raw.body.as_slice().into()));
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call_unless(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        known: Option<&str>,
    ) -> Result<Raw> {
        let authorization = self.authorization().await?;
        let raw = self.send_unless(method.clone(), path, body.clone(), &authorization, known).await?;
        if raw.status != REFUSED || !matches!(self.options.auth, Auth::App(_)) {
            return Ok(raw);
        }
        // The App's token has become invalid before its time. GitHub has executed nothing with it,
        // so the request may be repeated with a new token.
        *self.drawn.lock().await = None;
        let authorization = self.authorization().await?;
        self.send_unless(method, path, body, &authorization, known).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        authorization: &str,
    ) -> Result<Raw> {
        self.send_unless(method, path, body, authorization, None).await
    }

    /// Sends a request. If `known` is the `ETag` of a cached response, GitHub answers with 304 if
    /// the response would be the same.
    async fn send_unless(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        authorization: &str,
        known: Option<&str>,
    ) -> Result<Raw> {
        self.pace.turn(method != Method::GET).await?;
        let mut request = self
            .client
            .request(method, format!("{}{path}", self.options.api))
            .header(ACCEPT, "application/vnd.github+json")
            .header("x-github-api-version", "2022-11-28")
            .header(USER_AGENT, concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .header(AUTHORIZATION, authorization);
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        if let Some(body) = body {
            request = request.header(CONTENT_TYPE, "application/json").body(body.to_string());
        }
        let lost = |error| trouble::unreachable(&self.repository(), error);
        let answer = request.send().await.map_err(lost)?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let date = date(&headers);
        if let Some(date) = date {
            self.dates.hear(i64::try_from(date.as_micros() / 1_000_000).unwrap_or(0), BootInstant::now());
        }
        let body = answer.bytes().await.map_err(lost)?.to_vec();
        let said = Said {
            status,
            retry_after: number(&headers, "retry-after"),
            budget: budget(&headers),
            date,
            limited: status >= 400 && String::from_utf8_lossy(&body).contains("rate limit"),
        };
        if let Some(refused) = self.pace.hear(&said) {
            return Err(refused.error());
        }
        let now = date.ok_or_else(|| {
            let message = format!("the answers of the GitHub repository {} have no Date", self.repository());
            Error::store(
                StoreErrorKind::Misconfigured,
                message,
                "let the proxy in between pass the header on",
            )
        })?;
        Ok(Raw { status, now, etag: text(&headers, "etag").map(str::to_owned), body })
    }

    async fn authorization(&self) -> Result<String> {
        match &self.options.auth {
            Auth::Token(token) => Ok(format!("Bearer {token}")),
            Auth::App(app) => Ok(format!("Bearer {}", self.drawn(app).await?)),
            Auth::Nobody => {
                let message = format!("there is no token for the GitHub repository {}", self.repository());
                Err(Error::store(StoreErrorKind::Misconfigured, message, trouble::NO_TOKEN))
            }
        }
    }

    /// Returns the current token of the App, or requests a new one.
    async fn drawn(&self, app: &App) -> Result<String> {
        let mut drawn = self.drawn.lock().await;
        let now = BootInstant::now();
        if let Some((token, until)) = &*drawn
            && now < *until
        {
            return Ok(token.clone());
        }
        let path = format!("/app/installations/{}/access_tokens", app.installation);
        let mut raw = self.prove(app, &path).await?;
        if raw.status == REFUSED {
            // The JSON Web Token is dated. If this machine's clock is wrong, the response has
            // contained the right time.
            raw = self.prove(app, &path).await?;
        }
        let token = self.read::<Drawn>(&raw)?.what.token;
        *drawn = Some((token.clone(), now.plus(DRAWN)));
        if self.app_login.get().is_none() {
            self.learn_app_login(app).await;
        }
        Ok(token)
    }

    async fn prove(&self, app: &App, path: &str) -> Result<Raw> {
        let proof = app.proof(self.dates.about(BootInstant::now()))?;
        self.send(Method::POST, path, Some(json!({})), &format!("Bearer {proof}")).await
    }

    /// Queries the login of the App. Without its login, an App does not count the claims of its
    /// other processes before it has posted a comment itself: it acquires no lock wrongly because
    /// of that, but shows some locks as free.
    async fn learn_app_login(&self, app: &App) {
        let asked = async {
            let proof = app.proof(self.dates.about(BootInstant::now()))?;
            let raw = self.send(Method::GET, "/app", None, &format!("Bearer {proof}")).await?;
            self.read::<AppAnswer>(&raw)
        };
        match asked.await {
            Ok(app) => drop(self.app_login.set(format!("{}[bot]", app.what.slug))),
            Err(error) => tracing::debug!(%error, "GitHub does not tell the login of this App"),
        }
    }

    /// Whether this user may be this client, which has not learned its login from a comment of its
    /// own. Never accepts all bots: some of them repeat what strangers write.
    pub(super) fn may_be_me(&self, user: &User) -> bool {
        let is = |login: &str| user.login.eq_ignore_ascii_case(login);
        match self.app_login.get() {
            _ if !user.is_bot() || !self.options.auth.is_of_an_app() => false,
            Some(login) => is(login),
            None if self.options.bots.is_empty() => is(WORKFLOW_LOGIN),
            None => self.options.bots.iter().any(|login| is(login)),
        }
    }

    pub(super) fn read<T: DeserializeOwned>(&self, raw: &Raw) -> Result<Dated<T>> {
        if !(200..300).contains(&raw.status) {
            return Err(self.refused(raw));
        }
        let what = serde_json::from_slice(&raw.body)
            .map_err(|error| trouble::unreadable(&self.repository(), error))?;
        Ok(Dated { what, now: raw.now })
    }

    pub(super) fn read_if_there<T: DeserializeOwned>(&self, raw: &Raw) -> Result<Option<Dated<T>>> {
        match raw.status {
            404 | 410 => Ok(None),
            _ => self.read(raw).map(Some),
        }
    }

    pub(super) fn refused(&self, raw: &Raw) -> Error {
        trouble::refused(&self.repository(), raw.status, &Self::reason(raw))
    }

    /// Returns the service's reason for refusing a request.
    pub(super) fn reason(raw: &Raw) -> String {
        serde_json::from_slice::<Refusal>(&raw.body).unwrap_or_default().message
    }
}

/// Whether the error means that the listed resource does not exist.
fn is_gone(error: &Error) -> bool {
    let said = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
    said.starts_with("404") || said.starts_with("410")
}

fn tls() -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| {
        Error::store(StoreErrorKind::Broken, "TLS cannot be set up", "please report this").because(error)
    })?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
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

fn budget(headers: &HeaderMap) -> Option<RateLimit> {
    Some(RateLimit {
        limit: number(headers, "x-ratelimit-limit")?,
        remaining: number(headers, "x-ratelimit-remaining")?,
        renews_at: Timestamp::from_micros(number(headers, "x-ratelimit-reset")?.saturating_mul(1_000_000)),
    })
}
