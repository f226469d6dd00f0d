//! What a request says about the browser: its cookies, the prefix under which it sees the dashboard, and
//! the page that it shows.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::request::Parts;
use axum::http::{HeaderValue, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use uuid::Uuid;

use super::gzip;
use crate::problem::{ApiResult, Problem};
use crate::server::App;

/// Cookie with the API token of the viewer. Scripts cannot read it.
const TOKEN_COOKIE: &str = "leasehold_token";
/// Cookie with the theme that the viewer chose; the script of the pages sets it.
const THEME_COOKIE: &str = "leasehold_theme";
/// Text whose code under the viewer's token, together with a random text, is the CSRF token.
const CSRF_PURPOSE: &[u8] = b"leasehold dashboard csrf";

/// Browser that sent a request.
#[derive(Debug, Clone)]
pub(in crate::dashboard) struct Browser {
    /// Path under which the dashboard is mounted, without a slash at its end.
    pub(in crate::dashboard) prefix: String,
    /// Path and query of the request, below the prefix.
    pub(in crate::dashboard) path: String,
    /// Theme that the viewer chose: `light` or `dark`.
    pub(in crate::dashboard) theme: Option<&'static str>,
    /// API token in the cookie.
    pub(in crate::dashboard) token: Option<String>,
    /// Whether the browser uses TLS, as far as the request tells.
    pub(in crate::dashboard) is_secure: bool,
    /// Whether the viewer followed a link on a page of another site. Such a request carries no cookie.
    pub(in crate::dashboard) came_from_elsewhere: bool,
    /// Whether the response may be compressed. A page whose address has a query is not: the query comes
    /// back in the page, and the length of the compressed page would tell another site, which chooses
    /// the query, what else is in the page.
    pub(in crate::dashboard) takes_gzip: bool,
}

impl FromRequestParts<App> for Browser {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Infallible> {
        Ok(Self::of(parts))
    }
}

impl Browser {
    pub(in crate::dashboard) fn of(parts: &Parts) -> Self {
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let theme = cookie(parts, THEME_COOKIE);
        let is_navigation = text("sec-fetch-mode") == Some("navigate") && parts.method == "GET";
        let site = text("sec-fetch-site");
        Self {
            prefix: prefix(parts),
            path: parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned(),
            theme: ["light", "dark"].into_iter().find(|known| Some(*known) == theme),
            token: cookie(parts, TOKEN_COOKIE).filter(|token| !token.is_empty()).map(str::to_owned),
            is_secure: text("origin").is_some_and(|origin| origin.starts_with("https://"))
                || text("x-forwarded-proto") == Some("https"),
            came_from_elsewhere: is_navigation
                && site.is_some_and(|site| !matches!(site, "none" | "same-origin")),
            takes_gzip: gzip::is_accepted(&parts.headers) && parts.uri.query().is_none(),
        }
    }

    /// Returns the address of a path of the dashboard.
    pub(in crate::dashboard) fn link(&self, path: &str) -> String {
        format!("{}{path}", self.prefix)
    }

    /// Returns the header that stores this API token, or removes it.
    pub(in crate::dashboard) fn cookie(&self, token: Option<&str>) -> HeaderValue {
        let path = if self.prefix.is_empty() { "/" } else { &self.prefix };
        let secure = if self.is_secure { "; Secure" } else { "" };
        let end = if token.is_some() { "" } else { "; Max-Age=0" };
        let value = token.unwrap_or_default();
        let cookie = format!("{TOKEN_COOKIE}={value}; Path={path}; HttpOnly; SameSite=Strict{secure}{end}");
        HeaderValue::from_str(&cookie).unwrap_or(HeaderValue::from_static(""))
    }

    /// Returns a CSRF token for this browser: only a page that was rendered for it contains one. `key` is
    /// used on a server without API tokens. Every token is another one, so that what an observer learns
    /// from one response does not help with the next.
    pub(in crate::dashboard) fn csrf(&self, key: &str) -> String {
        let nonce = Uuid::new_v4().into_bytes();
        URL_SAFE_NO_PAD.encode([&nonce[..], &self.csrf_code(key, &nonce)].concat())
    }

    pub(in crate::dashboard) fn check_csrf(&self, key: &str, sent: &str) -> ApiResult<()> {
        let sent = URL_SAFE_NO_PAD.decode(sent).unwrap_or_default();
        let is_ours = sent
            .split_first_chunk()
            .is_some_and(|(nonce, code)| self.csrf_code(key, nonce).ct_eq(code).into());
        if is_ours {
            return Ok(());
        }
        let problem =
            Problem::new("FORBIDDEN", "the form is out of date: it was made for another sign-in or server");
        Err(problem.hint("load the page again and repeat the action"))
    }

    fn csrf_code(&self, key: &str, nonce: &[u8; 16]) -> [u8; 32] {
        let key = self.token.as_deref().unwrap_or(key);
        let mut code = Hmac::<Sha256>::new_from_slice(key.as_bytes()).expect("a key may have any length");
        code.update(CSRF_PURPOSE);
        code.update(nonce);
        code.finalize().into_bytes().into()
    }
}

fn cookie<'a>(parts: &'a Parts, name: &str) -> Option<&'a str> {
    let all = parts.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// Returns the path that a proxy removed, followed by the path under which a program has mounted the
