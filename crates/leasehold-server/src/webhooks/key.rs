//! Identity of an event: its idempotency key and the id of its delivery.

use std::fmt;

use axum::http::HeaderMap;
use leasehold::model::{DeliveryId, ValidationError};
use serde::Deserialize;

use super::event::{Event, header};
use super::signature::{STANDARD_ID, Scheme};

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
        Err(ValidationError(format!(
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

/// Identity of an event.
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
            let missing = || ValidationError(format!("the request has no header {GITHUB_DELIVERY}"));
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
    let invalid = || ValidationError("invalid header Idempotency-Key: unbalanced quotes".to_owned());
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

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        all.iter().map(pair).collect()
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
        assert_eq!(read("\"abc\"").unwrap().as_deref(), Some("abc"));
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
