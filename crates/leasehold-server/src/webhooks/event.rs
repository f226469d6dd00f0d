//! One delivery of a webhook: its headers, its body, and the event that it describes.

use std::sync::OnceLock;

use axum::http::HeaderMap;
use leasehold::model::{EventName, ValidationError};
use serde_json::Value;

use super::signature::Scheme;

const GITHUB_EVENT: &str = "x-github-event";

/// Delivery of a webhook.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    pub(super) scheme: Scheme,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a [u8],
    json: OnceLock<Option<Value>>,
}

impl<'a> Event<'a> {
    pub(crate) fn new(scheme: Scheme, headers: &'a HeaderMap, body: &'a [u8]) -> Self {
        Self { scheme, headers, body, json: OnceLock::new() }
    }

    /// Returns the kind of the event. GitHub names the kind in a header, which it does not sign,
    /// and the action in the body: together they form `pull_request.opened`. All other senders put
    /// the kind as `type` into the body.
    pub(crate) fn name(&self) -> Result<Option<EventName>, ValidationError> {
        let name = match self.scheme {
            Scheme::Github => match (header(self.headers, GITHUB_EVENT)?, self.text("/action")) {
                (Some(event), Some(action)) => Some(format!("{event}.{action}")),
                (Some(event), None) => Some(event.to_owned()),
                (None, _) => None,
            },
            Scheme::Stripe | Scheme::Standard | Scheme::None => self.text("/type").map(str::to_owned),
        };
        name.map(EventName::new).transpose()
    }

    /// Returns the branch of a GitHub event: the branch that was pushed to, created or deleted, or
    /// the base branch of a pull request.
    pub(super) fn branch(&self) -> Option<&str> {
        if let Some(base) = self.text("/pull_request/base/ref") {
            return Some(base);
        }
        let reference = self.text("/ref")?;
        let is_branch = || self.text("/ref_type") == Some("branch");
        reference.strip_prefix("refs/heads/").or_else(|| is_branch().then_some(reference))
    }

    /// Returns the body as JSON, parsed once.
    pub(super) fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| serde_json::from_slice(self.body).ok()).as_ref()
    }

    /// Returns the text at this position of the body, unless the text is empty.
    fn text(&self, pointer: &str) -> Option<&str> {
        self.json()?.pointer(pointer)?.as_str().filter(|text| !text.is_empty())
    }

    /// Returns the text or the number at this position of the body.
    pub(super) fn scalar(&self, pointer: &str) -> Option<String> {
        match self.json()?.pointer(pointer)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// Returns the value of a header. Rejects a header that is repeated, empty or not plain text.
pub(super) fn header<'a>(
    headers: &'a HeaderMap,
    name: &'static str,
) -> Result<Option<&'a str>, ValidationError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().map(str::trim).filter(|text| !text.is_empty());
    match (text, values.next()) {
        (Some(text), None) => Ok(Some(text)),
        (_, Some(_)) => Err(ValidationError(format!("the header {name} is repeated"))),
        (None, None) => Err(ValidationError(format!("the header {name} is empty or not plain text"))),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn name(scheme: Scheme, event: Option<&str>, body: &str) -> Result<Option<String>, ValidationError> {
        let mut headers = HeaderMap::new();
        if let Some(event) = event {
            headers.insert(GITHUB_EVENT, HeaderValue::from_str(event).unwrap());
        }
        Event::new(scheme, &headers, body.as_bytes()).name().map(|name| name.map(String::from))
    }

    #[test]
    fn an_event_is_named_by_its_sender() {
        let named = |scheme, event, body| name(scheme, event, body).unwrap();
        assert_eq!(named(Scheme::Github, Some("push"), "{}").as_deref(), Some("push"));
        let opened = named(Scheme::Github, Some("pull_request"), r#"{"action":"opened"}"#);
        assert_eq!(opened.as_deref(), Some("pull_request.opened"));
        assert_eq!(named(Scheme::Github, Some("push"), "not json").as_deref(), Some("push"));
        assert_eq!(named(Scheme::Github, None, r#"{"type":"push","action":"opened"}"#), None);
        let typed = r#"{"type":"invoice.paid"}"#;
        for scheme in [Scheme::Stripe, Scheme::Standard, Scheme::None] {
            assert_eq!(named(scheme, Some("push"), typed).as_deref(), Some("invoice.paid"), "{scheme:?}");
            for body in [r#"{"type":1}"#, r#"{"type":""}"#, "{}", "[]", "not json"] {
                assert_eq!(named(scheme, None, body), None, "{body}");
            }
        }
    }

    /// The name ends up in the environment of a command and in the response to the sender.
    #[test]
    fn a_name_is_short_and_has_no_control_characters() {
        assert!(name(Scheme::Github, Some(&"x".repeat(256)), "{}").is_err());
        for body in [r#"{"type":"a\u0000b"}"#, r#"{"type":"a\nb"}"#, r#"{"type":" a"}"#] {
            assert!(name(Scheme::Stripe, None, body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_branch_is_what_was_pushed_to_or_is_to_be_merged_into() {
        let headers = HeaderMap::new();
        let branch =
            |body: &str| Event::new(Scheme::Github, &headers, body.as_bytes()).branch().map(str::to_owned);
        assert_eq!(branch(r#"{"ref":"refs/heads/release/1"}"#).as_deref(), Some("release/1"));
        let request = r#"{"pull_request":{"base":{"ref":"main"},"head":{"ref":"topic"}}}"#;
        assert_eq!(branch(request).as_deref(), Some("main"));
        assert_eq!(branch(r#"{"ref":"topic","ref_type":"branch"}"#).as_deref(), Some("topic"));
        for none in [r#"{"ref":"refs/tags/v1"}"#, r#"{"ref":"v1","ref_type":"tag"}"#, "{}", "not json"] {
            assert_eq!(branch(none), None, "{none}");
        }
    }
}
