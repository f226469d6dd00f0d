//! Routes of the dashboard, and the headers of all its responses.

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};

use super::http::assets;
use super::http::session;
use super::http::viewer::Viewer;
use super::live::updates;
use super::pages::layout;
use super::pages::layout::Frame;
use super::pages::render;
use super::view::View;
use super::{actions, export, load};
use crate::problem::ApiResult;
use crate::request::request_id::HiddenTexts;
use crate::server::App;
use crate::status;

/// Everything comes from this server, and nothing in a page is executed.
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
        render::render(&viewer, &hidden, &view, &data)
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
