//! One delivery of a webhook: its headers, its body, the event that it describes, and the identity of
//! that event: its idempotency key and the id of its delivery.

use std::fmt;
use std::sync::OnceLock;

use axum::http::HeaderMap;
use leasehold::model::{
    DeliveryId, EventName, Payload, QueueName, TaskId, ValidationError, WebhookEvent, WorkflowName,
};
use leasehold::store::TaskStore;
use serde::Deserialize;
use serde_json::Value;

use super::signature::{STANDARD_ID, Scheme};
use crate::problem::{ApiResult, Problem};

const GITHUB_EVENT: &str = "x-github-event";

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
        (_, Some(_)) => Err(ValidationError::other(format!("the header {name} is repeated"))),
        (None, None) => Err(ValidationError::other(format!("the header {name} is empty or not plain text"))),
    }
}

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const GITHUB_DELIVERY: &str = "x-github-delivery";

/// Position in a JSON body: `/data/object/id` (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pointer(String);

impl Pointer {
    /// Validates the text and creates a pointer.
    pub fn new(text: impl Into<String>) -> Result<Self, ValidationError> {
        let text = text.into();
        if text.starts_with('/') {
            return Ok(Self(text));
        }
        Err(ValidationError::other(format!(
            "invalid JSON pointer '{text}': must start with '/', such as /data/object/id"
        )))
    }
}

