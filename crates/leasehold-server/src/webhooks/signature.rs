//! Signatures of webhooks, over the raw bytes of the body. Compared in constant time, by the MAC itself; several secrets
//! may be valid at once, so that one can be changed for another without losing an event.

use std::fmt;
use std::time::Duration;

use axum::http::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use leasehold::model::Timestamp;
use serde::Deserialize;
use sha2::Sha256;

use super::secret::Secret;

const GITHUB: &str = "x-hub-signature-256";
const STRIPE: &str = "stripe-signature";
const STANDARD_SIGNATURE: &str = "webhook-signature";
const STANDARD_TIME: &str = "webhook-timestamp";
pub(super) const STANDARD_ID: &str = "webhook-id";

/// A header that is longer is no signature.
const LONGEST_HEADER: usize = 4096;
/// So many signatures of one header are looked at: each costs a MAC over the body for each secret.
const MOST_SIGNATURES: usize = 8;

/// How a sender signs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// `X-Hub-Signature-256`. No time is signed.
    Github,
    /// `Stripe-Signature`, with the time.
    Stripe,
    /// Standard Webhooks: `webhook-signature`, with the time and the id.
    Standard,
    /// Not at all.
    None,
}

impl Scheme {
    /// Whether a sender that signs like this also signs when.
    pub(crate) const fn has_time(self) -> bool {
        matches!(self, Self::Stripe | Self::Standard)
    }
}

/// How the requests of a trigger are checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check<'a> {
    pub(crate) scheme: Scheme,
    /// Each of them is good.
    pub(crate) secrets: &'a [Secret],
    /// How far a signed time may be from now, both ways.
    pub(crate) tolerance: Duration,
}

/// Why a request was not believed. Says nothing that would help to forge one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// There is no such header, or more than one.
    Missing(&'static str),
    /// The header does not look like a signature.
    Malformed(&'static str),
    /// It was signed too long ago, or in the future.
    Untimely,
    /// It was signed with another secret, or something was changed since.
    Wrong,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(header) => write!(f, "the request has no header {header}, or more than one"),
            Self::Malformed(header) => write!(f, "the header {header} is no signature of this scheme"),
            Self::Untimely => f.write_str("the request was signed too long ago, or in the future"),
            Self::Wrong => f.write_str("the signature is not that of this trigger's sender"),
        }
    }
}

impl Check<'_> {
    /// Whether the request was signed by somebody who has one of the secrets, at about `now`.
    pub(crate) fn verify(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), Refused> {
        match self.scheme {
            Scheme::Github => self.github(headers, body),
            Scheme::Stripe => self.stripe(headers, body, now),
            Scheme::Standard => self.standard(headers, body, now),
            Scheme::None => Ok(()),
        }
    }

    fn github(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), Refused> {
        let value = only(headers, GITHUB)?;
        let code = value.strip_prefix("sha256=").and_then(from_hex).ok_or(Refused::Malformed(GITHUB))?;
        self.is_one_of(&[code], &[body])
    }

    /// `t=1700000000,v1=HEX[,v1=HEX…]`; other parts are of no interest.
    fn stripe(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), Refused> {
        let value = only(headers, STRIPE)?;
        let (mut time, mut codes) = (None, Vec::new());
        for part in value.split(',') {
            match part.trim().split_once('=') {
                Some(("t", text)) if time.is_none() => time = Some(text),
                Some(("t", _)) => return Err(Refused::Malformed(STRIPE)),
                Some(("v1", text)) => codes.extend(from_hex(text)),
                _ => {}
            }
        }
        let time = time.filter(|_| !codes.is_empty()).ok_or(Refused::Malformed(STRIPE))?;
        self.is_timely(time, now, STRIPE)?;
        self.is_one_of(&codes, &[time.as_bytes(), b".", body])
    }

    /// `v1,BASE64 v1,BASE64 …`; other versions are of no interest.
    fn standard(&self, headers: &HeaderMap, body: &[u8], now: Timestamp) -> Result<(), Refused> {
        let value = only(headers, STANDARD_SIGNATURE)?;
        let (id, time) = (only(headers, STANDARD_ID)?, only(headers, STANDARD_TIME)?);
        let codes: Vec<_> = value
            .split(' ')
            .filter_map(|part| part.strip_prefix("v1,"))
            .filter_map(|code| STANDARD.decode(code).ok()?.try_into().ok())
            .collect();
        if codes.is_empty() {
            return Err(Refused::Malformed(STANDARD_SIGNATURE));
        }
        self.is_timely(time, now, STANDARD_TIME)?;
        self.is_one_of(&codes, &[id.as_bytes(), b".", time.as_bytes(), b".", body])
    }

    fn is_timely(&self, time: &str, now: Timestamp, header: &'static str) -> Result<(), Refused> {
        let plain = !time.is_empty() && time.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: u64 = plain.then(|| time.parse().ok()).flatten().ok_or(Refused::Malformed(header))?;
        let now = now.as_micros() / 1_000_000;
        if now.abs_diff(seconds) <= self.tolerance.as_secs() { Ok(()) } else { Err(Refused::Untimely) }
    }

    /// Whether one of these codes is that of the message under one of the secrets.
    fn is_one_of(&self, codes: &[[u8; 32]], message: &[&[u8]]) -> Result<(), Refused> {
        for secret in self.secrets {
            let mut mac =
                Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("a key of any length will do");
            for part in message {
                mac.update(part);
            }
            for code in codes.iter().take(MOST_SIGNATURES) {
                if mac.clone().verify_slice(code).is_ok() {
                    return Ok(());
                }
            }
        }
        Err(Refused::Wrong)
    }
}

/// The value of a header that is there once, and as a text that is not too long.
fn only<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, Refused> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return Err(Refused::Missing(name)) };
    let text = value.to_str().ok().filter(|text| !text.is_empty() && text.len() <= LONGEST_HEADER);
    text.ok_or(Refused::Malformed(name))
}

/// 64 hexadecimal digits.
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

#[cfg(test)]
#[path = "signature_tests.rs"]
mod tests;
