//! Fuzz targets of webhooks: signatures, and filters of events.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use leasehold::fuzz_corpus;
use leasehold::model::Timestamp;
use leasehold::testing::fuzz::{Shape, fuzz};
use sha2::Sha256;

use super::filter::{Condition, Pattern};
use super::signature::{Check, Scheme, Secret, SignatureError};

const SECRET: &[u8] = b"a secret of this target";
const NOW: u64 = 1_700_000_000;

/// Headers that the schemes read.
const HEADERS: [&str; 5] =
    ["x-hub-signature-256", "stripe-signature", "webhook-signature", "webhook-timestamp", "webhook-id"];

#[test]
fn webhook_signatures_hold_only_for_exactly_what_was_signed() {
    fuzz(fuzz_corpus!("webhook-bodies"), 1_000, |input| {
        let (at, body) = input.split_first().map_or((0, input), |(at, body)| (usize::from(*at), body));
        for scheme in [Scheme::Github, Scheme::Stripe, Scheme::Standard] {
            let signed = sign(scheme, body);
            assert_eq!(verify(scheme, &signed, body), Ok(()));
            // Another body, of the same or another length.
            let mut changed = body.to_vec();
            if let Some(byte) = (!body.is_empty()).then(|| &mut changed[at % body.len()]) {
                *byte ^= 1 << (at % 8);
                assert!(verify(scheme, &signed, &changed).is_err());
            }
            changed = [body, b"x"].concat();
            assert!(verify(scheme, &signed, &changed).is_err());
            // Another byte in any header. Hexadecimal digits have two cases.
            for (name, value) in &signed {
                let mut bytes = value.as_bytes().to_vec();
                let position = at % bytes.len();
                bytes[position] ^= 1 << (at % 7);
                if bytes.eq_ignore_ascii_case(value.as_bytes()) && scheme != Scheme::Standard {
                    continue;
                }
                let Ok(changed) = HeaderValue::from_bytes(&bytes) else { continue };
                let mut headers = signed.clone();
                headers.insert(name.clone(), changed);
                assert!(verify(scheme, &headers, body).is_err(), "{scheme:?} {name}: {bytes:?}");
            }
        }
        Shape::of(&vec![(); body.len().min(32)])
    });
}

#[test]
fn webhook_headers_of_any_text_are_refused() {
    fuzz(fuzz_corpus!("webhook-headers"), 3_000, |input| {
        // The first line is the value of each header; the rest is the body.
        let (value, body) =
            input.split_at(input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len()));
        let Ok(value) = HeaderValue::from_bytes(value) else { return Shape::of(&"no header") };
        let headers: HeaderMap =
            HEADERS.iter().map(|name| (HeaderName::from_static(name), value.clone())).collect();
        let results =
            [Scheme::Github, Scheme::Stripe, Scheme::Standard].map(|scheme| verify(scheme, &headers, body));
        assert!(results.iter().all(Result::is_err), "no caller knows the secret");
        Shape::of(&results)
    });
}

#[test]
fn webhook_filters_are_parsed_or_refused() {
    fuzz(fuzz_corpus!("webhook-filters"), 2_000, |input| {
        let text = String::from_utf8_lossy(input);
        let (condition, pattern) = (Condition::new(&text), Pattern::new(text.as_ref()));
        Shape::of(&(
            condition.map(drop).map_err(|error| Shape::of_text(&error)),
            pattern.map(drop).map_err(|error| Shape::of_text(&error)),
        ))
    });
}

fn verify(scheme: Scheme, headers: &HeaderMap, body: &[u8]) -> Result<(), SignatureError> {
    let secret = match scheme {
        Scheme::Standard => Secret::new(scheme, &STANDARD.encode(SECRET)),
        _ => Secret::new(scheme, std::str::from_utf8(SECRET).unwrap()),
    };
    let check = Check { scheme, secrets: &[secret.unwrap()], tolerance: Duration::from_mins(5) };
    check.verify(headers, body, Timestamp::from_micros(NOW * 1_000_000))
}

fn sign(scheme: Scheme, body: &[u8]) -> HeaderMap {
    let time = NOW.to_string();
    let pairs: Vec<(&str, String)> = match scheme {
        Scheme::Github => vec![(HEADERS[0], format!("sha256={}", hex(&[body])))],
        Scheme::Stripe => vec![(HEADERS[1], format!("t={time},v1={}", hex(&[time.as_bytes(), b".", body])))],
        _ => {
            let code = STANDARD.encode(mac(&[b"id-1.", time.as_bytes(), b".", body]));
            vec![(HEADERS[2], format!("v1,{code}")), (HEADERS[3], time), (HEADERS[4], "id-1".to_owned())]
        }
    };
    let pairs = pairs.into_iter().map(|(name, value)| {
        (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(&value).unwrap())
    });
    pairs.collect()
}

fn hex(message: &[&[u8]]) -> String {
    mac(message).iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

fn mac(message: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).unwrap();
    for part in message {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}
