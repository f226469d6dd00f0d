//! Frame of every page: head, navigation, the dialog of actions; pages for signing in and for problems.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use flate2::Compression;
use leasehold::model::Timestamp;
use maud::{DOCTYPE, Markup, html};

use crate::access::Identity;
use crate::dashboard::http::assets;
use crate::dashboard::http::browser::Browser;
use crate::dashboard::http::gzip;
use crate::problem::Problem;
use crate::request::request_id::HiddenTexts;
use crate::server::App;
use crate::status;

/// Pages of the navigation.
const PAGES: [(&str, &str); 9] = [
    ("/", "Overview"),
    ("/locks", "Locks"),
    ("/queues", "Queues"),
    ("/tasks", "Tasks"),
    ("/executions", "Executions"),
    ("/schedules", "Schedules"),
    ("/workers", "Workers"),
    ("/audit", "Audit"),
    ("/health", "Health"),
];

/// Content of a page.
pub(in crate::dashboard) struct Page {
    pub(in crate::dashboard) title: String,
    /// Path of the page in the navigation.
    pub(in crate::dashboard) section: &'static str,
    pub(in crate::dashboard) body: Markup,
    /// Time of the store when the page was read.
    pub(in crate::dashboard) now: Option<Timestamp>,
    /// Address of the page, if it changes while it is open.
    pub(in crate::dashboard) live: Option<String>,
}

/// Viewer of the page, for the head of the page and its forms.
pub(in crate::dashboard) struct Frame<'a> {
    pub(in crate::dashboard) browser: &'a Browser,
    pub(in crate::dashboard) identity: Option<&'a Identity>,
    pub(in crate::dashboard) csrf: &'a str,
    /// Message after an action.
    pub(in crate::dashboard) notice: Option<&'static str>,
}

/// Returns the whole document.
pub(in crate::dashboard) fn document(frame: &Frame<'_>, page: &Page) -> Markup {
    let browser = frame.browser;
    html! {
        (DOCTYPE)
        html lang="en" data-theme=[browser.theme] {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (page.title) " · leasehold" }
                link rel="icon" type="image/svg+xml" href=(assets::address(&browser.prefix, "icon.svg"));
                link rel="stylesheet" href=(assets::address(&browser.prefix, "dashboard.css"));
                script type="module" src=(assets::address(&browser.prefix, "dashboard.js")) {}
            }
            body data-prefix=(browser.prefix) {
                a.skip href="#main" { "Skip to the content" }
                header.top {
                    a.brand href=(browser.link("/")) {
                        svg viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" {
                            rect class="shackle" x="7" y="3" width="10" height="12" rx="5" {}
                            rect class="body" x="4" y="10" width="16" height="11" rx="2.5" {}
                        }
                        "leasehold"
                    }
                    @if frame.identity.is_some() { (navigation(browser, page.section)) }
                    div.tools {
                        @if page.live.is_some() {
                            button #live.quiet type="button" aria-pressed="true" hidden { span.dot aria-hidden="true" {} span.text { "live" } }
                        }
                        button #theme.quiet type="button" aria-label="Change between dark and light" hidden { "◐" }
                        button #help.quiet type="button" aria-label="Keyboard shortcuts" hidden { "?" }
                        (account(frame))
                    }
                }
                p #status.status role="status" aria-live="polite" { @if let Some(notice) = frame.notice { (notice) } }
                main #main data-now=[page.now.map(Timestamp::as_micros)] data-view=[page.live.as_deref()] { (page.body) }
                dialog #dialog aria-label="Action" {}
            }
        }
    }
}

fn navigation(browser: &Browser, section: &str) -> Markup {
    html! {
        nav.main aria-label="Pages of the dashboard" {
            @for (path, label) in PAGES {
                a href=(browser.link(path)) aria-current=[(path == section).then_some("page")] { (label) }
            }
        }
    }
}

fn account(frame: &Frame<'_>) -> Markup {
    html! {
        @if let Some(identity) = frame.identity {
            @if identity.has_token {
                form.account method="post" action=(frame.browser.link("/sign-out")) {
                    input type="hidden" name="csrf" value=(frame.csrf);
                    span.who { bdi { (identity.name) } " " span.role { (identity.role.to_string()) } }
                    button.quiet type="submit" { "Sign out" }
                }
            } @else {
                span.who title="This server admits every process of this machine" { "open " span.role { "admin" } }
            }
        }
    }
}

/// Returns the response with a page.
pub(in crate::dashboard) fn respond(status: StatusCode, frame: &Frame<'_>, page: &Page) -> Response {
    let document = document(frame, page).into_string();
    let varies = [(header::VARY, HeaderValue::from_static("accept-encoding"))];
    if frame.browser.takes_gzip {
        let compressed = gzip::compress(document.as_bytes(), Compression::fast());
        return (status, varies, [(header::CONTENT_ENCODING, gzip::NAME)], Html(compressed)).into_response();
    }
    (status, varies, Html(document)).into_response()
}

