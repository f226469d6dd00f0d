//! Content of leasehold's comments: a line for people, and the same as hidden JSON. Parsing must
//! not trust the content: any user may have written or changed it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::answers::Issue;
use super::tasks::{Record, facts, tell_labels};
use crate::model::{
    Ask, Asked, Holder, Lease, LeaseId, Metadata, Mode, Priority, Reason, Slots, Status, Timestamp, Token,
    Ttl,
};

/// Content of one of leasehold's comments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum Says {
    /// Candidate: a client wants the lock, and checks whether others do.
    Raised(Claim),
    /// Claim of a holder.
    Held(Claim),
    /// Claim of a former holder. Keeps its token.
    Released(Claim),
    /// Release request to the holder.
    Asked(Asking),
    /// Record of leases that a client has cleared, or of one that it has ended by force.
    Ended(Ending),
}

/// Lease, or a candidate for one: one comment, which its client edits for as long as it lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    pub(super) lock: String,
    pub(super) lease_id: LeaseId,
    pub(super) holder: Holder,
    #[serde(default)]
    pub(super) token: Token,
    /// TTL in µs, counted from each edit of the comment.
    pub(super) ttl: Ttl,
    /// Number of renewals.
    #[serde(default)]
    pub(super) beat: u64,
    #[serde(default)]
    pub(super) acquired_at: Timestamp,
    /// Time until which a released claim is retained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Timestamp>,
    #[serde(default)]
    pub(super) priority: Priority,
    /// Metadata of the caller, and the entries that this engine adds for readers of the comment.
    #[serde(default)]
    pub(super) metadata: Metadata,
    /// Names of the entries of `metadata` that this engine has added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) added: Vec<String>,
    /// Logins that are assigned without a lease: their assignment could not be removed when they
    /// released their lease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left_assigned: Vec<String>,
    /// Leases that the holder has cleared when it acquired the lock: their comments are deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) took: Vec<Gone>,
    /// Record of the task on this issue, as of this claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<Box<Record>>,
}

/// Lease that ended without a release by its holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Gone {
    pub(super) how: How,
    pub(super) at: Timestamp,
    pub(super) lease_id: LeaseId,
    pub(super) holder: Holder,
    pub(super) token: Token,
    pub(super) acquired_at: Timestamp,
    #[serde(default)]
    pub(super) beat: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<Holder>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Reason>,
}

/// Reason why a lease ended without a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum How {
    /// Its TTL had elapsed.
    Expired,
    /// It had no heartbeat for `steal_after`.
    Stolen,
    /// A caller released it by force.
    Forced,
}

/// Request to a holder to release its lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asking {
    pub(super) token: Token,
    pub(super) by: Holder,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Reason>,
}

/// Leases that were ended by a client that does not want the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ending {
    /// Newest token from then on.
    pub(super) token: Token,
    pub(super) took: Vec<Gone>,
    /// Record of the task in the last of these claims: the record must not disappear with the
    /// claim's comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<Box<Record>>,
}

/// Start of the hidden JSON in leasehold's comments, and in the text of a lock's issue.
const BEGIN: &str = "<!-- leasehold:v1 ";
/// Entry of a claim's metadata with the time of its holder's last heartbeat.
pub(super) const HEARTBEAT: &str = "heartbeat_last";
const END: &str = " -->";

/// Result of parsing a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Comment that is not leasehold's.
    Nothing,
    /// Comment of leasehold that cannot be parsed any more.
    Garbage,
    /// Comment of leasehold.
    Ours(Box<Says>),
}

impl Says {
    /// Returns the whole text of the comment.
    pub(super) fn write(&self) -> String {
        let line = match self {
            Self::Raised(claim) => format!("⏳ {} asks for this lock.", code(&claim.holder)),
            Self::Held(Claim { task: Some(task), token, .. }) if task.token == *token => {
                task.line(&code(self.holder()))
            }
            Self::Released(Claim { task: Some(task), .. }) => task.line(&code(self.holder())),
            Self::Held(claim) => format!(
                "🔒 **Held** by {} since {} (token {}, {}).",
                code(&claim.holder),
                claim.acquired_at,
                claim.token,
                if claim.beat == 0 {
                    "not renewed yet".to_owned()
                } else {
                    format!("renewal {}", claim.beat)
                },
            ),
            Self::Released(claim) => match claim.until {
                Some(until) => format!("🔓 Released by {}, and kept until {until}.", code(&claim.holder)),
                None => format!("🔓 Released by {} (token {}).", code(&claim.holder), claim.token),
            },
            Self::Asked(asking) => format!(
                "✋ {} asks the holder to stop{}.",
                code(&asking.by),
                asking.reason.as_ref().map(|reason| format!(": {}", code(reason))).unwrap_or_default()
            ),
            Self::Ended(ending) => {
                let gone: Vec<_> = ending.took.iter().map(Gone::line).collect();
                format!("🧹 {}", gone.join("; "))
            }
        };
        format!("{line}\n\n{}", hidden(self))
    }