impl TryFrom<String> for Pointer {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Self::new(text)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventIdentity {
    /// Idempotency key; `None` if the sender supplied nothing that distinguishes the event from others.
    pub(crate) key: Option<String>,
    /// The sender's id of the event, the same for each delivery of the event.
    pub(crate) delivery: Option<DeliveryId>,
    /// Whether the key is authenticated: the key is signed, or the caller has a token. Otherwise an
    /// attacker can send a copy of a signed body under any key.
    pub(crate) is_trusted: bool,
}

/// Returns the identity of an event. The key is the text in the body that the settings point to,
/// otherwise the sender's own id, otherwise the header `Idempotency-Key`. The header comes last
/// because no scheme signs it: an intermediary could tie an event to the key of another event.
/// Without a scheme nothing is signed, and the header comes first.
pub(crate) fn identify(
    event: &Event<'_>,
    pointer: Option<&Pointer>,
) -> Result<EventIdentity, ValidationError> {
    let delivery = delivery_id(event)?;
    let header = key_header(event.headers)?;
    let in_body = pointer.and_then(|pointer| event.scalar(&pointer.0));
    let sent = delivery.as_ref().map(ToString::to_string);
    let (key, is_trusted) = match event.scheme {
        Scheme::None => (header.or(in_body).or(sent), true),
        Scheme::Github => (in_body.clone().or(sent), in_body.is_some()),
        Scheme::Stripe | Scheme::Standard => {
            let signed = in_body.or(sent);
            let is_signed = signed.is_some();
            (signed.or(header), is_signed)
        }
    };
    Ok(EventIdentity { key, delivery, is_trusted })
}

/// Returns the sender's own id of an event. Only the id of the scheme is used: a header of another
/// scheme is not signed, and an attacker who replays an event could invent one. GitHub sends its id
/// with every delivery, so a delivery without an id is rejected.
fn delivery_id(event: &Event<'_>) -> Result<Option<DeliveryId>, ValidationError> {
    let id = match event.scheme {
        Scheme::Stripe => event.scalar("/id"),
        Scheme::Standard => header(event.headers, STANDARD_ID)?.map(str::to_owned),
        Scheme::Github => {
            let missing = || ValidationError::other(format!("the request has no header {GITHUB_DELIVERY}"));
            Some(header(event.headers, GITHUB_DELIVERY)?.ok_or_else(missing)?.to_owned())
        }
        Scheme::None => {
            let standard = header(event.headers, STANDARD_ID)?;
            standard.or(header(event.headers, GITHUB_DELIVERY)?).map(str::to_owned)
        }
    };
    id.map(DeliveryId::new).transpose()
}

/// Returns the value of `Idempotency-Key`, with or without quotes.
pub(crate) fn key_header(headers: &HeaderMap) -> Result<Option<String>, ValidationError> {
    let Some(value) = header(headers, IDEMPOTENCY_KEY)? else { return Ok(None) };
    let Some(quoted) = value.strip_prefix('"') else { return Ok(Some(value.to_owned())) };
    let invalid = || ValidationError::other("invalid header Idempotency-Key: unbalanced quotes");
    let mut key = String::with_capacity(quoted.len());
    let mut rest = quoted.chars();
    loop {
        match rest.next().ok_or_else(invalid)? {
            '"' => break,
            '\\' => key.push(rest.next().filter(|c| ['"', '\\'].contains(c)).ok_or_else(invalid)?),
            c => key.push(c),
        }
    }
    if key.is_empty() || rest.next().is_some() {
        return Err(invalid());
    }
    Ok(Some(key))
}

/// Rejects a payload with webhook metadata for the queue of a workflow.
pub(crate) fn must_not_claim_a_webhook(queue: &QueueName, payload: &Payload) -> ApiResult<()> {
    if WorkflowName::of_queue(queue).is_none() || WebhookEvent::entries_in(payload).is_empty() {
        return Ok(());
    }
    let problem = Problem::new("FORBIDDEN", "only a trigger may claim that a webhook started an execution");
    Err(problem.hint("omit the webhook metadata, or send the event to POST /api/webhooks/TRIGGER"))
}

/// Like [`must_not_claim_a_webhook`], for an existing task that gets a new payload: the task may
/// keep its webhook metadata.
pub(crate) async fn must_keep_its_webhook(
    tasks: &dyn TaskStore,
    id: TaskId,
    payload: Option<&Payload>,
) -> ApiResult<()> {
    let Some(payload) = payload else { return Ok(()) };
    let claimed = WebhookEvent::entries_in(payload);
    if claimed.is_empty() {
        return Ok(());
    }
    match tasks.get(id).await? {
        Some(task) if WebhookEvent::entries_in(&task.payload) != claimed => {
            must_not_claim_a_webhook(&task.queue, payload)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::webhooks::signature::tests::headers;

    fn name(scheme: Scheme, event: Option<&str>, body: &str) -> Result<Option<String>, ValidationError> {
        let headers = event.map_or_else(HeaderMap::new, |event| headers(&[(GITHUB_EVENT, event)]));
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

    const BODY: &[u8] = br#"{"id":"evt_1","data":{"order":42,"none":null,"list":[]}}"#;

    fn identity(scheme: Scheme, all: &[(&'static str, &str)], pointer: Option<&str>) -> EventIdentity {
        let headers = headers(all);
        let pointer = pointer.map(|text| Pointer::new(text).unwrap());
        identify(&Event::new(scheme, &headers, BODY), pointer.as_ref()).unwrap()
    }

    fn key(scheme: Scheme, all: &[(&'static str, &str)], pointer: Option<&str>) -> Option<String> {
        identity(scheme, all, pointer).key
    }

    #[test]
    fn a_key_is_looked_for_in_one_order() {
        let all = [(IDEMPOTENCY_KEY, "\"mine\""), (STANDARD_ID, "msg_1"), (GITHUB_DELIVERY, "guid")];
        assert_eq!(key(Scheme::Stripe, &all, Some("/data/order")).as_deref(), Some("42"));
        assert_eq!(key(Scheme::Stripe, &all, None).as_deref(), Some("evt_1"));
        assert_eq!(key(Scheme::Github, &all, None).as_deref(), Some("guid"));
        assert_eq!(key(Scheme::None, &all, Some("/data/order")).as_deref(), Some("mine"));
        assert_eq!(key(Scheme::Stripe, &all[1..], Some("/data/order")).as_deref(), Some("42"));
        assert_eq!(key(Scheme::Stripe, &all[1..], None).as_deref(), Some("evt_1"));
        assert_eq!(key(Scheme::Standard, &all[1..], None).as_deref(), Some("msg_1"));
        assert_eq!(key(Scheme::Github, &all[1..], None).as_deref(), Some("guid"));
        assert_eq!(key(Scheme::None, &all[1..], None).as_deref(), Some("msg_1"));
        assert_eq!(key(Scheme::None, &all[2..], None).as_deref(), Some("guid"));
        assert_eq!(key(Scheme::None, &[], None), None);
    }

    #[test]
    fn only_what_is_signed_or_sent_with_a_token_is_trusted() {
        let github = [(GITHUB_DELIVERY, "guid")];
        assert!(!identity(Scheme::Github, &github, None).is_trusted);
        assert!(identity(Scheme::Github, &github, Some("/data/order")).is_trusted);
        assert!(identity(Scheme::Stripe, &[], None).is_trusted);
        assert!(identity(Scheme::Standard, &[(STANDARD_ID, "msg_1")], None).is_trusted);
        assert!(identity(Scheme::None, &github, None).is_trusted);
        let keyed = headers(&[(IDEMPOTENCY_KEY, "mine")]);
        let without_id = identify(&Event::new(Scheme::Stripe, &keyed, b"{}"), None).unwrap();
        assert_eq!((without_id.key.as_deref(), without_id.is_trusted), (Some("mine"), false));
    }

    #[test]
    fn github_deliveries_require_a_valid_id() {
        let refused = |scheme, all: &[(&'static str, &str)], body: &[u8]| {
            identify(&Event::new(scheme, &headers(all), body), None).is_err()
        };
        assert!(refused(Scheme::Github, &[], BODY));
        assert!(refused(Scheme::Github, &[(IDEMPOTENCY_KEY, "mine")], BODY));
        assert!(refused(Scheme::Github, &[(GITHUB_DELIVERY, &"x".repeat(256))], BODY));
        assert!(refused(Scheme::Github, &[(GITHUB_DELIVERY, "a\tb")], BODY));
        assert!(refused(Scheme::Stripe, &[], br#"{"id":"evt\u0000"}"#));
        assert!(!refused(Scheme::Stripe, &[], BODY));
    }

    #[test]
    fn a_pointer_without_a_scalar_is_ignored() {
        for pointer in ["/nothing", "/data", "/data/none", "/data/list", "/"] {
            assert_eq!(
                key(Scheme::Github, &[(GITHUB_DELIVERY, "guid")], Some(pointer)).as_deref(),
                Some("guid")
            );
        }
        assert!(Pointer::new("data/id").is_err() && Pointer::new("").is_err());
        let none = HeaderMap::new();
        for body in [&b""[..], b"not json", b"\xff", b"[1]"] {
            let event = Event::new(Scheme::Stripe, &none, body);
            assert_eq!(identify(&event, Some(&Pointer::new("/id").unwrap())).unwrap().key, None);
        }
    }

    #[test]
    fn a_key_is_quoted_or_not() {
        let read = |value: &str| key_header(&headers(&[(IDEMPOTENCY_KEY, value)]));
        assert_eq!(read("abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(read("a\"b").unwrap().as_deref(), Some("a\"b"));
        assert_eq!(read("\"a b\"").unwrap().as_deref(), Some("a b"));
        assert_eq!(read(r#""a\"b\\c""#).unwrap().as_deref(), Some(r#"a"b\c"#));
        for invalid in ["", " ", "\"", "\"\"", "\"abc", "\"abc\"d", r#""a\"#, r#""a\b""#] {
            assert!(read(invalid).is_err(), "{invalid}");
        }
        assert_eq!(key_header(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn a_repeated_key_header_is_rejected() {
        let mut twice = headers(&[(IDEMPOTENCY_KEY, "a")]);
        twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("b"));
        assert!(key_header(&twice).is_err());
    }
}
