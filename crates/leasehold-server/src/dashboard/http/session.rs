//! Signing in with an API token, and signing out.

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::browser::Browser;
use super::viewer::{Form, Viewer};
use crate::access::must_not_be_cross_site;
use crate::dashboard::pages::layout;
use crate::problem::ApiResult;
use crate::server::App;
use crate::status;

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
