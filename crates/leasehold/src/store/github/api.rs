//! The few calls that are needed. Each is sent once: whoever made it knows whether it may be made again.

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
use crate::error::{Error, Result, Trouble};
use crate::model::{Timestamp, Ttl};
use crate::store::dates::Dates;
use crate::store::{Budget, Moment};

/// One repository, as one client sees it.
pub(super) struct Api {
    client: reqwest::Client,
    pub(super) options: GithubOptions,
    pub(super) pace: Pace,
    pub(super) dates: Dates,
    drawn: tokio::sync::Mutex<Option<(String, Moment)>>,
    /// The login of the App that this client is, once GitHub has told it.
    app_login: OnceLock<String>,
    seen: Mutex<Seen>,
}

/// How something is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    /// Now, whatever is known of it: before anything is granted, claims are read like this.
    Anew,
    /// On the condition that it has changed since it was read last. If it has not, it costs nothing of the hour's budget.
    IfChanged,
}

/// An answer: what was read, and the service's time when it was made.
pub(super) struct Dated<T> {
    pub(super) what: T,
    pub(super) now: Timestamp,
}

/// The login of the token that a workflow of GitHub Actions has.
const WORKFLOW_LOGIN: &str = "github-actions[bot]";
/// One request.
const PATIENCE: Duration = Duration::from_secs(5);
/// As many as GitHub gives at once.
const PAGE: usize = 100;
/// A list that is longer than so many pages is not ours.
const MAX_PAGES: usize = 30;
/// The most pages of recent comments that are read, and the age of the oldest comment that counts.
const RECENT_PAGES: usize = 5;
const RECENT: Ttl = Ttl::from_secs(24 * 3600);
/// The status that says that all is as it was.
const UNCHANGED: u16 = 304;
/// The status that says that a token is not good.
const REFUSED: u16 = 401;
/// An App's token is good for an hour.
const DRAWN: Duration = Duration::from_mins(50);

/// What came back, whatever it is.
pub(super) struct Raw {
    pub(super) status: u16,
    now: Timestamp,
    etag: Option<String>,
    body: Vec<u8>,
}

