//! Sign-in, sessions, CSRF, headers, and the prefix of the pages.

use leasehold::Leasehold;
use leasehold::model::Ttl;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role, Server};

use super::browser::{Browser, closed_server};
use crate::store::serve;
use crate::test_server::TestServer;

const PAGES: [&str; 9] =
    ["/", "/locks", "/locks/a", "/queues", "/tasks", "/schedules", "/workers", "/audit", "/health"];

#[tokio::test]
async fn every_page_has_a_strict_policy_and_is_not_stored() {
    let server = TestServer::open().await;
    let browser = Browser::new(&server);
    for path in PAGES {
        let page = browser.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        let policy = page.headers["content-security-policy"].to_str().unwrap();
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "frame-ancestors 'none'",
            "form-action 'self'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert_eq!(page.headers["cache-control"], "no-store");
        assert_eq!(page.headers["x-content-type-options"], "nosniff");
        assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
        assert!(!page.has("style=\"") && !page.has("<style") && !page.has("onclick="), "{path}");
        assert!(!page.has("http://") || page.has("http://www.w3.org"), "{path} names another server");
    }
}

#[tokio::test]
async fn assets_are_kept_by_the_browser_until_they_change() {
    let server = TestServer::open().await;
    let browser = Browser::new(&server);
    let page = browser.get("/locks").await;
    for name in ["dashboard.css", "dashboard.js", "icon.svg"] {
        let start = page.text.find(&format!("/assets/{name}")).unwrap();
        let address = page.text[start..].split('"').next().unwrap();
        let asset = browser.get(address).await;
        assert_eq!(asset.status, 200);
        assert!(asset.headers["cache-control"].to_str().unwrap().contains("immutable"));
        let tag = asset.headers["etag"].to_str().unwrap();
        let again = browser.get_with(address, "if-none-match", tag).await;
        assert_eq!((again.status, again.text.len()), (304, 0));
        assert_eq!(browser.get_with(address, "if-none-match", "\"other\"").await.status, 200);
    }
    assert_eq!(browser.get("/assets/other.js").await.status, 404);
    let size = page.text.len() + ["dashboard.css", "dashboard.js", "icon.svg"].len();
    assert!(size < 150_000);
}