/// router.
fn prefix(parts: &Parts) -> String {
    let forwarded = parts.headers.get("x-forwarded-prefix").and_then(|prefix| prefix.to_str().ok());
    let forwarded = forwarded.map(|prefix| prefix.trim_end_matches('/')).filter(|prefix| is_plain(prefix));
    let path = parts.uri.path();
    let original = parts.extensions.get::<OriginalUri>().map_or(path, |uri| uri.0.path());
    let mounted =
        if path == "/" { original.trim_end_matches('/') } else { original.strip_suffix(path).unwrap_or("") };
    format!("{}{mounted}", forwarded.unwrap_or_default())
}

/// Whether this is a path that no browser takes for the address of another site.
fn is_plain(prefix: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '-' | '_' | '.' | '~');
    prefix.starts_with('/') && !prefix.contains("//") && prefix.len() <= 200 && prefix.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn browser(headers: &[(&str, &str)], uri: &str, original: Option<&str>) -> Browser {
        let mut request = axum::http::Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        if let Some(original) = original {
            parts.extensions.insert(OriginalUri(original.parse().unwrap()));
        }
        Browser::of(&parts)
    }

    #[test]
    fn the_prefix_is_the_path_of_the_mount_and_of_the_proxy() {
        assert_eq!(browser(&[], "/locks?x=1", None).prefix, "");
        assert_eq!(browser(&[], "/locks", Some("/tools/leasehold/locks")).prefix, "/tools/leasehold");
        assert_eq!(browser(&[], "/", Some("/leasehold")).prefix, "/leasehold");
        let proxy = [("x-forwarded-prefix", "/ops/")];
        assert_eq!(browser(&proxy, "/locks", None).prefix, "/ops");
        assert_eq!(browser(&proxy, "/", Some("/leasehold")).prefix, "/ops/leasehold");
        for evil in ["//evil.example", "https://evil.example", "/a\\b", "/\"><script>", "x"] {
            assert_eq!(browser(&[("x-forwarded-prefix", evil)], "/", None).prefix, "", "{evil}");
        }
    }

    #[test]
    fn the_token_and_the_theme_are_read_from_cookies() {
        let cookies = [("cookie", "a=b; leasehold_token=lh_x_y; leasehold_theme=dark")];
        let found = browser(&cookies, "/", None);
        assert_eq!((found.token.as_deref(), found.theme), (Some("lh_x_y"), Some("dark")));
        let none = browser(&[("cookie", "leasehold_token=; leasehold_theme=\"><b>")], "/", None);
        assert_eq!((none.token, none.theme), (None, None));
    }

    #[test]
    fn a_csrf_token_belongs_to_one_api_token() {
        let with = |token: &str| browser(&[("cookie", &format!("leasehold_token={token}"))], "/", None);
        let csrf = with("one").csrf("key");
        assert!(with("one").check_csrf("key", &csrf).is_ok());
        assert!(with("one").check_csrf("other", &csrf).is_ok());
        assert!(with("two").check_csrf("key", &csrf).is_err());
        for other in ["", "AAAA", &csrf[..csrf.len() - 4], &format!("A{csrf}")] {
            assert!(with("one").check_csrf("key", other).is_err(), "{other}");
        }
        assert_ne!(with("one").csrf("key"), csrf, "each page has a token of its own");
        let open = browser(&[], "/", None);
        assert!(open.check_csrf("key", &open.csrf("key")).is_ok());
        assert!(open.check_csrf("key", &open.csrf("other")).is_err());
    }
}