    /// Parses a comment.
    pub(super) fn read(body: &str) -> Found {
        match shown::<Self>(body) {
            None => Found::Nothing,
            Some(Err(_)) => Found::Garbage,
            Some(Ok(says)) if says.highest() > Token::MAX => Found::Garbage,
            Some(Ok(says)) => Found::Ours(Box::new(says)),
        }
    }

    /// Returns the author of the comment, for people.
    fn holder(&self) -> &dyn std::fmt::Display {
        match self {
            Self::Raised(claim) | Self::Held(claim) | Self::Released(claim) => &claim.holder,
            Self::Asked(asking) => &asking.by,
            Self::Ended(_) => &"somebody",
        }
    }

    /// Returns the record of the task on this issue, if the comment contains one.
    pub(super) fn task(&self) -> Option<&Record> {
        match self {
            Self::Raised(claim) | Self::Held(claim) | Self::Released(claim) => claim.task.as_deref(),
            Self::Ended(ending) => ending.task.as_deref(),
            Self::Asked(_) => None,
        }
    }

    /// Returns the highest token in the comment.
    pub(super) fn highest(&self) -> Token {
        let (token, took) = match self {
            Self::Raised(claim) | Self::Held(claim) | Self::Released(claim) => {
                (claim.token, claim.took.as_slice())
            }
            Self::Asked(_) => (Token::default(), [].as_slice()),
            Self::Ended(ending) => (ending.token, ending.took.as_slice()),
        };
        took.iter().map(|gone| gone.token).fold(token, Token::max)
    }
}

/// Serializes a value as JSON that people do not see.
pub(super) fn hidden(what: &impl Serialize) -> String {
    hidden_after(BEGIN, what)
}

/// Serializes like [`hidden`], after another start marker. Escapes `<` and `>`, so that no content
/// can end the HTML comment.
pub(super) fn hidden_after(begin: &str, what: &impl Serialize) -> String {
    let json = serde_json::to_string(what).expect("plain data becomes JSON");
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e");
    format!("{begin}{json}{END}")
}

/// Parses what [`hidden`] has written; `None` if the text does not contain it.
pub(super) fn shown<T: for<'de> Deserialize<'de>>(body: &str) -> Option<Result<T, serde_json::Error>> {
    shown_after(BEGIN, body)
}

/// Parses what [`hidden_after`] has written; `None` if the text does not contain it.
pub(super) fn shown_after<T: for<'de> Deserialize<'de>>(
    begin: &str,
    body: &str,
) -> Option<Result<T, serde_json::Error>> {
    let (_, rest) = body.split_once(begin.trim_end())?;
    let json = rest.split_once(END.trim_start()).map_or(rest, |(json, _)| json);
    Some(serde_json::from_str(json.trim()))
}

/// Formats text as code, so that GitHub notifies no user if a holder is called `@ada`.
pub(super) fn code(text: &(impl std::fmt::Display + ?Sized)) -> String {
    format!("`{}`", text.to_string().replace('`', "'").replace("<!--", "<! --"))
}

impl Claim {
    pub(super) fn new(lock: &str, ask: &Ask) -> Self {
        Self {
            lock: lock.to_owned(),
            lease_id: ask.lease_id,
            holder: ask.holder.clone(),
            token: Token::default(),
            ttl: ask.ttl,
            beat: 0,
            acquired_at: Timestamp::default(),
            until: None,
            priority: ask.priority,
            metadata: ask.metadata.clone(),
            added: Vec::new(),
            left_assigned: Vec::new(),
            took: Vec::new(),
            task: None,
        }
    }

