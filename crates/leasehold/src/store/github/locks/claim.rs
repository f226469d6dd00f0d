//! Content of leasehold's comments: a line for people, and the same as hidden JSON. Parsing must
//! not trust the content: any user may have written or changed it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::model::{
    Holder, Lease, LeaseId, LeaseStatus, LockRequest, Metadata, Mode, Priority, Reason, Slots, StopRequest,
    Timestamp, Token, Ttl,
};
use crate::store::github::api::Issue;
use crate::store::github::markup::{code, embed_json, extract_json};
use crate::store::github::tasks::{Record, add_label_metadata};
use crate::store::host_name;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum CommentContent {
    /// Candidate: a client wants the lock, and checks whether others do.
    Candidate(Claim),
    Held(Claim),
    /// Claim of a former holder. Keeps its token.
    Released(Claim),
    #[serde(rename = "stopRequest")]
    StopRequest(StopRequestComment),
    /// Record of leases that a client has cleared, or of one that it has ended by force.
    Ended(EndRecord),
}

/// Lease, or a candidate for one: one comment, which its client edits for as long as it lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    pub(crate) lock: String,
    pub(crate) lease_id: LeaseId,
    pub(crate) holder: Holder,
    #[serde(default)]
    pub(crate) token: Token,
    /// TTL in µs, counted from each edit of the comment.
    pub(crate) ttl: Ttl,
    #[serde(default)]
    pub(crate) renewals: u64,
    #[serde(default)]
    pub(crate) acquired_at: Timestamp,
    /// Time until which a released claim is retained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<Timestamp>,
    #[serde(default)]
    pub(crate) priority: Priority,
    /// Metadata of the caller, and the entries that this engine adds for readers of the comment.
    #[serde(default)]
    pub(crate) metadata: Metadata,
    /// Names of the entries of `metadata` that this engine has added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) added: Vec<String>,
    /// Logins that are assigned without a lease: their assignment could not be removed when they
    /// released their lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) left_assigned: Vec<String>,
    /// Leases that the holder has cleared when it acquired the lock: their comments are deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) took: Vec<EndedLease>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<Box<Record>>,
}

/// Lease that ended without a release by its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndedLease {
    pub(super) how: EndKind,
    pub(crate) at: Timestamp,
    pub(crate) lease_id: LeaseId,
    pub(crate) holder: Holder,
    pub(crate) token: Token,
    pub(crate) acquired_at: Timestamp,
    #[serde(default)]
    pub(super) renewals: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<Holder>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Reason>,
}

/// Reason why a lease ended without a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EndKind {
    /// Its TTL had elapsed.
    Expired,
    /// It had no heartbeat for `steal_after`.
    Stolen,
    Forced,
}

/// Request to a holder to release its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StopRequestComment {
    pub(crate) token: Token,
    pub(crate) by: Holder,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<Reason>,
}

/// Leases that were ended by a client that does not want the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EndRecord {
    /// Newest token from then on.
    pub(crate) token: Token,
    pub(super) took: Vec<EndedLease>,
    /// Record of the task in the last of these claims: the record must not disappear with the
    /// claim's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<Box<Record>>,
}

/// Start of the hidden JSON in leasehold's comments, and in the text of a lock's issue.
pub(super) const BEGIN: &str = "<!-- leasehold:v1 ";
/// Entry of a claim's metadata with the time of its holder's last heartbeat.
pub(crate) const HEARTBEAT: &str = "heartbeat_last";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParsedComment {
    /// Comment that is not leasehold's.
    Foreign,
    /// Comment of leasehold that cannot be parsed any more.
    Unreadable,
    Ours(Box<CommentContent>),
}

