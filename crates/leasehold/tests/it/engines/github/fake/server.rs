//! The server itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use leasehold::store::Clock;
use serde_json::{Value, json};

use super::app;
use super::description::{Description, description};
use super::git;
use super::labels::{decoded, etag};
use super::repo::{Assignment, Comment, Issue, Person, Repo};
use super::show;
use super::switches::{Crash, Fate, Ids, OldRefs, Switches, is_like};

/// A GitHub with one repository, `ada/engine`. Fails the test when it is dropped, if anything was asked or answered
/// that the description does not have.
#[derive(Clone)]
pub(in crate::engines::github) struct Fake(Arc<Inner>);

pub(super) struct Inner {
    pub(super) description: &'static Description,
    clock: Clock,
    address: String,
    repo: Mutex<Repo>,
    switches: Mutex<Switches>,
    late: Mutex<Vec<Request>>,
    meddling: Mutex<Vec<(String, Meddle)>>,
    wrong: Mutex<Vec<String>>,
    log: Mutex<Vec<String>>,
}

#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) login: String,
    /// What came with it to prove who asks.
    proof: String,
    pub(super) method: String,
    path: String,
    query: Vec<(String, String)>,
    body: Option<Value>,
}

/// What somebody does to the repository in between.
type Meddle = Box<dyn FnOnce(&mut Repo) + Send>;
pub(super) type Answer = (u16, Option<Value>);

