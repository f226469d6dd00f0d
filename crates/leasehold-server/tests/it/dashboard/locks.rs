//! Locks: the list, one lock, asking for a release and forcing one.

use std::time::Duration;

use leasehold::Leasehold;
use leasehold_server::access::TokenStore;
use leasehold_server::{Access, Role};

use super::browser::{Browser, closed_server};
use crate::test_server::TestServer;

#[tokio::test]
async fn the_list_shows_holders_and_waiters() {
    for server in TestServer::each().await {
        let browser = Browser::new(&server);
        assert!(browser.get("/locks").await.has("No locks here"));
        let held = server.leasehold.lock("deploy/prod").holder("ci@runner-7").acquire().await.unwrap();
        let waiter = server.leasehold.lock("deploy/prod").holder("web-2").wait(Duration::from_mins(1));
        let waiter = tokio::spawn(waiter.acquire());
        server.wait_for_waiters("deploy%2Fprod", 1).await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let page = browser.get("/locks").await;
        for text in
            ["deploy/prod", "ci@runner-7", "web-2", "held", "<progress", "scope=\"row\"", "data-until"]
        {
            assert!(page.has(text), "{text}: {}", page.text);
        }
        assert!(page.has("href=\"/locks/deploy%2Fprod\""));
        assert!(browser.get("/locks?q=deploy%2F").await.has("ci@runner-7"));
        assert!(!browser.get("/locks?q=other").await.has("ci@runner-7"));
        assert!(browser.get("/locks?q=holder%3Arunner").await.has("ci@runner-7"));
        assert!(!browser.get("/locks?q=holder%3Ax").await.has("ci@runner-7"));
        assert!(!browser.get("/locks?state=free").await.has("ci@runner-7"));
        assert_eq!(browser.get("/locks?state=odd").await.status, 400);

        let page = browser.get("/locks/deploy%2Fprod").await;
        for text in ["ci@runner-7", "web-2", "<svg", "leasehold locks why deploy/prod", "queued", "acquired"]
        {
            assert!(page.has(text), "{text}: {}", page.text);
        }
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn a_deadlock_is_drawn_for_viewers_who_may_see_all_its_locks() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let tokens = TokenStore::new(leasehold);
    let all = tokens.create("all", Role::Reader, None).await.unwrap().text;
    let scopes = vec!["locks:left".parse().unwrap()];
    let narrow = tokens.create_scoped("narrow", Role::Reader, None, scopes).await.unwrap().text;
    let held = ["left", "right"].map(|lock| server.leasehold.lock(lock).holder(format!("holder of {lock}")));
    let [left, right] = held;
    let (left, right) = (left.acquire().await.unwrap(), right.acquire().await.unwrap());
    let waiting = [(&left, "right"), (&right, "left")].map(|(guard, lock)| {
        let wait = server.leasehold.lock(lock).within(guard.lease_refs()).wait(Duration::from_mins(1));
        tokio::spawn(wait.acquire())
    });
    while server.leasehold.locks().deadlocks().await.unwrap().found.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let browser = Browser::new(&server);
    browser.sign_in(&all).await;
    for path in ["/", "/locks/left", "/locks/right"] {
        let page = browser.get(path).await;
        assert!(page.has("class=\"ring\"") && page.has(" waits for <a"), "{path}: {}", page.text);
    }
    let browser = Browser::new(&server);
    browser.sign_in(&narrow).await;
    let page = browser.get("/locks/left").await;
    assert!(
        page.has("holder of left") && !page.has("holder of right") && !page.has("class=\"ring\""),
        "{}",
        page.text
    );
    for wait in waiting {
        wait.abort();
    }
    server.stop().await;
}

#[tokio::test]
async fn a_long_list_has_pages() {
    let server = TestServer::open().await;
    let mut held = Vec::new();
    for number in 0..120 {
        held.push(server.leasehold.lock(format!("lock-{number:03}")).acquire().await.unwrap());
    }
    let browser = Browser::new(&server);
    let (mut path, mut seen) = ("/locks".to_owned(), 0);
    loop {
        let page = browser.get(&path).await;
        let rows = page.text.matches("<tr id=\"lock-").count();
        assert!(rows <= 50);
        seen += rows;
        let Some(next) = page.text.split("rel=\"next\"").next().filter(|_| page.has("rel=\"next\"")) else {
            break;
        };
        let next = next.rsplit_once("href=\"").unwrap().1.split('"').next().unwrap();
        path = next.replace("&amp;", "&");
    }
    assert_eq!(seen, 120);
}

#[tokio::test]
async fn a_release_is_forced_with_the_name_the_reason_and_the_token() {
    for server in TestServer::each().await {
        let guard = server.leasehold.lock("tf/prod").holder("ada").acquire().await.unwrap();
        let token = guard.token().to_string();
        let browser = Browser::new(&server);
        let path = "/locks/tf%2Fprod/force-release";
        let form = browser.get(path).await;
        assert!(form.has("Looks alive") && form.has(&format!("value=\"{token}\"")), "{}", form.text);
        let refused = [
            ([("name", "tf"), ("reason", "gone"), ("token", token.as_str())], "the typed name is not"),
            ([("name", "tf/prod"), ("reason", " "), ("token", token.as_str())], "a reason is missing"),
            ([("name", "tf/prod"), ("reason", "gone"), ("token", "")], "the token of the lease is missing"),
        ];
        for (fields, why) in refused {
            let page = browser.act(path, &fields).await;
            assert_eq!(page.status, 400, "{why}");
            assert!(page.has(why), "{}", page.text);
        }
        let page = browser.act(path, &[("name", "tf/prod"), ("reason", "gone"), ("token", "999")]).await;
        assert_eq!(page.status, 404);
        assert!(page.has("Nothing was released") && !page.has("<form method=\"post\" action=\"/locks"));
        assert!(server.leasehold.locks().status("tf/prod").await.unwrap().is_locked);

        let fields = [("name", "tf/prod"), ("reason", "the runner is gone"), ("token", token.as_str())];
        let page = browser.act(path, &fields).await;
        assert_eq!((page.status, page.location()), (303, "/locks/tf%2Fprod?notice=forced"));
        let page = browser.get("/locks/tf%2Fprod?notice=forced").await;
        for text in ["The lock was released by force.", "forced", "the runner is gone", "anybody"] {
            assert!(page.has(text), "{text}: {}", page.text);
        }
        // The second of two admins is too late: the token that the form showed has ended.
        let other = server.leasehold.lock("tf/prod").holder("eve").acquire().await.unwrap();
        let csrf = form.field("csrf");
        let late = [("csrf", csrf.as_str()), fields[0], fields[1], fields[2]];
        let page = browser.post(path, &late).await;
        assert!(page.status == 404 && page.has("Nothing was released"), "{}: {}", page.status, page.text);
        assert!(server.leasehold.locks().status("tf/prod").await.unwrap().is_locked);
        other.release().await.unwrap();
        drop(guard);
        server.stop().await;
    }
}

#[tokio::test]
async fn each_role_sees_and_does_what_the_api_allows() {
    let (server, tokens) = closed_server().await;
    let guard = server.leasehold.lock("a").acquire().await.unwrap();
    let token = guard.token().to_string();
    for (number, text) in tokens.iter().enumerate() {
        let browser = Browser::new(&server);
        browser.sign_in(text).await;
        let page = browser.get("/locks/a").await;
        let (is_operator, is_admin) = (number >= 2, number >= 3);
        assert_eq!(page.has("Ask to release"), is_operator);
        assert_eq!(page.has("Force release"), is_admin);
        assert_eq!(browser.get("/locks/a/ask").await.status, if is_operator { 200 } else { 403 });
        assert_eq!(browser.get("/locks/a/force-release").await.status, if is_admin { 200 } else { 403 });
        // A form that the page did not offer is refused, too.
        let csrf = page.field("csrf");
        let fields = [("csrf", csrf.as_str()), ("name", "a"), ("reason", "r"), ("token", token.as_str())];
        assert_eq!(browser.post("/locks/a/ask", &fields).await.status, if is_operator { 303 } else { 403 });
        let forced = browser.post("/locks/a/force-release", &fields).await;
        assert_eq!(forced.status, if is_admin { 303 } else { 403 });
        assert_eq!(server.leasehold.locks().status("a").await.unwrap().is_locked, !is_admin);
    }
    drop(guard);
}

#[tokio::test]
async fn a_token_with_scopes_reaches_its_locks_only() {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let server = TestServer::over(leasehold.clone(), Access::Tokens(Vec::new())).await;
    let scopes = vec!["locks:deploy/*".parse().unwrap(), "queues:mail".parse().unwrap()];
    let token =
        TokenStore::new(leasehold.clone()).create_scoped("ci", Role::Admin, None, scopes).await.unwrap();
    let held = leasehold.lock("secret").holder("lovelace").acquire().await.unwrap();
    let browser = Browser::new(&server);
    browser.sign_in(&token.text).await;
    let page = browser.get("/locks").await;
    assert_eq!(page.status, 403);
    assert!(
        page.has("href=\"/locks?q=name%3Adeploy%2F\"") && page.has("href=\"/tasks?queue=mail\""),
        "{}",
        page.text
    );
    assert_eq!(browser.get("/locks?q=name%3Adeploy%2F").await.status, 200);
    assert_eq!(browser.get("/locks/deploy%2Fprod").await.status, 200);
    assert_eq!(browser.get("/tasks?queue=mail").await.status, 200);
    for path in [
        "/",
        "/locks/secret",
        "/locks/secret/force-release",
        "/tasks",
        "/audit",
        "/queues",
        "/workers",
        "/health",
    ] {
        let page = browser.get(path).await;
        assert_eq!(page.status, 403, "{path}");
        assert!(!page.has("lovelace"));
    }
    held.release().await.unwrap();
}

/// Names with markup, quotes and text from right to left, up to the maximum length.
#[tokio::test]
async fn hostile_names_are_inert() {
    let server = TestServer::open().await;
    let script = "<script>alert(1)</script>";
    let name = format!("{script}\"'&שלום{}", "x".repeat(219));
    assert_eq!(name.len(), 255, "the longest name");
    let holder = "<img src=x onerror=alert(2)> עברית";
    let guard =
        server.leasehold.lock(name.as_str()).holder(holder).meta("<b>", "</dd><script>").acquire().await;
    let guard = guard.unwrap();
    let browser = Browser::new(&server);
    let list = browser.get("/locks").await;
    let start = list.text.find("href=\"/locks/%3Cscript").expect("a link to the lock");
    let path = list.text[start + 6..].split('"').next().unwrap().to_owned();
    for path in [
        "/locks".to_owned(),
        path.clone(),
        format!("{path}/force-release"),
        "/audit".to_owned(),
        "/".to_owned(),
    ] {
        let page = browser.get(&path).await;
        assert_eq!(page.status, 200, "{path}");
        assert_eq!(page.text.matches("<script").count(), 1, "{path}: only the script of the dashboard");
        assert!(!page.has("<img") && !page.has("<b>"), "{path}");
        assert!(page.has("<bdi class=\"name\">&lt;"), "{path}: {}", page.text);
    }
    let token = guard.token().to_string();
    let fields = [("name", name.as_str()), ("reason", "<i>r</i>"), ("token", token.as_str())];
    assert_eq!(browser.act(&format!("{path}/force-release"), &fields).await.status, 303);
    assert!(browser.get(&path).await.has("&lt;i&gt;r&lt;/i&gt;"));
}