impl CommentContent {
    /// Returns the whole text of the comment.
    pub(crate) fn render(&self) -> String {
        let line = match self {
            Self::Candidate(claim) => format!("⏳ {} asks for this lock.", code(&claim.holder)),
            Self::Held(Claim { task: Some(task), token, .. }) if task.token == *token => {
                task.line(&code(self.holder()))
            }
            Self::Released(Claim { task: Some(task), .. }) => task.line(&code(self.holder())),
            Self::Held(claim) => format!(
                "🔒 **Held** by {} since {} (token {}, {}).",
                code(&claim.holder),
                claim.acquired_at,
                claim.token,
                if claim.renewals == 0 {
                    "not renewed yet".to_owned()
                } else {
                    format!("renewal {}", claim.renewals)
                },
            ),
            Self::Released(claim) => match claim.until {
                Some(until) => format!("🔓 Released by {}, and kept until {until}.", code(&claim.holder)),
                None => format!("🔓 Released by {} (token {}).", code(&claim.holder), claim.token),
            },
            Self::StopRequest(stop_request) => format!(
                "✋ {} asks the holder to stop{}.",
                code(&stop_request.by),
                stop_request.reason.as_ref().map(|reason| format!(": {}", code(reason))).unwrap_or_default()
            ),
            Self::Ended(end_record) => {
                let ended: Vec<_> = end_record.took.iter().map(EndedLease::line).collect();
                if ended.is_empty() {
                    "🧹 a copy of the state of this task".to_owned()
                } else {
                    format!("🧹 {}", ended.join("; "))
                }
            }
        };
        format!("{line}\n\n{}", embed_json(BEGIN, self))
    }

    pub(super) fn parse(body: &str) -> ParsedComment {
        match extract_json::<Self>(BEGIN, body) {
            None => ParsedComment::Foreign,
            Some(Err(_)) => ParsedComment::Unreadable,
            Some(Ok(content)) if content.highest_token() > Token::MAX => ParsedComment::Unreadable,
            Some(Ok(content)) => ParsedComment::Ours(Box::new(content)),
        }
    }

    /// Returns the author of the comment, for people.
    fn holder(&self) -> &dyn std::fmt::Display {
        match self {
            Self::Candidate(claim) | Self::Held(claim) | Self::Released(claim) => &claim.holder,
            Self::StopRequest(stop_request) => &stop_request.by,
            Self::Ended(_) => &"unknown",
        }
    }

    /// Returns the record of the task on this issue, if the comment contains one.
    pub(crate) fn task(&self) -> Option<&Record> {
        match self {
            Self::Candidate(claim) | Self::Held(claim) | Self::Released(claim) => claim.task.as_deref(),
            Self::Ended(end_record) => end_record.task.as_deref(),
            Self::StopRequest(_) => None,
        }
    }

    pub(super) fn highest_token(&self) -> Token {
        let (token, took) = match self {
            Self::Candidate(claim) | Self::Held(claim) | Self::Released(claim) => {
                (claim.token, claim.took.as_slice())
            }
            Self::StopRequest(_) => (Token::default(), [].as_slice()),
            Self::Ended(end_record) => (end_record.token, end_record.took.as_slice()),
        };
        took.iter().map(|ended| ended.token).fold(token, Token::max)
    }
}

/// Returns the metadata that a claim contains about its worker or holder.
pub(crate) fn worker_metadata(worker: &str, now: Timestamp) -> Metadata {
    let mut metadata = Metadata::default();
    for (name, value) in [
        ("worker_id", worker.to_owned()),
        ("node_id", host_name()),
        ("pid", std::process::id().to_string()),
        ("claimed_at", now.to_string()),
        (HEARTBEAT, now.to_string()),
    ] {
        metadata.set(name, value).unwrap_or_default();
    }
    metadata
}

pub(crate) fn exclusive_request(
    lease_id: LeaseId,
    holder: Holder,
    ttl: Ttl,
    metadata: Metadata,
) -> LockRequest {
    LockRequest {
        lease_id,
        holder,
        mode: Mode::Exclusive,
        slots: Slots::default(),
        priority: Priority::default(),
        ttl,
        metadata,
        process: None,
    }
}

impl Claim {
    pub(crate) fn new(lock: &str, request: &LockRequest) -> Self {
        Self {
            lock: lock.to_owned(),
            lease_id: request.lease_id,
            holder: request.holder.clone(),
            token: Token::default(),
            ttl: request.ttl,
            renewals: 0,
            acquired_at: Timestamp::default(),
            until: None,
            priority: request.priority,
            metadata: request.metadata.clone(),
            added: Vec::new(),
            left_assigned: Vec::new(),
            took: Vec::new(),
            task: None,
        }
    }

