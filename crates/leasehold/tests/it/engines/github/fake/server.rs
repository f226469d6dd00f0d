//! HTTP server of the fake.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use leasehold::model::Timestamp;
use leasehold::store::Clock;
use serde_json::{Value, json};

use super::app;
use super::description::{Description, description};
use super::faults::{Crash, Fate, Faults, Ids, StaleRefs, matches_pattern};
use super::git;
use super::labels::{decoded, etag};
use super::repo::{Assignment, Comment, Issue, Person, Repo};
use super::responses;

/// Fake GitHub with one repository, `ada/engine`. Fails the test on drop if a request or a response
/// did not match the description.
#[derive(Clone)]
pub(in crate::engines::github) struct Fake(Arc<Inner>);

pub(super) struct Inner {
    pub(super) description: &'static Description,
    clock: Clock,
    address: String,
    repo: Mutex<Repo>,
    faults: Mutex<Faults>,
    late: Mutex<Vec<Request>>,
    changes: Mutex<Vec<(String, Change)>>,
    violations: Mutex<Vec<String>>,
    log: Mutex<Vec<String>>,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) login: String,
    /// Credentials of the request.
    credentials: String,
    pub(super) method: String,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Value>,
}

/// Change of the repository that happens between two requests.
type Change = Box<dyn FnOnce(&mut Repo) + Send>;
pub(super) type Answer = (u16, Option<Value>);

impl Fake {
    /// Starts a fake.
    pub(in crate::engines::github) async fn start(clock: &Clock) -> Self {
        let description = description();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            description,
            clock: clock.clone(),
            address: format!("http://{}", listener.local_addr().unwrap()),
            repo: Mutex::default(),
            faults: Mutex::default(),
            late: Mutex::default(),
            changes: Mutex::default(),
            violations: Mutex::default(),
            log: Mutex::default(),
        };
        let fake = Self(Arc::new(inner));
        for login in ["ada", "bob", "eve"] {
            fake.person(login, Person { is_bot: false, association: "COLLABORATOR", can_push: true });
        }
        let app = axum::Router::new().fallback(serve).with_state(Arc::downgrade(&fake.0));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        fake
    }

    pub(in crate::engines::github) fn url(&self) -> String {
        format!("github://ada/engine?api={}", self.0.address)
    }

    /// Adds an account. The token of `ada` is `token-of-ada`.
    pub(in crate::engines::github) fn person(&self, login: &str, person: Person) {
        self.repo().people.insert(login.to_owned(), person);
    }

    pub(super) fn now(&self) -> u64 {
        self.0.now()
    }

    pub(in crate::engines::github) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns how many lists were answered with 304 since the last call.
    pub(in crate::engines::github) fn unchanged(&self) -> u32 {
        std::mem::take(&mut lock(&self.0.faults).unchanged)
    }

    /// Returns the repository, to inspect and to change it.
    pub(in crate::engines::github) fn repo(&self) -> MutexGuard<'_, Repo> {
        lock(&self.0.repo)
    }

    /// Creates an issue, as a person does.
    pub(in crate::engines::github) fn new_issue(&self, title: &str) -> u64 {
        let now = self.0.now();
        let mut repo = self.repo();
        let number = repo.new_issue();
        let (title, author) = (title.to_owned(), "eve".to_owned());
        repo.issues
            .insert(number, Issue { title, author, created_at: now, updated_at: now, ..Issue::default() });
        number
    }

    pub(in crate::engines::github) fn ids(&self, ids: Ids) {
        lock(&self.0.faults).ids = ids;
    }

    /// Stores the current comments, for stale lists.
    pub(in crate::engines::github) fn freeze(&self) {
        for issue in self.repo().issues.values_mut() {
            issue.before.clone_from(&issue.comments);
        }
    }

    /// Answers the next `count` lists of comments with those at the last [`freeze`](Self::freeze).
    pub(in crate::engines::github) fn stale_lists(&self, count: u32) {
        lock(&self.0.faults).stale_lists = count;
    }

    /// Sets the number of requests that are left in this hour.
    pub(in crate::engines::github) fn set_remaining(&self, requests: u64) {
        lock(&self.0.faults).remaining = requests;
    }

    /// Sets which tips readers of refs get.
    pub(in crate::engines::github) fn stale_refs(&self, old: StaleRefs) {
        lock(&self.0.faults).stale_refs = old;
    }

    /// Sets the fate of the next request like `POST /comments`.
    pub(in crate::engines::github) fn plan(&self, pattern: &str, fate: Fate) {
        lock(&self.0.faults).planned.push_back((pattern.to_owned(), fate));
    }

    /// Lets this client's request after `after` more requests have this fate; all later ones are
    /// lost.
    pub(in crate::engines::github) fn crash(&self, login: &str, after: u32, fate: Fate) {
        lock(&self.0.faults).crash = Some(Crash { login: login.to_owned(), after, fate });
    }

    /// Revives crashed clients, and clears the planned fates.
    pub(in crate::engines::github) fn heal(&self) {
        let mut faults = lock(&self.0.faults);
        *faults = Faults { ids: faults.ids, ..Faults::default() };
    }

    /// Runs a change right after the next request like `PATCH /5` has taken effect.
    pub(in crate::engines::github) fn after_request(
        &self,
        pattern: &str,
        change: impl FnOnce(&mut Repo) + Send + 'static,
    ) {
        lock(&self.0.changes).push((pattern.to_owned(), Box::new(change)));
    }

    /// Writes a comment by hand.
    pub(in crate::engines::github) fn write(&self, issue: u64, login: &str, body: &str) {
        let path = format!("/repos/ada/engine/issues/{issue}/comments");
        let body = Some(json!({ "body": body }));
        self.0.answer(&Request {
            login: login.to_owned(),
            credentials: String::new(),
            method: "POST".to_owned(),
            path,
            query: Vec::new(),
            body,
        });
    }

    /// Assigns an issue to a person, or removes that assignment.
    pub(in crate::engines::github) fn assign(&self, issue: u64, login: &str, adds: bool) {
        self.0.answer(&Request {
            login: login.to_owned(),
            credentials: String::new(),
            method: if adds { "POST" } else { "DELETE" }.to_owned(),
            path: format!("/repos/ada/engine/issues/{issue}/assignees"),
            query: Vec::new(),
            body: Some(json!({ "assignees": [login] })),
        });
    }

    /// Executes the late requests now.
    pub(in crate::engines::github) fn catch_up(&self) {
        for request in std::mem::take(&mut *lock(&self.0.late)) {
            self.0.answer(&request);
        }
    }

    /// Returns all requests since the last call, as `login METHOD path`.
    pub(in crate::engines::github) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0.log))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let violations = lock(&self.violations);
        if !std::thread::panicking() {
            assert!(violations.is_empty(), "does not match the description of GitHub: {violations:#?}");
        }
    }
}

