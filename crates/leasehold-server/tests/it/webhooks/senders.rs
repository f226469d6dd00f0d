//! Senders of webhooks, and a server that receives them.

use hmac::{Hmac, KeyInit, Mac};
use leasehold::Leasehold;
use leasehold_server::Access;
use reqwest::Method;
use sha2::Sha256;

use crate::test_server::{Reply, TestServer};

pub(super) const SETTINGS: &str = r#"
[workflows.deploy]
runner = "external"
[workflows.invoice]
runner = "external"
[triggers.push]
workflow = "deploy"
scheme = "github"
secrets = ["the next one", "hush"]
on_locked = "reject"
[triggers.github]
workflow = "deploy"
scheme = "github"
secrets = ["hush"]
[triggers.payments]
workflow = "invoice"
scheme = "stripe"
secrets = ["whsec_hush"]
[triggers.plain]
workflow = "invoice"
scheme = "none"
key = "/order"
on_locked = "skip"
"#;

pub(super) async fn server() -> TestServer {
    configured(SETTINGS).await
}

/// Starts an open server with these settings.
pub(super) async fn configured(settings: &str) -> TestServer {
    TestServer::configured(Leasehold::connect("memory:").await.unwrap(), Access::Open, settings).await
}

pub(super) fn code(secret: &str, message: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// Sends a GitHub delivery with these headers and a signature.
pub(super) async fn github(
    server: &TestServer,
    trigger: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Reply {
    let request = server.request(Method::POST, &format!("/api/webhooks/{trigger}")).body(body.to_owned());
    let request = request.header("x-hub-signature-256", format!("sha256={}", code("hush", body)));
    Reply::of(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

pub(super) async fn push(server: &TestServer, trigger: &str, delivery: &str, body: &str) -> Reply {
    github(server, trigger, &[("x-github-event", "push"), ("x-github-delivery", delivery)], body).await
}

pub(super) async fn payment(server: &TestServer, body: &str, key: Option<&str>, off: i64) -> Reply {
    let now = server.leasehold.now().await.unwrap().as_micros() / 1_000_000;
    let time = now.saturating_add_signed(off);
    let code = code("whsec_hush", &format!("{time}.{body}"));
    let request = server.request(Method::POST, "/api/webhooks/payments").body(body.to_owned());
    let mut request = request.header("stripe-signature", format!("t={time},v1={code}"));
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    Reply::of(request).await
}

/// Returns the number of executions.
pub(super) async fn executions(server: &TestServer) -> usize {
    server.get("/api/v1/executions").await.body["executions"].as_array().unwrap().len()
}