    /// Adds the metadata that claims of tasks also have: worker, host, process, times, and what labels
    /// state about the issue. Does not change the caller's own entries, and leaves out what does
    /// not fit.
    pub(super) fn describe(&mut self, issue: &Issue, now: Timestamp) {
        let mut added = worker_metadata(self.holder.as_str(), now);
        add_label_metadata(issue, &mut added);
        for (name, value) in added.iter() {
            if self.metadata.get(name).is_none() && self.metadata.set(name, value).is_ok() {
                self.added.push(name.to_owned());
            }
        }
    }

    /// Updates the time of the last heartbeat, if this engine has added that entry to the claim.
    pub(super) fn date_heartbeat(&mut self, now: Timestamp) {
        if self.added.iter().any(|name| name == HEARTBEAT) {
            self.metadata.set(HEARTBEAT, now.to_string()).unwrap_or_default();
        }
    }

    /// Returns the metadata of the caller, without the entries of this engine.
    fn own_metadata(&self) -> Metadata {
        let mut metadata = self.metadata.clone();
        self.added.iter().for_each(|name| metadata.remove(name));
        metadata
    }

    /// Returns the lease of this claim, with its last heartbeat at `renewed_at`.
    pub(super) fn lease(&self, renewed_at: Timestamp, asked: Option<StopRequest>) -> Lease {
        let request = exclusive_request(self.lease_id, self.holder.clone(), self.ttl, self.own_metadata());
        let request = LockRequest { priority: self.priority, ..request };
        let status = match (self.until, &asked) {
            (Some(_), _) => LeaseStatus::Released,
            (None, Some(_)) => LeaseStatus::Releasing,
            (None, None) => LeaseStatus::Active,
        };
        Lease {
            request: Arc::new(request),
            token: self.token,
            acquired_at: self.acquired_at,
            renewed_at,
            expires_at: self.until.unwrap_or_else(|| renewed_at.plus(self.ttl)),
            renewals: self.renewals,
            status,
            release_request: asked,
            took_over: None,
        }
    }

    pub(super) fn ended_lease(&self, how: EndKind, at: Timestamp) -> EndedLease {
        EndedLease {
            how,
            at,
            lease_id: self.lease_id,
            holder: self.holder.clone(),
            token: self.token,
            acquired_at: self.acquired_at,
            renewals: self.renewals,
            by: None,
            reason: None,
        }
    }
}

