//! Labels and events of issues, and lists that have not changed.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use serde_json::Value;

use super::repo::{Issue, Repo};
use super::responses;
use super::server::{Answer, Fake, Inner, Request, refusal};

impl Fake {
    /// Creates an issue with labels, as a person does.
    pub(in crate::engines::github) fn labelled_issue(&self, title: &str, labels: &[&str]) -> u64 {
        let number = self.new_issue(title);
        self.with_issue(number, |issue, now| labels.iter().for_each(|label| issue.add_label(label, now)));
        number
    }

    /// Closes an issue, as a person does.
    pub(in crate::engines::github) fn close(&self, number: u64, reason: &str) {
        self.with_issue(number, |issue, now| issue.set_closed(Some(reason), now));
    }

    /// Reopens an issue, as a person does.
    pub(in crate::engines::github) fn reopen(&self, number: u64) {
        self.with_issue(number, |issue, now| issue.set_closed(None, now));
    }

    /// Removes a label, as a person does.
    pub(in crate::engines::github) fn unlabel(&self, number: u64, label: &str) {
        self.with_issue(number, |issue, now| assert!(issue.remove_label(label, now), "it did not exist"));
    }

    fn with_issue(&self, number: u64, change: impl FnOnce(&mut Issue, u64)) {
        let now = self.now();
        change(self.repo().issues.get_mut(&number).expect("there is such an issue"), now);
    }
}

impl Inner {
    pub(super) fn labels_and_events(
        &self,
        repo: &mut Repo,
        request: &Request,
        number: u64,
        label: Option<&str>,
    ) -> Answer {
        let (now, may) = (self.now(), repo.can_push(&request.login));
        if request.method != "GET" && !may {
            return refusal(403, "Must have admin rights to Repository.");
        }
        let issue = repo.issues.get_mut(&number).expect("the issue exists");
        match (request.method.as_str(), label) {
            ("POST", None) => {
                let labels = request.field("labels").as_array().into_iter().flatten();
                labels.filter_map(Value::as_str).for_each(|label| issue.add_label(label, now));
                (200, Some(responses::labels(self.description, issue)))
            }
            ("DELETE", Some(label)) if issue.remove_label(&decoded(label), now) => {
                (200, Some(responses::labels(self.description, issue)))
            }
            ("GET", None) => {
                let issue = &repo.issues[&number];
                (200, Some(request.page(responses::events(self.description, repo, issue)).into()))
            }
            _ => refusal(404, "Not Found"),
        }
    }

    /// Response 304: not changed since the last read. The description does not mention it: every
    /// GET may be answered so.
    pub(super) fn unchanged(&self) -> Response<Body> {
        let response = Response::builder().status(StatusCode::NOT_MODIFIED).header("date", self.date());
        response.body(Body::empty()).unwrap()
    }
}

/// Returns the `ETag` of a list.
pub(super) fn etag(request: &Request, body: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    (&request.login, body.to_string()).hash(&mut hasher);
    format!("W/\"{:016x}\"", hasher.finish())
}

/// Decodes text from a URL.
pub(super) fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8(plain).expect("UTF-8")
}
