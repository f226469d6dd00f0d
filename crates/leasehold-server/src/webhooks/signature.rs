//! Signatures of webhooks over the raw bytes of the body. The MAC compares them in constant time.
//! Several secrets may be valid at once, so that a secret can be rotated without losing an event.

use std::fmt;
use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use leasehold::model::{Timestamp, ValidationError};
use serde::Deserialize;
use sha2::Sha256;

const GITHUB: &str = "x-hub-signature-256";
const STRIPE: &str = "stripe-signature";
const STANDARD_SIGNATURE: &str = "webhook-signature";
const STANDARD_TIME: &str = "webhook-timestamp";
pub(super) const STANDARD_ID: &str = "webhook-id";

/// Maximum length of a signature header; a longer header is malformed.
const MAX_HEADER_BYTES: usize = 4096;
/// Maximum number of signatures per header that are verified: each costs a MAC over the body per
/// secret.
const MAX_SIGNATURES: usize = 8;

/// Signature scheme of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Scheme {
    /// `X-Hub-Signature-256`; no timestamp is signed.
    Github,
    /// `Stripe-Signature`; the timestamp is signed.
    Stripe,
    /// Standard Webhooks: `webhook-signature`; the timestamp and the id are signed.
    Standard,
    /// No signature.
    None,
}

impl Scheme {
    pub(crate) const fn has_time(self) -> bool {
        matches!(self, Self::Stripe | Self::Standard)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) scheme: Scheme,
    /// Valid secrets; a signature with any of them is accepted.
    pub(crate) secrets: &'a [Secret],
    /// Maximum difference between a signed timestamp and the current time, in both directions.
    pub(crate) tolerance: Duration,
}

/// Reason why a request failed verification. Reveals nothing that would help to forge a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignatureError {
    /// The header is missing or repeated.
    Missing(&'static str),
    /// The header is not a signature of this scheme.
    Malformed(&'static str),
    /// The timestamp is too old or in the future.
    Untimely,
    /// The request was signed with another secret, or was changed after signing.
    Wrong,
}

impl fmt::Display for SignatureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(header) => write!(f, "the request has no header {header}, or more than one"),
            Self::Malformed(header) => write!(f, "the header {header} is not a signature of this scheme"),
            Self::Untimely => f.write_str("the request was signed too long ago, or in the future"),
            Self::Wrong => f.write_str("the signature does not match the secrets of this trigger"),
        }
    }
}

impl Check<'_> {
    /// Verifies that the request was signed with one of the secrets, at about `now`.
    pub(crate) fn verify(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: Timestamp,
    ) -> Result<(), SignatureError> {
        match self.scheme {
            Scheme::Github => self.github(headers, body),
            Scheme::Stripe => self.stripe(headers, body, now),
            Scheme::Standard => self.standard(headers, body, now),
            Scheme::None => Ok(()),
        }
    }

    fn github(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), SignatureError> {
        let value = only(headers, GITHUB)?;
        let code =
            value.strip_prefix("sha256=").and_then(from_hex).ok_or(SignatureError::Malformed(GITHUB))?;
        self.is_one_of(&[code], &[body])
    }

    /// Verifies `t=1700000000,v1=HEX[,v1=HEX…]`; other parts are ignored.
    fn stripe(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), SignatureError> {
        let value = only(headers, STRIPE)?;
        let (mut time, mut codes) = (None, Vec::new());
        for part in value.split(',') {
            match part.trim().split_once('=') {
                Some(("t", text)) if time.is_none() => time = Some(text),
                Some(("t", _)) => return Err(SignatureError::Malformed(STRIPE)),
                Some(("v1", text)) => codes.extend(from_hex(text)),
                _ => {}
            }
        }
        let time = time.filter(|_| !codes.is_empty()).ok_or(SignatureError::Malformed(STRIPE))?;
        self.is_timely(time, now, STRIPE)?;
        self.is_one_of(&codes, &[time.as_bytes(), b".", body])
    }

    /// Verifies `v1,BASE64 v1,BASE64 …`; other versions are ignored.
    fn standard(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), SignatureError> {
        let value = only(headers, STANDARD_SIGNATURE)?;
        let (id, time) = (only(headers, STANDARD_ID)?, only(headers, STANDARD_TIME)?);
        let codes: Vec<_> = value
            .split(' ')
            .filter_map(|part| part.strip_prefix("v1,"))
            .filter_map(|code| STANDARD.decode(code).ok()?.try_into().ok())
            .collect();
        if codes.is_empty() {
            return Err(SignatureError::Malformed(STANDARD_SIGNATURE));
        }
        self.is_timely(time, now, STANDARD_TIME)?;
        self.is_one_of(&codes, &[id.as_bytes(), b".", time.as_bytes(), b".", body])
    }

    fn is_timely(&self, time: &str, now: Timestamp, header: &'static str) -> Result<(), SignatureError> {
        let is_number = !time.is_empty() && time.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: u64 =
            is_number.then(|| time.parse().ok()).flatten().ok_or(SignatureError::Malformed(header))?;
        let now = now.as_micros() / 1_000_000;
        if now.abs_diff(seconds) <= self.tolerance.as_secs() { Ok(()) } else { Err(SignatureError::Untimely) }
    }

    /// Verifies that one of these codes is the MAC of the message under one of the secrets.
    fn is_one_of(&self, codes: &[[u8; 32]], message: &[&[u8]]) -> Result<(), SignatureError> {
        for secret in self.secrets {
            let mut mac =
                Hmac::<Sha256>::new_from_slice(&secret.0).expect("HMAC accepts a key of any length");
            for part in message {
                mac.update(part);
            }
            for code in codes.iter().take(MAX_SIGNATURES) {
                if mac.clone().verify_slice(code).is_ok() {
                    return Ok(());
                }
            }
        }
        Err(SignatureError::Wrong)
    }
}