impl EndedLease {
    fn line(&self) -> String {
        let holder = code(&self.holder);
        match (self.how, &self.by, &self.reason) {
            (EndKind::Forced, Some(by), Some(reason)) => {
                format!("{} took the lock from {holder}: {}", code(by), code(reason))
            }
            (EndKind::Forced, ..) => format!("the lock was taken from {holder}"),
            (EndKind::Stolen, ..) => format!("the lease of {holder} was stale and was taken"),
            (EndKind::Expired, ..) => format!("the lease of {holder} has ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Claim {
        let mut metadata = Metadata::default();
        metadata.set("worker_id", "a-->b <!-- leasehold:v1 {} -->").unwrap();
        Claim {
            lock: "deploy".to_owned(),
            lease_id: "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap(),
            holder: Holder::new("@ada `x`").unwrap(),
            token: Token::new(7).unwrap(),
            ttl: Ttl::from_secs(900),
            renewals: 2,
            acquired_at: Timestamp::from_micros(1_730_817_135_000_000),
            until: None,
            priority: Priority::default(),
            metadata,
            added: Vec::new(),
            left_assigned: Vec::new(),
            took: Vec::new(),
            task: None,
        }
    }

    fn issue(labels: &[&str]) -> Issue {
        let date = "2024-01-01T00:00:00Z";
        serde_json::from_value(serde_json::json!({
            "number": 1, "state": "open", "title": "t", "comments": 0, "labels": labels,
            "created_at": date, "updated_at": date, "closed_at": null,
        }))
        .unwrap()
    }

    #[test]
    fn metadata_of_the_engine_is_in_the_comment_and_not_in_the_lease() {
        let mut claim = claim();
        let own = claim.metadata.clone();
        claim.describe(&issue(&["bug", "complexity:high"]), claim.acquired_at);
        claim.date_heartbeat(claim.acquired_at.plus(Ttl::from_secs(5)));
        let get = |name| claim.metadata.get(name);
        assert_eq!(get("worker_id"), own.get("worker_id"), "the entry of the caller");
        assert_eq!(get("claimed_at"), Some("2024-11-05T14:32:15Z"));
        assert_eq!(get("heartbeat_last"), Some("2024-11-05T14:32:20Z"));
        assert_eq!(get("task_info.complexity"), Some("high"));
        assert!(get("node_id").is_some() && get("pid").is_some());
        assert_eq!(claim.lease(claim.acquired_at, None).request.metadata, own);
        let text = CommentContent::Held(claim.clone()).render();
        assert_eq!(CommentContent::parse(&text), ParsedComment::Ours(Box::new(CommentContent::Held(claim))));
    }

    #[test]
    fn metadata_that_does_not_fit_is_left_out() {
        let mut claim = claim();
        claim.metadata.set("large", "x".repeat(4000)).unwrap();
        let own = claim.metadata.clone();
        claim.describe(&issue(&[]), claim.acquired_at);
        assert!(claim.added.len() < 4, "{:?}", claim.added);
        assert_eq!(claim.lease(claim.acquired_at, None).request.metadata, own);
    }

    #[test]
    fn a_comment_with_any_content_is_parsed_again() {
        let content = CommentContent::Held(claim());
        let text = content.render();
        assert_eq!(CommentContent::parse(&text), ParsedComment::Ours(Box::new(content)));
        assert_eq!(
            text.lines().next().unwrap(),
            "🔒 **Held** by `@ada 'x'` since 2024-11-05T14:32:15Z (token 7, renewal 2)."
        );
        assert_eq!(text.matches("-->").count(), 1, "{text}");
        // Text that people write around the hidden JSON does not matter.
        assert!(matches!(
            CommentContent::parse(&format!("> quoted\r\n{text}\r\nthanks!")),
            ParsedComment::Ours(_)
        ));
    }

    /// Guards the stored format: every later version has to read a comment of an earlier one.
    #[test]
    fn a_comment_of_the_first_version_is_parsed() {
        let json = r#"{"state":"held","lock":"deploy","leaseId":"01890a5d-ac96-774b-bcce-b302099a8057","holder":"ada","token":7,"ttl":900000000,"renewals":2,"acquiredAt":1730817135000000,"priority":0,"metadata":{"node_id":"n1"}}"#;
        let ParsedComment::Ours(content) =
            CommentContent::parse(&format!("hello\n\n<!-- leasehold:v1 {json} -->"))
        else {
            panic!("not parsed")
        };
        let CommentContent::Held(claim) = *content else { panic!("{content:?}") };
        assert_eq!((claim.ttl, claim.renewals), (Ttl::from_secs(900), 2));
        assert_eq!(
            claim.lease(claim.acquired_at, None).request.metadata.get("node_id"),
            Some("n1"),
            "the entry of the caller"
        );
    }

    #[test]
    fn an_unreadable_comment_is_not_ignored() {
        assert_eq!(CommentContent::parse("I like this issue"), ParsedComment::Foreign);
        let text = CommentContent::Held(claim()).render();
        for broken in [
            text.replace("\"ttl\"", "\"tt\""),
            text.replace(" -->", ""),
            "<!-- leasehold:v1 -->".to_owned(),
            "<!-- leasehold:v1 {\"state\":\"held\"} -->".to_owned(),
            text.replace("\"held\"", "\"happy\""),
            text.replace("\"token\":7", "\"token\":18446744073709551615"),
        ] {
            if broken == text.replace(" -->", "") {
                assert!(
                    matches!(CommentContent::parse(&broken), ParsedComment::Ours(_)),
                    "a missing end marker is accepted"
                );
            } else {
                assert_eq!(CommentContent::parse(&broken), ParsedComment::Unreadable, "{broken}");
            }
        }
    }
}
