//! Signatures: the senders' own examples, and whatever somebody else may send.

use axum::http::{HeaderName, HeaderValue};

use super::*;

const GITHUB_SECRET: &str = "It's a Secret to Everybody";
const GITHUB_CODE: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
const HELLO: &[u8] = b"Hello, World!";

const STANDARD_SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const STANDARD_BODY: &[u8] = br#"{"email":"test@example.com","username":"test_user"}"#;
const STANDARD_CODE: &str = "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=";
const STANDARD_AT: u64 = 1_649_367_553;

fn headers(all: &[(&'static str, &str)]) -> HeaderMap {
    let pair = |(name, value): &(&'static str, &str)| {
        (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
    };
    all.iter().map(pair).collect()
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn secrets(scheme: Scheme, texts: &[&str]) -> Vec<Secret> {
    texts.iter().map(|text| Secret::new(scheme, text).unwrap()).collect()
}

fn check(scheme: Scheme, ours: &[Secret]) -> Check<'_> {
    Check { scheme, secrets: ours, tolerance: Duration::from_secs(300) }
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
    let ours = secrets(Scheme::Github, &[GITHUB_SECRET]);
    let verify = |value: &str, body: &[u8]| {
        check(Scheme::Github, &ours).verify(&headers(&[(GITHUB, value)]), body, at(0))
    };
    assert_eq!(verify(&format!("sha256={GITHUB_CODE}"), HELLO), Ok(()));
    assert_eq!(verify(&format!("sha256={}", GITHUB_CODE.to_uppercase()), HELLO), Ok(()));
    assert_eq!(verify(&format!("sha256={GITHUB_CODE}"), b"Hello, World?"), Err(Refused::Wrong));
    assert_eq!(verify(&format!("sha256={GITHUB_CODE}"), b""), Err(Refused::Wrong));
    let other = GITHUB_CODE.replacen('7', "8", 1);
    assert_eq!(verify(&format!("sha256={other}"), HELLO), Err(Refused::Wrong));
}

#[test]
fn what_is_no_signature_of_github_is_refused() {
    let ours = secrets(Scheme::Github, &[GITHUB_SECRET]);
    let verify =
        |value: &str| check(Scheme::Github, &ours).verify(&headers(&[(GITHUB, value)]), HELLO, at(0));
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
        assert_eq!(verify(value), Err(Refused::Malformed(GITHUB)), "{}", &value[..value.len().min(80)]);
    }
    let none = check(Scheme::Github, &ours).verify(&HeaderMap::new(), HELLO, at(0));
    assert_eq!(none, Err(Refused::Missing(GITHUB)));
    let value = format!("sha256={GITHUB_CODE}");
    let mut twice = headers(&[(GITHUB, &value)]);
    twice.append(GITHUB, HeaderValue::from_str(&value).unwrap());
    assert_eq!(check(Scheme::Github, &ours).verify(&twice, HELLO, at(0)), Err(Refused::Missing(GITHUB)));
    let mut bytes = HeaderMap::new();
    bytes.insert(GITHUB, HeaderValue::from_bytes(&[0xff, 0xfe]).unwrap());
    assert_eq!(check(Scheme::Github, &ours).verify(&bytes, HELLO, at(0)), Err(Refused::Malformed(GITHUB)));
}

#[test]
fn several_secrets_are_good_at_once() {
    let value = format!("sha256={GITHUB_CODE}");
    let verify = |texts: &[&str]| {
        let ours = secrets(Scheme::Github, texts);
        check(Scheme::Github, &ours).verify(&headers(&[(GITHUB, &value)]), HELLO, at(0))
    };
    assert_eq!(verify(&["the next one", GITHUB_SECRET]), Ok(()));
    assert_eq!(verify(&[GITHUB_SECRET, "the one before"]), Ok(()));
    assert_eq!(verify(&["the next one"]), Err(Refused::Wrong));
    assert_eq!(verify(&[]), Err(Refused::Wrong));
}

#[test]
fn an_empty_body_can_be_signed() {
    let ours = secrets(Scheme::Github, &["s"]);
    let value = format!("sha256={}", code("s", &[b""]));
    assert_eq!(check(Scheme::Github, &ours).verify(&headers(&[(GITHUB, &value)]), b"", at(0)), Ok(()));
}

#[test]
fn stripe_signs_the_time_and_the_body() {
    let ours = secrets(Scheme::Stripe, &["whsec_test"]);
    let (body, good) = (br#"{"id":"evt_1"}"#, code("whsec_test", &[b"1700000000.", br#"{"id":"evt_1"}"#]));
    let verify =
        |value: &str, now| check(Scheme::Stripe, &ours).verify(&headers(&[(STRIPE, value)]), body, at(now));
    let signed = format!("t=1700000000,v1={good}");
    for now in [1_700_000_000, 1_700_000_300, 1_699_999_700] {
        assert_eq!(verify(&signed, now), Ok(()), "{now}");
    }
    for now in [1_700_000_301, 1_699_999_699, 0, 9_999_999_999] {
        assert_eq!(verify(&signed, now), Err(Refused::Untimely), "{now}");
    }
    let bad = "0".repeat(64);
    let now = 1_700_000_000;
    assert_eq!(verify(&format!("t=1700000000,v1={bad},v1={good},v0={bad}"), now), Ok(()));
    assert_eq!(verify(&format!("t=1700000000, v1={good}"), now), Ok(()));
    assert_eq!(verify(&format!("t=1700000000,v1={bad}"), now), Err(Refused::Wrong));
    // The time is signed as it is written.
    assert_eq!(verify(&format!("t=01700000000,v1={good}"), now), Err(Refused::Wrong));
    assert_eq!(verify(&format!("t=1700000001,v1={good}"), now), Err(Refused::Wrong));
}

#[test]
fn what_is_no_signature_of_stripe_is_refused() {
    let ours = secrets(Scheme::Stripe, &["whsec_test"]);
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
        let refused =
            check(Scheme::Stripe, &ours).verify(&headers(&[(STRIPE, &value)]), b"{}", at(1_700_000_000));
        assert_eq!(refused, Err(Refused::Malformed(STRIPE)), "{value}");
    }
}

#[test]
fn only_so_many_signatures_are_tried() {
    let ours = secrets(Scheme::Stripe, &["s"]);
    let good = code("s", &[b"1700000000.", b"{}"]);
    let with = |others: usize| {
        let bad = format!("v1={},", "0".repeat(64)).repeat(others);
        let value = format!("t=1700000000,{bad}v1={good}");
        check(Scheme::Stripe, &ours).verify(&headers(&[(STRIPE, &value)]), b"{}", at(1_700_000_000))
    };
    assert_eq!(with(MOST_SIGNATURES - 1), Ok(()));
    assert_eq!(with(MOST_SIGNATURES), Err(Refused::Wrong));
}

fn standard(id: &str, time: &str, signature: &str, now: u64) -> Result<(), Refused> {
    let ours = secrets(Scheme::Standard, &[STANDARD_SECRET]);
    let all = [(STANDARD_ID, id), (STANDARD_TIME, time), (STANDARD_SIGNATURE, signature)];
    check(Scheme::Standard, &ours).verify(&headers(&all), STANDARD_BODY, at(now))
}

#[test]
fn standard_webhooks_sign_the_id_the_time_and_the_body() {
    let id = "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk";
    let time = STANDARD_AT.to_string();
    let verify = |signature: &str, now| standard(id, &time, signature, now);
    assert_eq!(verify(STANDARD_CODE, STANDARD_AT), Ok(()));
    assert_eq!(verify(STANDARD_CODE, STANDARD_AT + 300), Ok(()));
    assert_eq!(verify(STANDARD_CODE, STANDARD_AT + 301), Err(Refused::Untimely));
    assert_eq!(verify(STANDARD_CODE, STANDARD_AT - 301), Err(Refused::Untimely));
    let zero = format!("v1,{}", STANDARD.encode([0; 32]));
    assert_eq!(verify(&format!("v2,x {zero} {STANDARD_CODE}"), STANDARD_AT), Ok(()));
    assert_eq!(verify(&zero, STANDARD_AT), Err(Refused::Wrong));
    assert_eq!(standard("msg_other", &time, STANDARD_CODE, STANDARD_AT), Err(Refused::Wrong));
    let later = (STANDARD_AT + 1).to_string();
    assert_eq!(standard(id, &later, STANDARD_CODE, STANDARD_AT), Err(Refused::Wrong));
}

#[test]
fn what_is_no_signature_of_standard_webhooks_is_refused() {
    let time = STANDARD_AT.to_string();
    for signature in
        ["v1", "v1,", "v1,???", "v1,AQID", "v2,AQID", "tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="]
    {
        let refused = standard("msg", &time, signature, STANDARD_AT);
        assert_eq!(refused, Err(Refused::Malformed(STANDARD_SIGNATURE)), "{signature}");
    }
    for time in ["", "soon", "-1"] {
        let refused = standard("msg", time, STANDARD_CODE, STANDARD_AT);
        assert_eq!(refused, Err(Refused::Malformed(STANDARD_TIME)), "{time}");
    }
    let ours = secrets(Scheme::Standard, &[STANDARD_SECRET]);
    let no_id = headers(&[(STANDARD_TIME, &time), (STANDARD_SIGNATURE, STANDARD_CODE)]);
    let refused = check(Scheme::Standard, &ours).verify(&no_id, STANDARD_BODY, at(STANDARD_AT));
    assert_eq!(refused, Err(Refused::Missing(STANDARD_ID)));
}

#[test]
fn a_refusal_tells_no_secret() {
    for refused in [Refused::Missing(GITHUB), Refused::Malformed(GITHUB), Refused::Untimely, Refused::Wrong] {
        assert!(!refused.to_string().contains(GITHUB_SECRET));
    }
}
