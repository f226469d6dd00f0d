//! Viewers: signing in with an API token and signing out, the viewer of a page, and the form that a viewer
//! sends.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

use super::browser::Browser;
use crate::access::{Identity, enter, must_not_be_cross_site};
use crate::dashboard::pages::layout;
use crate::problem::{ApiResult, Problem};
use crate::request::body;
use crate::server::App;
use crate::status;
use crate::sync::InProgress;

/// Viewer with a valid API token, or any viewer on an open server.
pub(in crate::dashboard) struct Viewer {
    pub(in crate::dashboard) identity: Identity,
    pub(in crate::dashboard) browser: Browser,
    /// CSRF token for the forms of the page.
    pub(in crate::dashboard) csrf: String,
    /// Counts the request until the handler, or a stream that takes it, has ended; `None` on a server without
    /// tokens.
    pub(in crate::dashboard) in_progress: Option<InProgress<String>>,
}

/// Sign-in page, or page that explains the problem. Boxed, because it is large and most requests
/// do not need it.
pub(in crate::dashboard) struct Denied(Box<Response>);

impl IntoResponse for Denied {
    fn into_response(self) -> Response {
        *self.0
    }
}

impl FromRequestParts<App> for Viewer {
    type Rejection = Denied;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Denied> {
        let browser = Browser::of(parts);
        // The cookie is not sent with the first request after a link on another site. The browser
        // repeats the request on its own, with the cookie.
        if browser.came_from_elsewhere {
            return Err(Denied(Box::new(layout::repeat_page(&browser))));
        }
        let viewer = async {
            let identity = app.authenticator.authenticate_browser(parts, browser.token.as_deref()).await?;
            let max = app.options.limits.requests_per_token;
            let in_progress =
                identity.has_token.then(|| enter(&app.quota, &identity.name, max)).transpose()?;
            let csrf = browser.csrf(&app.dashboard.csrf_key);
            Ok(Self { identity, browser: browser.clone(), csrf, in_progress })
        };
        viewer.await.map_err(|problem: Problem| {
            Denied(Box::new(match problem.code() {
                "UNAUTHENTICATED" => layout::sign_in_page(&browser, browser.token.as_ref().map(|_| &problem)),
                _ => layout::problem_page(app, &browser, None, &problem),
            }))
        })
    }
}

impl Viewer {
    /// Rejects a form that no page of this dashboard contained.
    pub(in crate::dashboard) fn check(&self, app: &App, form: &Form) -> ApiResult<()> {
        self.browser.check_csrf(&app.dashboard.csrf_key, form.get("csrf"))
    }
}

/// Fields of a form.
pub(in crate::dashboard) struct Form(Vec<(String, String)>);

impl Form {
    /// Returns the value of a field; empty if the form does not have it.
    pub(in crate::dashboard) fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

impl FromRequest<App> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("");
        if !kind.starts_with("application/x-www-form-urlencoded") {
            return Err(Problem::invalid("the request is not a form of the dashboard"));
        }
        let bytes = body::read(body, app).await?;
        Ok(Self(form_urlencoded::parse(&bytes).into_owned().collect()))
    }
}

/// Shows the form for signing in, or the overview to a viewer who needs none.
pub(in crate::dashboard) async fn form(app: App, browser: Browser) -> Response {
    if app.authenticator.is_open() {
        return layout::redirect(&browser, "/");
    }
    let browser = Browser { path: "/".to_owned(), ..browser };
    (status::OK, layout::sign_in_page(&browser, None)).into_response()
}

/// Stores the API token in a cookie that scripts cannot read, if the token is valid.
pub(in crate::dashboard) async fn sign_in(app: App, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let browser = Browser::of(&parts);
    let form = async {
        must_not_be_cross_site(&parts)?;
        Form::from_request(Request::from_parts(parts.clone(), body), &app).await
    };
    let form: Form = match form.await {
        Ok(form) => form,
        Err(problem) => return layout::problem_page(&app, &browser, None, &problem),
    };
    let next = local(form.get("next"));
    if app.authenticator.is_open() {
        return layout::redirect(&browser, next);
    }
    let token = form.get("token").trim();
    match app.authenticator.identify(token).await {
        Ok(_) => {
            let cookie = browser.cookie(Some(token));
            ([(header::SET_COOKIE, cookie)], layout::redirect(&browser, next)).into_response()
        }
        Err(problem) if problem.code() == "UNAUTHENTICATED" => {
            layout::sign_in_page(&Browser { path: next.to_owned(), ..browser }, Some(&problem))
        }
        Err(problem) => layout::problem_page(&app, &browser, None, &problem),
    }
}

/// Removes the cookie. A viewer whose token is no longer valid is signed out, too.
pub(in crate::dashboard) async fn sign_out(app: App, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let browser = Browser::of(&parts);
    let checked: ApiResult<()> = async {
        must_not_be_cross_site(&parts)?;
        let form = Form::from_request(Request::from_parts(parts.clone(), body), &app).await?;
        match Viewer::from_request_parts(&mut parts, &app).await {
            Ok(viewer) => viewer.check(&app, &form),
            Err(_) => Ok(()),
        }
    }
    .await;
    match checked {
        Ok(()) => {
            ([(header::SET_COOKIE, browser.cookie(None))], layout::redirect(&browser, "/")).into_response()
        }
        Err(problem) => layout::problem_page(&app, &browser, None, &problem),
    }
}

/// Returns the path if it is one of the dashboard, otherwise that of the overview: a form must not send
/// the viewer to another site.
fn local(next: &str) -> &str {
    let is_local =
        next.starts_with('/') && !next.starts_with("//") && !next.contains(['\\', '\r', '\n', '\t']);
    if is_local && next.is_ascii() { next } else { "/" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_viewer_is_sent_to_pages_of_the_dashboard_only() {
        for path in ["/", "/locks?q=a%2Fb", "/locks/a%2Fb"] {
            assert_eq!(local(path), path);
        }
        for path in
            ["", "https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil", "/ü", "/a\r\nb"]
        {
            assert_eq!(local(path), "/", "{path}");
        }
    }
}