/// Returns the sign-in page. After signing in, the viewer sees the page of the request.
pub(in crate::dashboard) fn sign_in_page(browser: &Browser, problem: Option<&Problem>) -> Response {
    let body = html! {
        form.sign-in method="post" action=(browser.link("/sign-in")) {
            h1 { "Sign in" }
            @if let Some(problem) = problem {
                p.problem role="alert" { (problem.detail()) }
            }
            p { "Sign in with an API token. A reader sees everything and changes nothing; other roles may act." }
            label for="token" { "API token" }
            input #token type="password" name="token" required autocomplete="current-password" autofocus
                spellcheck="false" placeholder="lh_…";
            input type="hidden" name="next" value=(browser.path);
            button.primary type="submit" { "Sign in" }
            p.hint { "Create a token with " code { "leasehold token new --name NAME --role reader" }
                ". The local token of this machine: " code { "leasehold token local" } }
        }
    };
    let page = Page { title: "Sign in".to_owned(), section: "", body, now: None, live: None };
    let frame = Frame { browser, identity: None, csrf: "", notice: None };
    respond(Problem::new("UNAUTHENTICATED", "").status(), &frame, &page)
}

/// Returns a page that explains a problem. It does not contain the address of the store.
pub(in crate::dashboard) fn problem_page(
    app: &App,
    browser: &Browser,
    identity: Option<(&Identity, &str)>,
    problem: &Problem,
) -> Response {
    let body = html! {
        section.message {
            h1 { (problem.title()) }
            (problem_text(app, problem))
            @if let Some((identity, _)) = identity {
                @if identity.is_scoped() && problem.code() == "FORBIDDEN" {
                    p { "Your token reaches: " @for scope in &identity.scopes { code { (scope.to_string()) } " " } }
                    ul { @for (address, label) in reachable(identity) {
                        li { a href=(browser.link(&address)) { (label) } }
                    } }
                }
            }
            p { a.button href=(browser.link("/")) { "Overview" } " " a.button href=(browser.link(&browser.path)) { "Try again" } }
        }
    };
    let page = Page { title: problem.title().to_owned(), section: "", body, now: None, live: None };
    let frame = Frame {
        browser,
        identity: identity.map(|(identity, _)| identity),
        csrf: identity.map_or("", |(_, csrf)| csrf),
        notice: None,
    };
    respond(problem.status(), &frame, &page)
}

/// Returns a problem as text for people.
pub(in crate::dashboard) fn problem_text(app: &App, problem: &Problem) -> Markup {
    let hidden = HiddenTexts::address(&app.leasehold.store().url());
    let is_server_error = problem.status().is_server_error();
    let shown = |text: &str| if is_server_error { hidden.remove_from(text) } else { text.to_owned() };
    html! {
        p.problem role="alert" data-code=(problem.code()) { bdi { (shown(problem.detail())) } }
        @if let Some(hint) = problem.suggestion() { p.hint { (shown(hint)) } }
    }
}

/// Returns the pages that a token with scopes reaches.
fn reachable(identity: &Identity) -> Vec<(String, String)> {
    let link = |scope: &crate::access::Scope| {
        let text = scope.to_string();
        let (kind, name) = text.split_once(':')?;
        let name = name.strip_suffix('*').unwrap_or(name);
        match kind {
            "locks" if !name.is_empty() => Some((
                format!("/locks?q=name%3A{}", crate::dashboard::view::encoded(name)),
                format!("Locks {name}"),
            )),
            "queues" => Some((
                format!("/tasks?queue={}", crate::dashboard::view::encoded(name)),
                format!("Tasks of {name}"),
            )),
            _ => None,
        }
    };
    identity.scopes.iter().filter_map(link).collect()
}

/// Returns a page that makes the browser repeat the request as one of this site, with its cookie.
pub(in crate::dashboard) fn repeat_page(browser: &Browser) -> Response {
    let address = browser.link(&browser.path);
    let body = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(format!("0; url={address}"));
                title { "leasehold" }
            }
            body { p { a href=(address) { "Continue to leasehold" } } }
        }
    };
    Html(body.into_string()).into_response()
}

/// Sends the browser to another page of the dashboard.
pub(in crate::dashboard) fn redirect(browser: &Browser, path: &str) -> Response {
    let address = HeaderValue::from_str(&browser.link(path)).unwrap_or(HeaderValue::from_static("/"));
    (status::SEE_OTHER, [(header::LOCATION, address)]).into_response()
}
