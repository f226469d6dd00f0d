//! Fuzz targets of the server: its settings file, and requests to all routes, without a connection.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::BodyExt;
use leasehold::testing::fuzz::{Shape, fuzz};
use leasehold::{Leasehold, fuzz_corpus};
use leasehold_server::config::Settings;
use leasehold_server::{Access, Server};
use serde_json::Value;
use tower::ServiceExt;

/// Secret in the files of the corpus.
const SECRET: &str = "s3cr3t";

const SETTINGS: &str = r#"
[workflows.deploy]
runner = "external"
on_locked = "queue"

[triggers.plain]
workflow = "deploy"
scheme = "none"
when = ["$[?@.ref == 'main']"]

[triggers.push]
workflow = "deploy"
scheme = "github"
secrets = ["s3cr3t"]
"#;

/// Number of requests after which a new store is used, so that lists do not become long.
const REQUESTS_PER_STORE: u32 = 3_000;

#[test]
fn settings_are_parsed_or_refused_with_the_line() {
    fuzz(fuzz_corpus!("settings"), 1_000, |input| {
        let text = String::from_utf8_lossy(input);
        match Settings::parse(Path::new("/etc/leasehold.toml"), &text) {
            Ok(settings) => {
                let shown = format!("{settings:?}");
                assert!(!only_secret(&text) || !shown.contains(SECRET), "{shown}");
                Shape::of(&(settings.workflows.len(), settings.triggers.len(), settings.schedules.len()))
            }
            Err(error) => {
                let shown = format!("{error} {}", error.hint().unwrap_or_default());
                assert!(shown.starts_with("/etc/leasehold.toml, line "), "{shown}");
                assert!(!only_secret(&text) || !shown.contains(SECRET), "{shown}");
                Shape::of_text(&error)
            }
        }
    });
}

#[test]
fn requests_are_answered_and_never_with_an_error_of_the_server() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (router, sent) = (RefCell::new(runtime.block_on(router())), Cell::new(0));
    fuzz(fuzz_corpus!("requests"), 1_500, |input| {
        let Some(request) = request(input) else { return Shape::of(&"no request") };
        if sent.replace(sent.get() + 1) >= REQUESTS_PER_STORE {
            sent.set(0);
            drop(router.replace(runtime.block_on(self::router())));
        }
        let service = router.borrow().clone();
        runtime.block_on(async {
            let answer = tokio::time::timeout(Duration::from_mins(1), answer(service, request));
            answer.await.expect("a request does not wait for more than a moment")
        })
    });
}

async fn answer(router: Router, request: Request<Body>) -> Shape {
    let (method, uri) = (request.method().clone(), request.uri().clone());
    let response = router.oneshot(request).await.expect("a router does not fail");
    let status = response.status().as_u16();
    let header =
        |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let content = header("content-type").unwrap_or_default();
    let has_policy = header("content-security-policy").is_some();
    assert!(header("x-request-id").is_some(), "{method} {uri}: no request id");
    if content.starts_with("text/event-stream") {
        return Shape::of(&("a stream", status));
    }
    let body = response.into_body().collect().await.expect("a complete body").to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(status < 500 || status == 501, "{method} {uri}: {status} {body}");
    if content.starts_with("text/html") {
        assert!(has_policy && !uri.path().starts_with("/api/"), "{method} {uri}: {status} {body}");
        return Shape::of(&("a page", status));
    }
    let mut code = None;
    if status >= 400 && method != Method::HEAD {
        assert_eq!(content, "application/problem+json", "{method} {uri}: {status} {body}");
        let problem: Value = serde_json::from_str(&body).expect("a problem is JSON");
        let (told, text) = (problem["code"].as_str(), problem["detail"].as_str());
        assert!(told.is_some() && text.is_some_and(|text| !text.is_empty()), "{method} {uri}: {body}");
        assert_eq!(problem["status"], status);
        code = Some((told.map(str::to_owned), text.map(|text| Shape::of_text(&text))));
    } else if content.starts_with("application/json") && method != Method::HEAD {
        serde_json::from_str::<Value>(&body).expect("the content is JSON");
    }
    Shape::of(&(status, code.map(|(code, text)| (Shape::of_text(&code.unwrap_or_default()), text))))
}

/// Reads a request: a line with method and address, lines with headers, an empty line, the body.
fn request(input: &[u8]) -> Option<Request<Body>> {
    let end = input.windows(2).position(|pair| pair == b"\n\n").unwrap_or(input.len());
    let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, input.get(end + 2..).unwrap_or_default());
    let mut lines = head.lines();
    let (method, uri) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder()
        .method(Method::from_bytes(method.as_bytes()).ok()?)
        .uri(uri.parse::<Uri>().ok().filter(|uri| uri.path().starts_with('/'))?)
        .header("leasehold-protocol", "1");
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        request = request.header(name, HeaderValue::from_str(value.trim()).ok()?);
    }
    request.body(Body::from(body.to_vec())).ok()
}

async fn router() -> Router {
    let leasehold = Leasehold::connect("memory:").await.unwrap();
    let settings = Settings::parse(Path::new("leasehold.toml"), SETTINGS).unwrap();
    let mut limits = settings.limits;
    limits.wait = Duration::from_millis(1);
    Server::builder(leasehold)
        .access(Access::Open)
        .limits(limits)
        .workflows(settings.workflows)
        .triggers(settings.triggers)
        .without_maintenance()
        .build()
        .router()
}

/// Whether the secret occurs only where secrets are: in the lists `secrets`, and in the password of the store.
fn only_secret(text: &str) -> bool {
    let Ok(mut table) = text.parse::<toml::Table>() else { return false };
    let in_store = |value: &toml::Value| value.as_str().is_some_and(|url| url.contains(":s3cr3t@"));
    if table.get("store").is_some_and(in_store) {
        table.remove("store");
    }
    if let Some(toml::Value::Table(triggers)) = table.get_mut("triggers") {
        for trigger in triggers.iter_mut().filter_map(|(_, trigger)| trigger.as_table_mut()) {
            trigger.remove("secrets");
        }
    }
    !contains(&toml::Value::Table(table)) && !text.contains('#')
}

/// Whether the secret is in a key or in a text.
fn contains(value: &toml::Value) -> bool {
    match value {
        toml::Value::String(text) => text.contains(SECRET),
        toml::Value::Array(items) => items.iter().any(contains),
        toml::Value::Table(table) => table.iter().any(|(key, value)| key.contains(SECRET) || contains(value)),
        _ => false,
    }
}