impl Fake {
    /// Starts one; none if the tests go without it.
    pub(in crate::engines::github) async fn start(clock: &Clock) -> Option<Self> {
        let description = description()?;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            description,
            clock: clock.clone(),
            address: format!("http://{}", listener.local_addr().unwrap()),
            repo: Mutex::default(),
            switches: Mutex::default(),
            late: Mutex::default(),
            meddling: Mutex::default(),
            wrong: Mutex::default(),
            log: Mutex::default(),
        };
        let fake = Self(Arc::new(inner));
        for login in ["ada", "bob", "eve"] {
            fake.person(login, Person { is_bot: false, association: "COLLABORATOR", can_push: true });
        }
        let app = axum::Router::new().fallback(serve).with_state(Arc::downgrade(&fake.0));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Some(fake)
    }

    pub(in crate::engines::github) fn url(&self) -> String {
        format!("github://ada/engine?api={}", self.0.address)
    }

    /// Makes somebody known. The token of `ada` is `token-of-ada`.
    pub(in crate::engines::github) fn person(&self, login: &str, person: Person) {
        self.repo().people.insert(login.to_owned(), person);
    }

    pub(super) fn now(&self) -> u64 {
        self.0.now()
    }

    pub(in crate::engines::github) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// How many lists had not changed since they were last read, since the last time this was asked.
    pub(in crate::engines::github) fn unchanged(&self) -> u32 {
        std::mem::take(&mut lock(&self.0.switches).unchanged)
    }

    /// The repository, to look at and to meddle with.
    pub(in crate::engines::github) fn repo(&self) -> MutexGuard<'_, Repo> {
        lock(&self.0.repo)
    }

    /// An issue that a person has made.
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
        lock(&self.0.switches).ids = ids;
    }

    /// Remembers how the comments are, for lists that are old.
    pub(in crate::engines::github) fn freeze(&self) {
        for issue in self.repo().issues.values_mut() {
            issue.before.clone_from(&issue.comments);
        }
    }

    /// So many lists of comments are as they were when it was [frozen](Self::freeze).
    pub(in crate::engines::github) fn stale_lists(&self, count: u32) {
        lock(&self.0.switches).stale_lists = count;
    }

    /// So many requests are left of the hour.
    pub(in crate::engines::github) fn left(&self, requests: u64) {
        lock(&self.0.switches).left = requests;
    }

    /// What whoever reads refs gets to see.
    pub(in crate::engines::github) fn old_refs(&self, old: OldRefs) {
        lock(&self.0.switches).old_refs = old;
    }

    /// The next request like `POST /comments` has this fate.
    pub(in crate::engines::github) fn plan(&self, what: &str, fate: Fate) {
        lock(&self.0.switches).planned.push_back((what.to_owned(), fate));
    }

    /// After so many more requests, this client's next one has this fate, and all after it are lost.
    pub(in crate::engines::github) fn crash(&self, login: &str, after: u32, fate: Fate) {
        lock(&self.0.switches).crash = Some(Crash { login: login.to_owned(), after, fate });
    }

    /// Nobody is dead any more, and nothing is planned.
    pub(in crate::engines::github) fn heal(&self) {
        let mut switches = lock(&self.0.switches);
        *switches = Switches { ids: switches.ids, ..Switches::default() };
    }

    /// Just after the next request like `PATCH /5` has taken effect, somebody does this.
    pub(in crate::engines::github) fn when(
        &self,
        what: &str,
        meddle: impl FnOnce(&mut Repo) + Send + 'static,
    ) {
        lock(&self.0.meddling).push((what.to_owned(), Box::new(meddle)));
    }

    /// Somebody writes a comment by hand.
    pub(in crate::engines::github) fn write(&self, issue: u64, login: &str, body: &str) {
        let path = format!("/repos/ada/engine/issues/{issue}/comments");
        let body = Some(json!({ "body": body }));
        self.0.answer(&Request {
            login: login.to_owned(),
            proof: String::new(),
            method: "POST".to_owned(),
            path,
            query: Vec::new(),
            body,
        });
    }

    /// Somebody assigns an issue to themselves, or takes that back.
    pub(in crate::engines::github) fn assign(&self, issue: u64, login: &str, adds: bool) {
        self.0.answer(&Request {
            login: login.to_owned(),
            proof: String::new(),
            method: if adds { "POST" } else { "DELETE" }.to_owned(),
            path: format!("/repos/ada/engine/issues/{issue}/assignees"),
            query: Vec::new(),
            body: Some(json!({ "assignees": [login] })),
        });
    }

    /// What was late takes effect now.
    pub(in crate::engines::github) fn catch_up(&self) {
        for request in std::mem::take(&mut *lock(&self.0.late)) {
            self.0.answer(&request);
        }
    }

    /// Every request since the last time, as `login METHOD path`.
    pub(in crate::engines::github) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.0.log))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let wrong = lock(&self.wrong);
        if !std::thread::panicking() {
            assert!(wrong.is_empty(), "not as GitHub describes itself: {wrong:#?}");
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
    let proof = token.strip_prefix("Bearer ").unwrap_or_default().to_owned();
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        pair.split_once('=').map_or((pair.to_owned(), String::new()), |(a, b)| (a.to_owned(), b.to_owned()))
    };
    let request = Request {
        login,
        proof,
        method: method.to_string(),
        path: uri.path().to_owned(),
        query: pairs.map(pair).collect(),
        body: (!body.is_empty())
            .then(|| serde_json::from_slice(&body).unwrap_or(Value::String("no JSON".to_owned()))),
    };
    let asked = format!("{} {}", request.method, request.path);
    lock(&fake.log).push(format!("{} {asked}", request.login));
    let query: Vec<_> = request.query.iter().map(|(name, _)| name.clone()).collect();
    let wrong = fake.description.check_request(&request.method, &request.path, &query, request.body.as_ref());
    lock(&fake.wrong).extend(wrong);
    let becomes = lock(&fake.switches).fate(&request.login, &asked);
    match becomes {
        Fate::Pass => {
            let (status, body) = fake.answer(&request);
            let etag = body.as_ref().map(|body| etag(&request, body));
            let known = headers.get("if-none-match").and_then(|value| value.to_str().ok());
            if status == 200 && known.is_some() && etag.as_deref() == known {
                lock(&fake.switches).unchanged += 1;
                return fake.unchanged();
            }
            let etag: Vec<_> = etag.into_iter().map(|etag| ("etag", etag)).collect();
            let response = fake.respond(&request, status, body.as_ref(), &etag);
            let mut meddling = lock(&fake.meddling);
            if let Some(place) = meddling.iter().position(|(what, _)| is_like(&asked, what)) {
                (meddling.remove(place).1)(&mut lock(&fake.repo));
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
    }
}

/// The connection ends before the answer is there.
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
        let wrong = self.description.check_answer(&request.method, &request.path, status, body);
        lock(&self.wrong).extend(wrong);
        let mut response = Response::builder()
            .status(StatusCode::from_u16(status).unwrap())
            .header("date", self.date())
            .header("content-type", "application/json; charset=utf-8")
            .header("x-ratelimit-limit", "5000")
            .header("x-ratelimit-remaining", lock(&self.switches).left.to_string())
            .header("x-ratelimit-reset", (self.now() + 1800).to_string());
        for (name, value) in headers {
            response = response.header(*name, value);
        }
        response.body(Body::from(body.map(Value::to_string).unwrap_or_default())).unwrap()
    }

    /// Does what is asked.
    fn answer(&self, request: &Request) -> Answer {
        let repo = &mut *lock(&self.repo);
        if let Some(installation) = app::installation_of(&request.path) {
            return app::draw(self.description, repo, installation, &request.proof, self.now())
                .unwrap_or_else(|why| refusal(401, &why));
        }
        if request.path == "/app" {
            return app::show(self.description, repo, &request.proof, self.now())
                .unwrap_or_else(|why| refusal(401, &why));
        }
        if !repo.people.contains_key(&request.login) {
            return refusal(401, "Bad credentials");
        }
        let parts: Vec<_> = request.path.trim_start_matches('/').split('/').collect();
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["rate_limit"]) => (200, Some(show::rate_limit(self.description))),
            ("GET", ["repos", "ada", "engine"]) => {
                (200, Some(show::repository(self.description, repo.can_push(&request.login))))
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
                let old = &mut lock(&self.switches).old_refs;
                git::answer(self.description, (repo, old), request, rest, self.now())
            }
            _ => refusal(404, "Not Found"),
        }
    }

    fn list_issues(&self, repo: &Repo, request: &Request) -> Answer {
        let label = decoded(&request.asked("labels"));
        let has_label = |issue: &Issue| issue.labels.iter().any(|name| name.eq_ignore_ascii_case(&label));
        let listed = repo.issues.iter().filter(|(_, issue)| !issue.is_deleted && has_label(issue));
        let listed = listed.filter(|(_, issue)| request.asked("state") == "all" || !issue.is_closed);
        let listed: Vec<_> =
            listed.map(|(number, issue)| show::issue(self.description, repo, *number, issue)).collect();
        (200, Some(Value::Array(request.page(listed))))
    }

    fn create_issue(&self, repo: &mut Repo, request: &Request) -> Answer {
        let (now, number) = (self.now(), repo.new_issue());
        let labels = request.field("labels").as_array().into_iter().flatten().filter_map(Value::as_str);
        let issue = Issue {
            title: request.text("title"),
            body: request.text("body"),
            author: request.login.clone(),
            // Whoever may not push is silently ignored.
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
        let issue = repo.issues.get_mut(&number).expect("it is there");
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
        (status, Some(show::issue(self.description, repo, number, &repo.issues[&number])))
    }

    fn list_comments(&self, repo: &Repo, request: &Request, number: u64) -> Answer {
        let issue = &repo.issues[&number];
        let mut switches = lock(&self.switches);
        let comments = if switches.stale_lists > 0 {
            switches.stale_lists -= 1;
            &issue.before
        } else {
            &issue.comments
        };
        let page = request.page(comments.iter().collect());
        let shown = page.into_iter().map(|(id, comment)| show::comment(self.description, repo, *id, comment));
        (200, Some(Value::Array(shown.collect())))
    }

    /// The comments of all issues, the one that was changed last first.
    fn recent_comments(&self, repo: &Repo, request: &Request) -> Answer {
        let issues = repo.issues.values().filter(|issue| !issue.is_deleted);
        let mut comments: Vec<_> = issues.flat_map(|issue| &issue.comments).collect();
        comments.sort_by_key(|(id, comment)| std::cmp::Reverse((comment.updated_at, **id)));
        let page = request.page(comments).into_iter();
        let shown = page.map(|(id, comment)| show::comment(self.description, repo, *id, comment));
        (200, Some(Value::Array(shown.collect())))
    }

    fn show_comment(&self, repo: &mut Repo, id: u64, status: u16) -> Answer {
        let Some(comment) = repo.issue_of(id).map(|issue| issue.comments[&id].clone()) else {
            return refusal(404, "Not Found");
        };
        (status, Some(show::comment(self.description, repo, id, &comment)))
    }

    fn post_comment(&self, repo: &mut Repo, request: &Request, number: u64) -> Answer {
        let (now, ids) = (self.now(), lock(&self.switches).ids);
        if repo.issues[&number].is_locked && !repo.is_insider(&request.login) {
            return refusal(403, "Unable to create comment because issue is locked.");
        }
        let (id, author) = (repo.next_id(ids), request.login.clone());
        let comment = Comment { body: request.text("body"), author, created_at: now, updated_at: now };
        repo.issues.get_mut(&number).expect("it is there").change(now).insert(id, comment);
        self.show_comment(repo, id, 201)
    }

    fn edit_comment(&self, repo: &mut Repo, request: &Request, id: u64) -> Answer {
        let (now, is_insider) = (self.now(), repo.is_insider(&request.login));
        let Some(issue) = repo.issue_of(id) else { return refusal(404, "Not Found") };
        let comment = issue.change(now).get_mut(&id).expect("it is there");
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

    /// Whoever may not push is silently ignored, on either side.
    fn assign(&self, repo: &mut Repo, request: &Request, number: u64) -> Answer {
        let (now, may) = (self.now(), repo.can_push(&request.login));
        let logins = request.field("assignees").as_array().into_iter().flatten().filter_map(Value::as_str);
        let logins: Vec<_> = logins.filter(|login| may && repo.can_push(login)).map(str::to_owned).collect();
        let issue = repo.issues.get_mut(&number).expect("it is there");
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

    fn asked(&self, name: &str) -> String {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    pub(super) fn page<T>(&self, all: Vec<T>) -> Vec<T> {
        let (size, page) =
            (self.asked("per_page").parse().unwrap_or(30), self.asked("page").parse().unwrap_or(1_usize));
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