/// What was read, by its path, with its mark.
type Seen = HashMap<String, (String, Arc<[u8]>)>;
/// So many bytes of it are kept at most.
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

    /// The repository itself.
    pub(super) async fn look_at_repository(&self) -> Result<Repository> {
        let raw = self.call(Method::GET, &self.path(""), None).await?;
        self.read(&raw).map(|dated| dated.what)
    }

    /// The service's time and what is left of the budget; costs nothing.
    pub(super) async fn now(&self) -> Result<Timestamp> {
        let raw = self.call(Method::GET, "/rate_limit", None).await?;
        self.read::<Value>(&raw).map(|dated| dated.now)
    }

    /// One issue; none if it is not there.
    pub(super) async fn issue(&self, number: u64, read: Read) -> Result<Option<Dated<Issue>>> {
        let raw = self.get(&self.path(&format!("/issues/{number}")), read).await?;
        self.read_if_there(&raw)
    }

    /// The issues with our label, closed ones too, oldest first.
    pub(super) async fn labelled(&self) -> Result<Dated<Vec<Issue>>> {
        let label =
            percent_encoding::utf8_percent_encode(&self.options.label, percent_encoding::NON_ALPHANUMERIC);
        let query = format!("labels={label}&state=all&sort=created&direction=asc");
        let mut listed: Dated<Vec<Issue>> = self.pages(&self.path("/issues"), &query, Read::Anew).await?;
        listed.what.retain(|issue| issue.pull_request.is_none());
        Ok(listed)
    }

    /// The issues with this label, oldest first; closed ones too, if so wanted.
    pub(super) async fn queued(&self, label: &str, state: &str) -> Result<Dated<Vec<Issue>>> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let query = format!("labels={label}&state={state}&sort=created&direction=asc");
        let mut listed: Dated<Vec<Issue>> =
            self.pages(&self.path("/issues"), &query, Read::IfChanged).await?;
        listed.what.retain(|issue| issue.pull_request.is_none());
        Ok(listed)
    }

    /// What has happened to an issue, oldest first.
    pub(super) async fn events(&self, number: u64) -> Result<Vec<IssueEvent>> {
        self.pages(&self.path(&format!("/issues/{number}/events")), "", Read::Anew)
            .await
            .map(|listed| listed.what)
    }

    /// Adds a label, and makes it if there is none of this name.
    pub(super) async fn add_label(&self, number: u64, label: &str) -> Result<()> {
        let path = self.path(&format!("/issues/{number}/labels"));
        let raw = self.call(Method::POST, &path, Some(json!({ "labels": [label] }))).await?;
        self.read::<Value>(&raw).map(drop)
    }

    /// Takes a label away; says whether it was there.
    pub(super) async fn remove_label(&self, number: u64, label: &str) -> Result<bool> {
        let label = percent_encoding::utf8_percent_encode(label, percent_encoding::NON_ALPHANUMERIC);
        let raw =
            self.call(Method::DELETE, &self.path(&format!("/issues/{number}/labels/{label}")), None).await?;
        self.read_if_there::<Value>(&raw).map(|found| found.is_some())
    }

    /// An issue with labels; whoever may not push gets one without.
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

    /// All comments of an issue, by ascending id; none if the issue is not there.
    pub(super) async fn comments(&self, number: u64, read: Read) -> Result<Option<Dated<Vec<Comment>>>> {
        match self.pages(&self.path(&format!("/issues/{number}/comments")), "", read).await {
            Ok(listed) => Ok(Some(listed)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The comments of all issues that were changed last, the newest first: those of a day, or the first 500.
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

    /// One comment; none if it is not there.
    pub(super) async fn comment(&self, id: u64) -> Result<Option<Dated<Comment>>> {
        let raw = self.call(Method::GET, &self.path(&format!("/issues/comments/{id}")), None).await?;
        self.read_if_there(&raw)
    }

    pub(super) async fn post_comment(&self, number: u64, body: &str) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/{number}/comments"));
        let raw = self.call(Method::POST, &path, Some(json!({ "body": body }))).await?;
        self.read_if_there(&raw)
    }

    /// Changes a comment; none if it is not there any more.
    pub(super) async fn edit_comment(&self, id: u64, body: &str) -> Result<Option<Dated<Comment>>> {
        let path = self.path(&format!("/issues/comments/{id}"));
        let raw = self.call(Method::PATCH, &path, Some(json!({ "body": body }))).await?;
        self.read_if_there(&raw)
    }

    /// Deletes a comment; says whether it was there.
    pub(super) async fn delete_comment(&self, id: u64) -> Result<bool> {
        let raw = self.call(Method::DELETE, &self.path(&format!("/issues/comments/{id}")), None).await?;
        match raw.status {
            204 => Ok(true),
            404 | 410 => Ok(false),
            _ => Err(self.refused(&raw)),
        }
    }

    /// Adds an assignee, or silently does not; the issue tells.
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

    // --- one request --------------------------------------------------------------------------------------------

    pub(super) fn path(&self, rest: &str) -> String {
        format!("/repos/{}/{}{rest}", self.options.owner, self.options.repo)
    }

    /// All pages of a list. The time is that of the first page: what was written before it is in the list.
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
        Error::store(Trouble::Misconfigured, message, "delete old issues or comments of leasehold's")
    }

    pub(super) async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Raw> {
        self.call_unless(method, path, body, None).await
    }

    /// A read, on a condition or without.
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

    /// Remembers an answer that has a mark. What is forgotten costs a request, and nothing else.
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
        // The App's token has ended before its time. Nothing was done with it, so a new one may be tried.
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

    /// With the mark of an answer that is known: 304 if it would be the same.
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
            self.dates.hear(i64::try_from(date.as_micros() / 1_000_000).unwrap_or(0), Moment::now());
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
            Error::store(Trouble::Misconfigured, message, "let the proxy in between pass the header on")
        })?;
        Ok(Raw { status, now, etag: text(&headers, "etag").map(str::to_owned), body })
    }

    async fn authorization(&self) -> Result<String> {
        match &self.options.auth {
            Auth::Token(token) => Ok(format!("Bearer {token}")),
            Auth::App(app) => Ok(format!("Bearer {}", self.drawn(app).await?)),
            Auth::Nobody => {
                let message = format!("there is no token for the GitHub repository {}", self.repository());
                Err(Error::store(Trouble::Misconfigured, message, trouble::NO_TOKEN))
            }
        }
    }

    /// The token that the App has drawn, or a new one.
    async fn drawn(&self, app: &App) -> Result<String> {
        let mut drawn = self.drawn.lock().await;
        let now = Moment::now();
        if let Some((token, until)) = &*drawn
            && now < *until
        {
            return Ok(token.clone());
        }
        let path = format!("/app/installations/{}/access_tokens", app.installation);
        let mut raw = self.prove(app, &path).await?;
        if raw.status == REFUSED {
            // A proof has a date. If this machine's clock is wrong, the answer has told the right one.
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
        let proof = app.proof(self.dates.about(Moment::now()))?;
        self.send(Method::POST, path, Some(json!({})), &format!("Bearer {proof}")).await
    }

    /// Without its login an App does not count claims of its other processes before it has written a comment itself: it
    /// takes no lock wrongly for that, but shows some as free.
    async fn learn_app_login(&self, app: &App) {
        let asked = async {
            let proof = app.proof(self.dates.about(Moment::now()))?;
            let raw = self.send(Method::GET, "/app", None, &format!("Bearer {proof}")).await?;
            self.read::<AppAnswer>(&raw)
        };
        match asked.await {
            Ok(app) => drop(self.app_login.set(format!("{}[bot]", app.what.slug))),
            Err(error) => tracing::debug!(%error, "GitHub does not tell the login of this App"),
        }
    }

    /// Whether this user may be this client, which has not learned its login from a comment of its own. Never any bot at
    /// all: some repeat what strangers write.
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

    /// Why something was refused, in the service's words.
    pub(super) fn reason(raw: &Raw) -> String {
        serde_json::from_slice::<Refusal>(&raw.body).unwrap_or_default().message
    }
}

/// A list of what is not there.
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
        Error::store(Trouble::Broken, "TLS cannot be set up", "please report this").because(error)
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

fn budget(headers: &HeaderMap) -> Option<Budget> {
    Some(Budget {
        limit: number(headers, "x-ratelimit-limit")?,
        remaining: number(headers, "x-ratelimit-remaining")?,
        renews_at: Timestamp::from_micros(number(headers, "x-ratelimit-reset")?.saturating_mul(1_000_000)),
    })
}
