//! Senders of webhooks, and a server that they send to.

use hmac::{Hmac, KeyInit, Mac};
use leasehold::Leasehold;
use leasehold_server::Access;
use reqwest::Method;
use sha2::Sha256;

use crate::lab::{Lab, Reply};

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

pub(super) async fn lab() -> Lab {
    configured(SETTINGS).await
}

/// A server with these settings, open to this machine.
pub(super) async fn configured(settings: &str) -> Lab {
    Lab::configured(Leasehold::connect("memory:").await.unwrap(), Access::Open, settings).await
}

pub(super) fn code(secret: &str, message: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(message.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

/// A delivery of GitHub with these headers besides its signature.
pub(super) async fn github(lab: &Lab, trigger: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let request = lab.request(Method::POST, &format!("/api/webhooks/{trigger}")).body(body.to_owned());
    let request = request.header("x-hub-signature-256", format!("sha256={}", code("hush", body)));
    Reply::of(headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))).await
}

pub(super) async fn push(lab: &Lab, trigger: &str, delivery: &str, body: &str) -> Reply {
    github(lab, trigger, &[("x-github-event", "push"), ("x-github-delivery", delivery)], body).await
}

pub(super) async fn payment(lab: &Lab, body: &str, key: Option<&str>, off: i64) -> Reply {
    let now = lab.leasehold.now().await.unwrap().as_micros() / 1_000_000;
    let time = now.saturating_add_signed(off);
    let code = code("whsec_hush", &format!("{time}.{body}"));
    let request = lab.request(Method::POST, "/api/webhooks/payments").body(body.to_owned());
    let mut request = request.header("stripe-signature", format!("t={time},v1={code}"));
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    Reply::of(request).await
}

/// The executions that there are.
pub(super) async fn executions(lab: &Lab) -> usize {
    lab.get("/api/v1/executions").await.body["executions"].as_array().unwrap().len()
}