/// Returns the value of a header that occurs once and is a text of at most `MAX_HEADER_BYTES` bytes.
fn only<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, SignatureError> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return Err(SignatureError::Missing(name));
    };
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.len() <= MAX_HEADER_BYTES);
    text.ok_or(SignatureError::Malformed(name))
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| char::from(digit).to_digit(16));
        *byte = u8::try_from(high? * 16 + low?).ok()?;
    }
    Some(bytes)
}

const STANDARD_PREFIX: &str = "whsec_";

/// Secret that the sender of a webhook signs with, as bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Creates a secret from the text that the sender displays. Standard Webhooks use `whsec_` and
    /// Base64; all others use the text itself.
    pub fn new(scheme: Scheme, text: &str) -> Result<Self, ValidationError> {
        let bytes = match scheme {
            Scheme::Standard => {
                let encoded = text.strip_prefix(STANDARD_PREFIX).unwrap_or(text);
                let invalid = |_| {
                    ValidationError::other("invalid secret of Standard Webhooks: must be whsec_ and Base64")
                };
                STANDARD.decode(encoded).map_err(invalid)?
            }
            Scheme::Github | Scheme::Stripe | Scheme::None => text.as_bytes().to_vec(),
        };
        if bytes.is_empty() {
            return Err(ValidationError::other("the secret must not be empty"));
        }
        Ok(Self(bytes))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    const GITHUB_SECRET: &str = "It's a Secret to Everybody";
    const GITHUB_CODE: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    const HELLO: &[u8] = b"Hello, World!";

    const STANDARD_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    const STANDARD_BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
    const STANDARD_CODE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";
    const STANDARD_AT: u64 = 1_649_367_553;

    pub(in crate::webhooks) fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        all.iter().map(pair).collect()
    }

    fn verify_headers(
        scheme: Scheme,
        texts: &[&str],
        headers: &HeaderMap,
        body: &[u8],
        now: u64,
    ) -> Result<(), SignatureError> {
        let secrets: Vec<_> = texts.iter().map(|text| Secret::new(scheme, text).unwrap()).collect();
        let check = Check { scheme, secrets: &secrets, tolerance: Duration::from_mins(5) };
        check.verify(headers, body, Timestamp::from_micros(now * 1_000_000))
    }

    fn github(texts: &[&str], value: &str, body: &[u8]) -> Result<(), SignatureError> {
        verify_headers(Scheme::Github, texts, &headers(&[(GITHUB, value)]), body, 0)
    }

    fn stripe(text: &str, value: &str, body: &[u8], now: u64) -> Result<(), SignatureError> {
        verify_headers(Scheme::Stripe, &[text], &headers(&[(STRIPE, value)]), body, now)
    }

    fn code(secret: &str, message: &[&[u8]]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        for part in message {
            mac.update(part);
        }
        mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
    }

    #[test]
    fn github_signs_the_body() {
        let verify = |value: &str, body: &[u8]| github(&[GITHUB_SECRET], value, body);
        let signed = format!("sha256={GITHUB_CODE}");
        assert_eq!(verify(&signed, HELLO), Ok(()));
        assert_eq!(verify(&format!("sha256={}", GITHUB_CODE.to_uppercase()), HELLO), Ok(()));
        assert_eq!(verify(&signed, b"Hello, World?"), Err(SignatureError::Wrong));
        assert_eq!(verify(&signed, b""), Err(SignatureError::Wrong));
        assert_eq!(verify(&signed.replacen('7', "8", 1), HELLO), Err(SignatureError::Wrong));
        let empty = format!("sha256={}", code("s", &[b""]));
        assert_eq!(github(&["s"], &empty, b""), Ok(()), "an empty body can be signed");
    }

    #[test]
    fn an_invalid_github_signature_is_rejected() {
        let (short, long) = (&GITHUB_CODE[..62], format!("{GITHUB_CODE}00"));
        for value in [
            "",
            "sha256=",
            GITHUB_CODE,
            &format!("sha1={GITHUB_CODE}"),
            &format!("SHA256={GITHUB_CODE}"),
            &format!("sha256={short}"),
            &format!("sha256={}", &GITHUB_CODE[..63]),
            &format!("sha256={long}"),
            &format!("sha256= {GITHUB_CODE}"),
            &format!("sha256={short}zz"),
            &format!("sha256={short}+1"),
            &"a".repeat(1 << 20),
        ] {
            let refused = github(&[GITHUB_SECRET], value, HELLO);
            assert_eq!(refused, Err(SignatureError::Malformed(GITHUB)), "{}", &value[..value.len().min(80)]);
        }
        let value = format!("sha256={GITHUB_CODE}");
        let mut twice = headers(&[(GITHUB, &value)]);
        twice.append(GITHUB, HeaderValue::from_str(&value).unwrap());
        let mut bytes = HeaderMap::new();
        bytes.insert(GITHUB, HeaderValue::from_bytes(&[0xff, 0xfe]).unwrap());
        for (headers, error) in [
            (HeaderMap::new(), SignatureError::Missing(GITHUB)),
            (twice, SignatureError::Missing(GITHUB)),
            (bytes, SignatureError::Malformed(GITHUB)),
        ] {
            let refused = verify_headers(Scheme::Github, &[GITHUB_SECRET], &headers, HELLO, 0);
            assert_eq!(refused, Err(error));
        }
    }

    #[test]
    fn several_secrets_are_valid_at_once() {
        let verify = |texts: &[&str]| github(texts, &format!("sha256={GITHUB_CODE}"), HELLO);
        assert_eq!(verify(&["the next one", GITHUB_SECRET]), Ok(()));
        assert_eq!(verify(&[GITHUB_SECRET, "the one before"]), Ok(()));
        assert_eq!(verify(&["the next one"]), Err(SignatureError::Wrong));
        assert_eq!(verify(&[]), Err(SignatureError::Wrong));
    }

    #[test]
    fn stripe_signs_the_time_and_the_body() {
        let body = br#"{"id":"evt_1"}"#;
        let good = code("whsec_test", &[b"1700000000.", body]);
        let verify = |value: &str, now| stripe("whsec_test", value, body, now);
        let signed = format!("t=1700000000,v1={good}");
        for now in [1_700_000_000, 1_700_000_300, 1_699_999_700] {
            assert_eq!(verify(&signed, now), Ok(()), "{now}");
        }
        for now in [1_700_000_301, 1_699_999_699, 0, 9_999_999_999] {
            assert_eq!(verify(&signed, now), Err(SignatureError::Untimely), "{now}");
        }
        let bad = "0".repeat(64);
        for (value, expected) in [
            (format!("t=1700000000,v1={bad},v1={good},v0={bad}"), Ok(())),
            (format!("t=1700000000, v1={good}"), Ok(())),
            (format!("t=1700000000,v1={bad}"), Err(SignatureError::Wrong)),
            // The timestamp is signed in its written form.
            (format!("t=01700000000,v1={good}"), Err(SignatureError::Wrong)),
            (format!("t=1700000001,v1={good}"), Err(SignatureError::Wrong)),
        ] {
            assert_eq!(verify(&value, 1_700_000_000), expected, "{value}");
        }
    }

    #[test]
    fn an_invalid_stripe_signature_is_rejected() {
        let code = "0".repeat(64);
        for value in [
            String::new(),
            "t=1700000000".to_owned(),
            format!("v1={code}"),
            "t=1700000000,v1=".to_owned(),
            format!("t=1700000000,v1={}", &code[..63]),
            format!("t=1700000000,v0={code}"),
            format!("t=,v1={code}"),
            format!("t=-5,v1={code}"),
            format!("t=+1700000000,v1={code}"),
            format!("t=1.7e9,v1={code}"),
            format!("t=99999999999999999999999,v1={code}"),
            format!("t=1700000000,t=1700000001,v1={code}"),
            format!("t=1700000000,v1={}", "0".repeat(8000)),
        ] {
            let refused = stripe("whsec_test", &value, b"{}", 1_700_000_000);
            assert_eq!(refused, Err(SignatureError::Malformed(STRIPE)), "{value}");
        }
    }

    #[test]
    fn a_limited_number_of_signatures_is_verified() {
        let good = code("s", &[b"1700000000.", b"{}"]);
        let with = |others: usize| {
            let bad = format!("v1={},", "0".repeat(64)).repeat(others);
            stripe("s", &format!("t=1700000000,{bad}v1={good}"), b"{}", 1_700_000_000)
        };
        assert_eq!(with(MAX_SIGNATURES - 1), Ok(()));
        assert_eq!(with(MAX_SIGNATURES), Err(SignatureError::Wrong));
    }

    fn standard(id: &str, time: &str, signature: &str, now: u64) -> Result<(), SignatureError> {
        let all = headers(&[(STANDARD_ID, id), (STANDARD_TIME, time), (STANDARD_SIGNATURE, signature)]);
        verify_headers(Scheme::Standard, &[STANDARD_SECRET], &all, STANDARD_BODY, now)
    }

    #[test]
    fn standard_webhooks_sign_the_id_the_time_and_the_body() {
        let id = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
        let time = STANDARD_AT.to_string();
        let verify = |signature: &str, now| standard(id, &time, signature, now);
        assert_eq!(verify(STANDARD_CODE, STANDARD_AT), Ok(()));
        assert_eq!(verify(STANDARD_CODE, STANDARD_AT + 300), Ok(()));
        assert_eq!(verify(STANDARD_CODE, STANDARD_AT + 301), Err(SignatureError::Untimely));
        assert_eq!(verify(STANDARD_CODE, STANDARD_AT - 301), Err(SignatureError::Untimely));
        let zero = format!("v1,{}", STANDARD.encode([0; 32]));
        assert_eq!(verify(&format!("v2,x {zero} {STANDARD_CODE}"), STANDARD_AT), Ok(()));
        assert_eq!(verify(&zero, STANDARD_AT), Err(SignatureError::Wrong));
        assert_eq!(standard("msg_other", &time, STANDARD_CODE, STANDARD_AT), Err(SignatureError::Wrong));
        let later = (STANDARD_AT + 1).to_string();
        assert_eq!(standard(id, &later, STANDARD_CODE, STANDARD_AT), Err(SignatureError::Wrong));
    }

    #[test]
    fn an_invalid_standard_webhooks_signature_is_rejected() {
        let time = STANDARD_AT.to_string();
        for signature in
            ["v1", "v1,", "v1,???", "v1,AQID", "v2,AQID", "tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="]
        {
            let refused = standard("msg", &time, signature, STANDARD_AT);
            assert_eq!(refused, Err(SignatureError::Malformed(STANDARD_SIGNATURE)), "{signature}");
        }
        for time in ["", "soon", "-1"] {
            let refused = standard("msg", time, STANDARD_CODE, STANDARD_AT);
            assert_eq!(refused, Err(SignatureError::Malformed(STANDARD_TIME)), "{time}");
        }
        let no_id = headers(&[(STANDARD_TIME, &time), (STANDARD_SIGNATURE, STANDARD_CODE)]);
        let refused =
            verify_headers(Scheme::Standard, &[STANDARD_SECRET], &no_id, STANDARD_BODY, STANDARD_AT);
        assert_eq!(refused, Err(SignatureError::Missing(STANDARD_ID)));
    }

    #[test]
    fn an_error_contains_no_secret() {
        for refused in [
            SignatureError::Missing(GITHUB),
            SignatureError::Malformed(GITHUB),
            SignatureError::Untimely,
            SignatureError::Wrong,
        ] {
            assert!(!refused.to_string().contains(GITHUB_SECRET));
        }
    }

    #[test]
    fn a_secret_is_read_as_its_scheme_means_it_and_never_shown() {
        let standard = Secret::new(Scheme::Standard, "whsec_AQID").unwrap();
        assert_eq!(standard.0, [1, 2, 3]);
        assert_eq!(Secret::new(Scheme::Standard, "AQID").unwrap(), standard);
        assert_eq!(Secret::new(Scheme::Stripe, "whsec_AQID").unwrap().0, b"whsec_AQID");
        assert_eq!(format!("{standard:?}"), "Secret(…)");
        for invalid in ["whsec_", "whsec_ä", "whsec_A"] {
            assert!(Secret::new(Scheme::Standard, invalid).is_err(), "{invalid}");
        }
        assert!(Secret::new(Scheme::Github, "").is_err());
    }
}