    /// Adds the facts that claims of tasks also have: worker, host, process, times, and what labels
    /// state about the issue. Does not change the caller's own entries, and leaves out what does
    /// not fit.
    pub(super) fn describe(&mut self, issue: &Issue, now: Timestamp) {
        let mut about = facts(self.holder.as_str(), now);
        tell_labels(issue, &mut about);
        for (name, value) in about.iter() {
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
    pub(super) fn lease(&self, renewed_at: Timestamp, asked: Option<Asked>) -> Lease {
        let ask = Ask {
            lease_id: self.lease_id,
            holder: self.holder.clone(),
            mode: Mode::Exclusive,
            slots: Slots::default(),
            priority: self.priority,
            ttl: self.ttl,
            metadata: self.own_metadata(),
            process: None,
        };
        let status = match (self.until, &asked) {
            (Some(_), _) => Status::Released,
            (None, Some(_)) => Status::Releasing,
            (None, None) => Status::Active,
        };
        Lease {
            ask: Arc::new(ask),
            token: self.token,
            acquired_at: self.acquired_at,
            renewed_at,
            expires_at: self.until.unwrap_or_else(|| renewed_at.plus(self.ttl)),
            renewals: self.beat,
            status,
            asked,
            took_over: None,
        }
    }

    /// Returns this lease as one that ended without a release.
    pub(super) fn gone(&self, how: How, at: Timestamp) -> Gone {
        Gone {
            how,
            at,
            lease_id: self.lease_id,
            holder: self.holder.clone(),
            token: self.token,
            acquired_at: self.acquired_at,
            beat: self.beat,
            by: None,
            reason: None,
        }
    }
}

impl Gone {
    fn line(&self) -> String {
        let holder = code(&self.holder);
        match (self.how, &self.by, &self.reason) {
            (How::Forced, Some(by), Some(reason)) => {
                format!("{} took the lock from {holder}: {}", code(by), code(reason))
            }
            (How::Forced, ..) => format!("the lock was taken from {holder}"),
            (How::Stolen, ..) => format!("the lease of {holder} was stale and was taken"),
            (How::Expired, ..) => format!("the lease of {holder} has ended"),
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
            beat: 2,
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
    fn the_facts_of_the_engine_are_in_the_comment_and_not_in_the_lease() {
        let mut claim = claim();
        let own = claim.metadata.clone();
        claim.describe(&issue(&["bug", "complexity:high"]), claim.acquired_at);
        claim.date_heartbeat(claim.acquired_at.plus(Ttl::from_secs(5)));
        let get = |name| claim.metadata.get(name);
        assert_eq!(get("worker_id"), own.get("worker_id"), "the caller's own");
        assert_eq!(get("claimed_at"), Some("2024-11-05T14:32:15Z"));
        assert_eq!(get("heartbeat_last"), Some("2024-11-05T14:32:20Z"));
        assert_eq!(get("task_info.complexity"), Some("high"));
        assert!(get("node_id").is_some() && get("pid").is_some());
        assert_eq!(claim.lease(claim.acquired_at, None).ask.metadata, own);
        let text = Says::Held(claim.clone()).write();
        assert_eq!(Says::read(&text), Found::Ours(Box::new(Says::Held(claim))));
    }

    #[test]
    fn facts_that_do_not_fit_are_left_out() {
        let mut claim = claim();
        claim.metadata.set("large", "x".repeat(4000)).unwrap();
        let own = claim.metadata.clone();
        claim.describe(&issue(&[]), claim.acquired_at);
        assert!(claim.added.len() < 4, "{:?}", claim.added);
        assert_eq!(claim.lease(claim.acquired_at, None).ask.metadata, own);
    }

    #[test]
    fn what_is_written_is_read_again_whatever_is_in_it() {
        let says = Says::Held(claim());
        let text = says.write();
        assert_eq!(Says::read(&text), Found::Ours(Box::new(says)));
        assert_eq!(
            text.lines().next().unwrap(),
            "🔒 **Held** by `@ada 'x'` since 2024-11-05T14:32:15Z (token 7, renewal 2)."
        );
        assert_eq!(text.matches("-->").count(), 1, "{text}");
        // Text that people write around the hidden JSON does not matter.
        assert!(matches!(Says::read(&format!("> quoted\r\n{text}\r\nthanks!")), Found::Ours(_)));
    }

    /// Guards the stored format: every later version has to read a comment of an earlier one.
    #[test]
    fn a_comment_of_the_first_version_is_read() {
        let json = r#"{"state":"held","lock":"deploy","leaseId":"01890a5d-ac96-774b-bcce-b302099a8057","holder":"ada","token":7,"ttl":900000000,"beat":2,"acquiredAt":1730817135000000,"priority":0,"metadata":{"node_id":"n1"}}"#;
        let Found::Ours(says) = Says::read(&format!("hello\n\n<!-- leasehold:v1 {json} -->")) else {
            panic!("not read")
        };
        let Says::Held(claim) = *says else { panic!("{says:?}") };
        assert_eq!((claim.ttl, claim.beat), (Ttl::from_secs(900), 2));
        assert_eq!(
            claim.lease(claim.acquired_at, None).ask.metadata.get("node_id"),
            Some("n1"),
            "its caller's"
        );
    }

    #[test]
    fn garbage_is_not_taken_for_silence() {
        assert_eq!(Says::read("I like this issue"), Found::Nothing);
        let text = Says::Held(claim()).write();
        for broken in [
            text.replace("\"ttl\"", "\"tt\""),
            text.replace(END, ""),
            "<!-- leasehold:v1 -->".to_owned(),
            "<!-- leasehold:v1 {\"state\":\"held\"} -->".to_owned(),
            text.replace("\"held\"", "\"happy\""),
            text.replace("\"token\":7", "\"token\":18446744073709551615"),
        ] {
            if broken == text.replace(END, "") {
                assert!(matches!(Says::read(&broken), Found::Ours(_)), "an open end is no harm");
            } else {
                assert_eq!(Says::read(&broken), Found::Garbage, "{broken}");
            }
        }
    }
}