async fn serve(
    State(fake): State<std::sync::Weak<Inner>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let Some(fake) = fake.upgrade() else { return cut() };
    let token = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let login = token.strip_prefix("Bearer token-of-").unwrap_or_default().to_owned();
    let credentials = token.strip_prefix("Bearer ").unwrap_or_default().to_owned();
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        pair.split_once('=').map_or((pair.to_owned(), String::new()), |(a, b)| (a.to_owned(), b.to_owned()))
    };
    let request = Request {
        login,
        credentials,
        method: method.to_string(),
        path: uri.path().to_owned(),
        query: pairs.map(pair).collect(),
        body: (!body.is_empty())
            .then(|| serde_json::from_slice(&body).unwrap_or(Value::String("no JSON".to_owned()))),
    };
    let line = format!("{} {}", request.method, request.path);
    lock(&fake.log).push(format!("{} {line}", request.login));
    let query: Vec<_> = request.query.iter().map(|(name, _)| name.clone()).collect();
    let violations =
        fake.description.check_request(&request.method, &request.path, &query, request.body.as_ref());
    lock(&fake.violations).extend(violations);
    let fault = lock(&fake.faults).fate(&request.login, &line);
    if let Fate::Delay(time) = &fault {
        tokio::time::sleep(*time).await;
    }
    match fault {
        Fate::Pass | Fate::Delay(_) => {
            let (status, body) = fake.answer(&request);
            let etag = body.as_ref().map(|body| etag(&request, body));
            let known = headers.get("if-none-match").and_then(|value| value.to_str().ok());
            if status == 200 && known.is_some() && etag.as_deref() == known {
                lock(&fake.faults).unchanged += 1;
                return fake.unchanged();
            }
            let etag: Vec<_> = etag.into_iter().map(|etag| ("etag", etag)).collect();
            let response = fake.respond(&request, status, body.as_ref(), &etag);
            let mut changes = lock(&fake.changes);
            if let Some(position) = changes.iter().position(|(pattern, _)| matches_pattern(&line, pattern)) {
                (changes.remove(position).1)(&mut lock(&fake.repo));
            }
            response
        }
        Fate::LoseRequest => cut(),
        Fate::LoseAnswer => {
            fake.answer(&request);
            cut()
        }
        Fate::Late => {
            lock(&fake.late).push(request);
            cut()
        }
        Fate::Refuse(status, headers) => {
            let message = if status == 403 { "You have exceeded a secondary rate limit" } else { "refused" };
            fake.respond(
                &request,
                status,
                Some(&json!({ "message": message, "documentation_url": "x" })),
                &headers,
            )
        }
        // Axum would add a date, so this one cannot be parsed.
        Fate::Proxy(status) => {
            Response::builder().status(status).header("date", "unknown").body(Body::empty()).unwrap()
        }
    }
}