#[tokio::test]
async fn a_viewer_signs_in_with_a_token() {
    let (server, [reader, ..]) = closed_server().await;
    let browser = Browser::new(&server);
    let page = browser.get("/locks?q=a").await;
    assert_eq!(page.status, 401);
    assert!(page.has("API token") && !page.headers.contains_key("www-authenticate"), "{}", page.text);
    assert_eq!(page.field("next"), "/locks?q=a");
    for wrong in ["", "nonsense", "lh_0123456789ab_secret"] {
        let page = browser.sign_in(wrong).await;
        assert_eq!(page.status, 401, "{wrong}");
        assert!(!page.headers.contains_key("set-cookie"));
    }
    let page = browser.sign_in(&format!(" {reader}\n")).await;
    assert_eq!((page.status, page.location()), (303, "/locks"));
    let cookie = page.headers["set-cookie"].to_str().unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure"));
    let page = browser.get("/locks").await;
    assert_eq!(page.status, 200);
    assert!(page.has("the-reader") && !page.has(&reader), "the page does not contain the token");
    // The cookie is for the dashboard, not for the API.
    assert_eq!(browser.get("/api/v1/locks").await.status, 401);

    let csrf = page.field("csrf");
    assert_eq!(browser.post("/sign-out", &[("csrf", "wrong")]).await.status, 403);
    let page = browser.post("/sign-out", &[("csrf", &csrf)]).await;
    assert_eq!(page.status, 303);
    assert!(page.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"));
    assert_eq!(browser.get("/locks").await.status, 401);
}

#[tokio::test]
async fn the_cookie_is_secure_if_the_browser_uses_tls() {
    let (server, [reader, ..]) = closed_server().await;
    let browser = Browser::new(&server);
    let origin = server.base.replace("http://", "https://");
    let page = browser
        .post_from(&origin, "/sign-in", &[("token", reader.as_str()), ("next", "//evil.example")])
        .await;
    assert_eq!((page.status, page.location()), (303, "/"));
    assert!(page.headers["set-cookie"].to_str().unwrap().contains("; Secure"));
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let store = TokenStore::new(leasehold);
    let revoked = store.create("revoked", Role::Reader, None).await.unwrap();
    let expiring = store.create("expiring", Role::Reader, Some(Ttl::from_secs(4))).await.unwrap();
    for (token, end) in [(revoked, true), (expiring, false)] {
        let browser = Browser::new(&server);
        assert_eq!(browser.sign_in(&token.text).await.status, 303);
        if end {
            store.revoke(&token.id).await.unwrap();
        }
        let mut status = 200;
        for _ in 0..1500 {
            status = browser.get("/locks").await.status;
            if status != 200 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(status, 401);
    }
}

#[tokio::test]
async fn pages_of_other_sites_cannot_act() {
    for server in TestServer::each().await {
        let guard = server.leasehold.lock("victim").acquire().await.unwrap();
        let token = guard.token().to_string();
        let browser = Browser::new(&server);
        let path = "/locks/victim/force-release";
        let csrf = browser.get(path).await.field("csrf");
        let fields =
            [("csrf", csrf.as_str()), ("name", "victim"), ("reason", "r"), ("token", token.as_str())];
        for origin in ["https://evil.example", "null"] {
            assert_eq!(browser.post_from(origin, path, &fields).await.status, 403, "{origin}");
        }
        for csrf in ["", "guess"] {
            let fields = [("csrf", csrf), ("name", "victim"), ("reason", "r"), ("token", token.as_str())];
            assert_eq!(browser.post(path, &fields).await.status, 403);
        }
        assert_eq!(browser.get_with("/locks", "x-forwarded-for", "10.0.0.1").await.status, 403);
        assert_eq!(browser.get_with("/locks", "sec-fetch-site", "cross-site").await.status, 403);
        assert!(server.leasehold.locks().status("victim").await.unwrap().is_locked);
        assert_eq!(browser.post(path, &fields).await.status, 303);
        assert!(!server.leasehold.locks().status("victim").await.unwrap().is_locked);
        drop(guard);
    }
}

/// The browser sends no cookie with the first request after a link on another site.
#[tokio::test]
async fn a_link_on_another_site_leads_to_the_page() {
    let (server, [reader, ..]) = closed_server().await;
    let browser = Browser::new(&server);
    browser.sign_in(&reader).await;
    let request = reqwest::Client::new()
        .get(format!("{}/locks?q=a", server.base))
        .header("sec-fetch-site", "cross-site")
        .header("sec-fetch-mode", "navigate");
    let response = request.send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let text = response.text().await.unwrap();
    assert!(text.contains("http-equiv=\"refresh\" content=\"0; url=/locks?q=a\""), "{text}");
    assert!(!text.contains("<table"));
}

#[tokio::test]
async fn pages_work_below_a_prefix() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).build();
    let app = axum::Router::new().nest("/tools/leasehold", server.router());
    let base = serve(app).await;
    let guard = leasehold.lock("a/b").acquire().await.unwrap();
    let browser = Browser::at(&base);
    for path in ["/tools/leasehold", "/tools/leasehold/locks", "/tools/leasehold/locks/a%2Fb"] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 200, "{path}: {}", page.text);
        assert!(page.has("href=\"/tools/leasehold/locks\""), "{path}: {}", page.text);
        let addresses = page.text.split("href=\"").skip(1).chain(page.text.split("src=\"").skip(1));
        for address in addresses.map(|rest| rest.split('"').next().unwrap()) {
            assert!(
                address.starts_with("/tools/leasehold") || address == "#main",
                "{path} links to {address}"
            );
        }
    }
    let path = "/tools/leasehold/locks/a%2Fb/ask";
    let page = browser.act(path, &[("reason", "please")]).await;
    assert_eq!((page.status, page.location()), (303, "/tools/leasehold/locks/a%2Fb?notice=asked"));
    let proxied = browser.get_with("/tools/leasehold/locks", "x-forwarded-prefix", "/ops").await;
    assert!(proxied.has("href=\"/ops/tools/leasehold/locks\""));
    guard.release().await.unwrap();
}

#[tokio::test]
async fn the_dashboard_can_be_switched_off() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = Server::builder(leasehold.clone()).access(Access::Open).without_dashboard().build();
    let server = TestServer::serve(server, leasehold).await;
    for path in ["/", "/locks", "/sign-in", "/assets/dashboard.js"] {
        assert_eq!(server.get(path).await.code(), "UNKNOWN_PATH", "{path}");
    }
    assert_eq!(server.get("/api/v1/locks").await.status, 200);
}
