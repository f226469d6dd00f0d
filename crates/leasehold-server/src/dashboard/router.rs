//! Routes of the dashboard, the HTML for each address, and the headers of all responses.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};

use super::data::{Content, Data};
use super::http::assets;
use super::http::session::{self, Viewer};
use super::live::updates;
use super::pages::layout::{self, Frame, Page};
use super::view::View;
use super::{actions, export, load, pages};
use crate::problem::{ApiResult, Problem};
use crate::request::request_id::HiddenTexts;
use crate::server::App;
use crate::status;

/// Content security policy: everything comes from this server, and no script within a page is executed.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Returns the routes of the dashboard.
pub(crate) fn routes() -> Router<App> {
    let mut router = Router::new();
    for path in [
        "/",
        "/locks",
        "/locks/{name}",
        "/queues",
        "/tasks",
        "/tasks/{id}",
        "/executions",
        "/executions/{id}",
        "/schedules",
        "/workers",
        "/audit",
        "/health",
    ] {
        router = router.route(path, get(page));
    }
    for path in [
        "/locks/{name}/ask",
        "/locks/{name}/force-release",
        "/tasks/{id}/retry",
        "/tasks/{id}/cancel",
        "/executions/{id}/abort",
        "/queues/{name}/pause",
        "/queues/{name}/resume",
        "/schedules/{name}/pause",
        "/schedules/{name}/resume",
    ] {
        router = router.route(path, get(actions::show).post(actions::perform));
    }
    router
        .route("/tasks/{id}/{file}", get(export::task_file))
        .route("/audit.ndjson", get(export::audit_ndjson))
        .route("/audit.csv", get(export::audit_csv))
        .route("/live", get(updates::live))
        .route("/assets/{name}", get(assets::asset))
        .route("/sign-in", get(session::form).post(session::sign_in))
        .route("/sign-out", post(session::sign_out))
        .layer(from_fn(with_headers))
}

/// Shows a page.
async fn page(app: App, viewer: Viewer, uri: Uri) -> Response {
    let address = &viewer.browser.path;
    let page: ApiResult<_> = async {
        let view = View::parse(address)?;
        let data = load::load(&app, &viewer.identity, &view).await?;
        let hidden = HiddenTexts::address(&app.leasehold.store().url());
        render(&viewer, &hidden, &view, &data)
    }
    .await;
    match page {
        Ok(page) => {
            let frame = Frame {
                browser: &viewer.browser,
                identity: Some(&viewer.identity),
                csrf: &viewer.csrf,
                notice: actions::notice(uri.query().unwrap_or("")),
            };
            layout::respond(status::OK, &frame, &page)
        }
        Err(problem) => {
            layout::problem_page(&app, &viewer.browser, Some((&viewer.identity, &viewer.csrf)), &problem)
        }
    }
}

/// Returns the page with the HTML for these data.
fn render(viewer: &Viewer, hidden: &HiddenTexts, view: &View, data: &Data) -> ApiResult<Page> {
    let (browser, identity, now) = (&viewer.browser, &viewer.identity, data.now);
    let (title, section, body) = match (view, &data.content) {
        (View::Locks(view), Content::Locks { locks, next }) => {
            ("Locks".to_owned(), "/locks", pages::locks::list(browser, view, now, (locks, next.as_deref())))
        }
        (View::Lock { name, .. }, Content::Lock(lock)) => {
            (name.to_string(), "/locks", pages::locks::one(browser, identity, now, lock))
        }
        (View::Queues, Content::Queues(queues)) => {
            ("Queues".to_owned(), "/queues", pages::lists::queues(browser, identity, now, queues))
        }
        (View::Tasks(view), Content::Tasks(tasks)) => {
            ("Tasks".to_owned(), "/tasks", pages::tasks::list(browser, identity, view, now, tasks))
        }
        (View::Task(id), Content::Task(task)) => {
            (format!("Task {id}"), "/tasks", pages::tasks::one(browser, identity, now, task))
        }
        (View::Executions(view), Content::Executions { executions, next, workflows }) => {
            let list = pages::executions::List { executions, next: next.as_deref(), workflows };
            ("Executions".to_owned(), "/executions", pages::executions::list(browser, view, now, &list))
        }
        (View::Execution(_), Content::Execution(execution)) => (
            format!("Execution of {}", execution.workflow),
            "/executions",
            pages::executions::one(browser, identity, now, execution),
        ),
        (View::Schedules, Content::Schedules(schedules)) => {
            ("Schedules".to_owned(), "/schedules", pages::lists::schedules(browser, identity, now, schedules))
        }
        (View::Workers, Content::Workers(workers)) => {
            ("Workers".to_owned(), "/workers", pages::lists::workers(now, workers))
        }
        (View::Audit(view), Content::Audit { events, next }) => {
            ("Audit".to_owned(), "/audit", pages::lists::audit(browser, view, events, next.as_deref()))
        }
        (View::Health, Content::Health(health)) => {
            ("Health".to_owned(), "/health", pages::lists::health(now, hidden, health))
        }
        (View::Overview(span), Content::Overview(overview)) => {
            ("Overview".to_owned(), "/", pages::overview::page(browser, *span, now, overview))
        }
        _ => return Err(Problem::new("INTERNAL", "the page and its data do not match")),
    };
    let live = view.is_live().then(|| view.address());
    Ok(Page { title, section, body, now: Some(now), live })
}

async fn with_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        // `no-referrer` would remove the origin from the forms of the pages.
        (header::REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}