/// Ends the connection before the response is complete.
fn cut() -> Response<Body> {
    let broken = futures_util::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
    Response::new(Body::from_stream(broken))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(super) fn now(&self) -> u64 {
        self.clock.now().as_micros() / 1_000_000
    }

    pub(super) fn date(&self) -> String {
        let date = jiff::Timestamp::from_second(i64::try_from(self.now()).unwrap()).unwrap();
        date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
    }

    fn respond(
        &self,
        request: &Request,
        status: u16,
        body: Option<&Value>,
        headers: &[(&'static str, String)],
    ) -> Response<Body> {
        let violations = self.description.check_response(&request.method, &request.path, status, body);
        lock(&self.violations).extend(violations);
        let mut response = Response::builder()
            .status(StatusCode::from_u16(status).unwrap())
            .header("date", self.date())
            .header("content-type", "application/json; charset=utf-8")
            .header("x-ratelimit-limit", "5000")
            .header("x-ratelimit-remaining", lock(&self.faults).remaining.to_string())
            .header("x-ratelimit-reset", (self.now() + 1800).to_string());
        for (name, value) in headers {
            response = response.header(*name, value);
        }
        response.body(Body::from(body.map(Value::to_string).unwrap_or_default())).unwrap()
    }

    /// Executes a request.
    fn answer(&self, request: &Request) -> Answer {
        let repo = &mut *lock(&self.repo);
        if let Some(installation) = app::installation_of(&request.path) {
            return app::installation_token(
                self.description,
                repo,
                installation,
                &request.credentials,
                self.now(),
            )
            .unwrap_or_else(|why| refusal(401, &why));
        }
        if request.path == "/app" {
            return app::show(self.description, repo, &request.credentials, self.now())
                .unwrap_or_else(|why| refusal(401, &why));
        }
        if !repo.people.contains_key(&request.login) {
            return refusal(401, "Bad credentials");
        }
        let parts: Vec<_> = request.path.trim_start_matches('/').split('/').collect();
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["rate_limit"]) => (200, Some(responses::rate_limit(self.description))),
            ("GET", ["repos", "ada", "engine"]) => {
                (200, Some(responses::repository(self.description, repo.can_push(&request.login))))
            }
            ("GET", ["repos", "ada", "engine", "issues"]) => self.list_issues(repo, request),
            ("POST", ["repos", "ada", "engine", "issues"]) => self.create_issue(repo, request),
            ("GET", ["repos", "ada", "engine", "issues", "comments"]) => self.recent_comments(repo, request),
            ("GET", ["repos", "ada", "engine", "assignees", login]) if repo.can_push(login) => (204, None),
            ("GET", ["repos", "ada", "engine", "issues", "comments", id]) => {
                self.show_comment(repo, number(id), 200)
            }
            ("PATCH", ["repos", "ada", "engine", "issues", "comments", id]) => {
                self.edit_comment(repo, request, number(id))
            }
            ("DELETE", ["repos", "ada", "engine", "issues", "comments", id]) => {
                self.delete_comment(repo, request, number(id))
            }
            (method, ["repos", "ada", "engine", "issues", issue, rest @ ..]) => {
                let issue = number(issue);
                match repo.issues.get(&issue) {
                    None => refusal(404, "Not Found"),
                    Some(found) if found.is_deleted => refusal(410, "This issue was deleted"),
                    Some(_) => match (method, rest) {
                        ("GET", []) => self.show_issue(repo, issue, 200),
                        ("PATCH", []) => self.edit_issue(repo, request, issue),
                        ("GET", ["comments"]) => self.list_comments(repo, request, issue),
                        ("POST", ["comments"]) => self.post_comment(repo, request, issue),
                        ("POST" | "DELETE", ["assignees"]) => self.assign(repo, request, issue),
                        (_, ["labels" | "events", ..]) => {
                            self.labels_and_events(repo, request, issue, rest.get(1).copied())
                        }
                        _ => refusal(404, "Not Found"),
                    },
                }
            }
            ("GET", ["user"]) => git::user(self.description, &request.login),
            (_, ["repos", "ada", "engine", rest @ ..]) => {
                let old = &mut lock(&self.faults).stale_refs;
                git::answer(self.description, (repo, old), request, rest, self.now())
            }
            _ => refusal(404, "Not Found"),
        }
    }

    fn list_issues(&self, repo: &Repo, request: &Request) -> Answer {
        let label = decoded(&request.query("labels"));
        let has_label = |issue: &Issue| issue.labels.iter().any(|name| name.eq_ignore_ascii_case(&label));
        let listed = repo.issues.iter().filter(|(_, issue)| !issue.is_deleted && has_label(issue));
        let listed = listed.filter(|(_, issue)| request.query("state") == "all" || !issue.is_closed);
        let since = request.query("since").parse::<Timestamp>().ok().map(|time| time.as_micros() / 1_000_000);
        let mut listed: Vec<_> = listed.filter(|(_, issue)| Some(issue.updated_at) > since).collect();
        if request.query("sort") == "updated" {
            listed.sort_by_key(|(number, issue)| (issue.updated_at, **number));
        }
        let page = request.page(listed).into_iter();
        let shown = page.map(|(number, issue)| responses::issue(self.description, repo, *number, issue));
        (200, Some(Value::Array(shown.collect())))
    }

    fn create_issue(&self, repo: &mut Repo, request: &Request) -> Answer {
        let (now, number) = (self.now(), repo.new_issue());
        let labels = request.field("labels").as_array().into_iter().flatten().filter_map(Value::as_str);
        let issue = Issue {
            title: request.text("title"),
            body: request.text("body"),
            author: request.login.clone(),
            // GitHub silently ignores labels of accounts without push access.
            labels: labels.filter(|_| repo.can_push(&request.login)).map(str::to_owned).collect(),
            created_at: now,
            updated_at: now,
            ..Issue::default()
        };
        if issue.title.is_empty() || issue.title.chars().count() > 256 {
            return refusal(422, "Validation Failed");
        }
        repo.issues.insert(number, issue);
        self.show_issue(repo, number, 201)
    }

    fn edit_issue(&self, repo: &mut Repo, request: &Request, number: u64) -> Answer {
        let now = self.now();
        let issue = repo.issues.get_mut(&number).expect("the issue exists");
        issue.updated_at = now;
        if let Some(state) = request.field("state").as_str() {
            let reason = request.field("state_reason").as_str().unwrap_or("completed");
            issue.set_closed((state == "closed").then_some(reason), now);
        }
        if let Some(body) = request.field("body").as_str() {
            body.clone_into(&mut issue.body);
        }
        self.show_issue(repo, number, 200)
    }

    fn show_issue(&self, repo: &Repo, number: u64, status: u16) -> Answer {
        (status, Some(responses::issue(self.description, repo, number, &repo.issues[&number])))
    }

    fn list_comments(&self, repo: &Repo, request: &Request, number: u64) -> Answer {
        let issue = &repo.issues[&number];
        let mut faults = lock(&self.faults);
        let comments = if faults.stale_lists > 0 {
            faults.stale_lists -= 1;
            &issue.before
        } else {
            &issue.comments
        };
        let page = request.page(comments.iter().collect());
        let shown =
            page.into_iter().map(|(id, comment)| responses::comment(self.description, repo, *id, comment));
        (200, Some(Value::Array(shown.collect())))
    }

    /// Lists the comments of all issues, the last changed first.
    fn recent_comments(&self, repo: &Repo, request: &Request) -> Answer {
        let issues = repo.issues.values().filter(|issue| !issue.is_deleted);
        let mut comments: Vec<_> = issues.flat_map(|issue| &issue.comments).collect();
        comments.sort_by_key(|(id, comment)| std::cmp::Reverse((comment.updated_at, **id)));
        let page = request.page(comments).into_iter();
        let shown = page.map(|(id, comment)| responses::comment(self.description, repo, *id, comment));
        (200, Some(Value::Array(shown.collect())))
    }

    fn show_comment(&self, repo: &mut Repo, id: u64, status: u16) -> Answer {
        let Some(comment) = repo.issue_of(id).map(|issue| issue.comments[&id].clone()) else {
            return refusal(404, "Not Found");
        };
        (status, Some(responses::comment(self.description, repo, id, &comment)))
    }

    fn post_comment(&self, repo: &mut Repo, request: &Request, number: u64) -> Answer {
        let (now, ids) = (self.now(), lock(&self.faults).ids);
        if repo.issues[&number].is_locked && !repo.is_insider(&request.login) {
            return refusal(403, "Unable to create comment because issue is locked.");
        }
        let (id, author) = (repo.next_id(ids), request.login.clone());
        let comment = Comment { body: request.text("body"), author, created_at: now, updated_at: now };
        repo.issues.get_mut(&number).expect("the issue exists").change(now).insert(id, comment);
        self.show_comment(repo, id, 201)
    }

    fn edit_comment(&self, repo: &mut Repo, request: &Request, id: u64) -> Answer {
        let (now, is_insider) = (self.now(), repo.is_insider(&request.login));
        let Some(issue) = repo.issue_of(id) else { return refusal(404, "Not Found") };
        let comment = issue.change(now).get_mut(&id).expect("the issue exists");
        if comment.author != request.login && !is_insider {
            return refusal(403, "Must have admin rights to Repository.");
        }
        let body = request.text("body");
        if comment.body != body {
            comment.updated_at = now;
            comment.body = body;
        }
        self.show_comment(repo, id, 200)
    }

    fn delete_comment(&self, repo: &mut Repo, request: &Request, id: u64) -> Answer {
        let (now, is_insider) = (self.now(), repo.is_insider(&request.login));
        let Some(issue) = repo.issue_of(id) else { return refusal(404, "Not Found") };
        if issue.comments[&id].author != request.login && !is_insider {
            return refusal(403, "Must have admin rights to Repository.");
        }
        issue.change(now).remove(&id);
        (204, None)
    }

    /// GitHub silently ignores assignments by and of accounts without push access.
    fn assign(&self, repo: &mut Repo, request: &Request, number: u64) -> Answer {
        let (now, may) = (self.now(), repo.can_push(&request.login));
        let logins = request.field("assignees").as_array().into_iter().flatten().filter_map(Value::as_str);
        let logins: Vec<_> = logins.filter(|login| may && repo.can_push(login)).map(str::to_owned).collect();
        let issue = repo.issues.get_mut(&number).expect("the issue exists");
        issue.updated_at = now;
        let adds = request.method == "POST";
        let news = logins.iter().filter(|login| issue.assignees.contains(login) != adds);
        let by = &request.login;
        let news = news.map(|login| Assignment { adds, login: login.clone(), by: by.clone(), at: now });
        issue.assignments.extend(news);
        issue.assignees.retain(|login| !logins.contains(login));
        if adds {
            issue.assignees.extend(logins);
        }
        self.show_issue(repo, number, if adds { 201 } else { 200 })
    }
}

impl Request {
    pub(super) fn field(&self, name: &str) -> &Value {
        self.body.as_ref().map_or(&Value::Null, |body| &body[name])
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.field(name).as_str().unwrap_or_default().to_owned()
    }

    fn query(&self, name: &str) -> String {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    pub(super) fn page<T>(&self, all: Vec<T>) -> Vec<T> {
        let (size, page) =
            (self.query("per_page").parse().unwrap_or(30), self.query("page").parse().unwrap_or(1_usize));
        all.into_iter().skip((page - 1) * size).take(size).collect()
    }
}

pub(super) fn refusal(status: u16, message: &str) -> Answer {
    (
        status,
        Some(
            json!({ "message": message, "documentation_url": "https://docs.github.example/", "status": status.to_string() }),
        ),
    )
}
