//! What tells one event from another: its idempotency key, and the id of its delivery.

use std::fmt;

use axum::http::HeaderMap;
use leasehold::model::Invalid;
use serde::Deserialize;
use serde_json::Value;

use super::signature::{STANDARD_ID, Scheme};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const GITHUB_DELIVERY: &str = "x-github-delivery";

/// Where in a JSON body something stands: `/data/object/id` (RFC 6901).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pointer(String);

impl Pointer {
    /// Checks the text and takes it.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        if text.starts_with('/') {
            return Ok(Self(text));
        }
        Err(Invalid(format!("'{text}' is no JSON pointer; write one such as /data/object/id")))
    }
}

impl TryFrom<String> for Pointer {
    type Error = Invalid;
    fn try_from(text: String) -> Result<Self, Invalid> {
        Self::new(text)
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A webhook that came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

/// The key of an event: what the body has where the settings point to, then the sender's own id, then what the header says. None
/// if there is none of them. The header comes last because no scheme signs it: whoever passes an event on could tie it to the
/// key of another one. Without a scheme nothing is signed, and the header comes first.
pub(crate) fn key_of(event: Event<'_>, pointer: Option<&Pointer>) -> Result<Option<String>, Invalid> {
    let header = key_header(event.headers)?;
    if event.scheme == Scheme::None && header.is_some() {
        return Ok(header);
    }
    if let Some(key) = pointer.and_then(|pointer| at(event.body, &pointer.0)) {
        return Ok(Some(key));
    }
    Ok(delivery_id(event)?.or(header))
}

/// The sender's own id of an event, the same each time that it is delivered. It is the id of the scheme alone: a header of another
/// scheme is not signed, and whoever replays an event could make one up.
pub(crate) fn delivery_id(event: Event<'_>) -> Result<Option<String>, Invalid> {
    let names: &[&'static str] = match event.scheme {
        Scheme::Stripe => return Ok(at(event.body, "/id")),
        Scheme::Standard => &[STANDARD_ID],
        Scheme::Github => &[GITHUB_DELIVERY],
        Scheme::None => &[STANDARD_ID, GITHUB_DELIVERY],
    };
    for name in names {
        if let Some(id) = text(event.headers, name)? {
            return Ok(Some(id.to_owned()));
        }
    }
    Ok(None)
}

/// The value of `Idempotency-Key`: a quoted text, or one without quotes.
pub(crate) fn key_header(headers: &HeaderMap) -> Result<Option<String>, Invalid> {
    let Some(value) = text(headers, IDEMPOTENCY_KEY)? else { return Ok(None) };
    let Some(quoted) = value.strip_prefix('"') else { return Ok(Some(value.to_owned())) };
    let wrong = || Invalid("Idempotency-Key is a text with one quote too few or too many".to_owned());
    let mut key = String::with_capacity(quoted.len());
    let mut rest = quoted.chars();
    loop {
        match rest.next().ok_or_else(wrong)? {
            '"' => break,
            '\\' => key.push(rest.next().filter(|c| ['"', '\\'].contains(c)).ok_or_else(wrong)?),
            c => key.push(c),
        }
    }
    if key.is_empty() || rest.next().is_some() {
        return Err(wrong());
    }
    Ok(Some(key))
}

/// A header that is there once, and has something in it.
fn text<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<Option<&'a str>, Invalid> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().map(str::trim).filter(|text| !text.is_empty());
    match (text, values.next()) {
        (Some(text), None) => Ok(Some(text)),
        (_, Some(_)) => Err(Invalid(format!("the header {name} is there more than once"))),
        (None, None) => Err(Invalid(format!("the header {name} is empty, or no plain text"))),
    }
}

/// A text or a number in a JSON body. Whatever else stands there is no key.
fn at(body: &[u8], pointer: &str) -> Option<String> {
    let body: Value = serde_json::from_slice(body).ok()?;
    match body.pointer(pointer)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
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

    fn key(scheme: Scheme, all: &[(&'static str, &str)], pointer: Option<&str>) -> Option<String> {
        let headers = headers(all);
        let pointer = pointer.map(|text| Pointer::new(text).unwrap());
        key_of(Event { scheme, headers: &headers, body: BODY }, pointer.as_ref()).unwrap()
    }

    #[test]
    fn a_key_is_looked_for_in_one_order() {
        let all = [(IDEMPOTENCY_KEY, "\"mine\""), (STANDARD_ID, "msg_1"), (GITHUB_DELIVERY, "guid")];
        assert_eq!(key(Scheme::Stripe, &all, Some("/data/order")).as_deref(), Some("42"));
        assert_eq!(key(Scheme::Stripe, &all, None).as_deref(), Some("evt_1"));
        assert_eq!(key(Scheme::Github, &all, None).as_deref(), Some("guid"));
        assert_eq!(key(Scheme::Github, &all[..1], None).as_deref(), Some("mine"));
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
    fn a_pointer_that_leads_to_no_text_leads_nowhere() {
        for pointer in ["/nothing", "/data", "/data/none", "/data/list", "/"] {
            assert_eq!(
                key(Scheme::Github, &[(GITHUB_DELIVERY, "guid")], Some(pointer)).as_deref(),
                Some("guid")
            );
        }
        assert!(Pointer::new("data/id").is_err() && Pointer::new("").is_err());
        let none = HeaderMap::new();
        for body in [&b""[..], b"not json", b"\xff", b"[1]"] {
            let event = Event { scheme: Scheme::Stripe, headers: &none, body };
            assert_eq!(key_of(event, Some(&Pointer::new("/id").unwrap())).unwrap(), None);
        }
    }

    #[test]
    fn a_key_is_quoted_or_not() {
        let read = |value: &str| key_header(&headers(&[(IDEMPOTENCY_KEY, value)]));
        assert_eq!(read("abc").unwrap().as_deref(), Some("abc"));
        assert_eq!(read("\"abc\"").unwrap().as_deref(), Some("abc"));
        assert_eq!(read(r#""a\"b\\c""#).unwrap().as_deref(), Some(r#"a"b\c"#));
        for wrong in ["", " ", "\"", "\"\"", "\"abc", "\"abc\"d", r#""a\"#, r#""a\b""#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(key_header(&HeaderMap::new()).unwrap(), None);
    }

    #[test]
    fn a_key_that_is_there_twice_is_none_to_choose_from() {
        let mut twice = headers(&[(IDEMPOTENCY_KEY, "a")]);
        twice.append(IDEMPOTENCY_KEY, HeaderValue::from_static("b"));
        assert!(key_header(&twice).is_err());
    }
}
