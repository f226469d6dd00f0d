//! What a comment of ours says: a line for people, and the same as JSON where people do not see it. Read with suspicion:
//! anybody may have written or changed it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::answers::Issue;
use super::tasks::{Record, facts, tell_labels};
use crate::model::{
    Ask, Asked, Holder, Lease, LeaseId, Metadata, Mode, Priority, Reason, Slots, Status, Timestamp, Token,
    Ttl,
};

/// What a comment of ours says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(super) enum Says {
    /// Somebody wants the lock, and looks whether others do.
    Raised(Claim),
    /// Somebody has it.
    Held(Claim),
    /// Somebody had it. Keeps its token.
    Released(Claim),
    /// Somebody asks the holder to stop.
    Asked(Asking),
    /// Somebody has cleared leases away, or taken one by force.
    Ended(Ending),
}

/// A lease, or the wish for one. One comment, edited as long as it lasts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Claim {
    pub(super) lock: String,
    pub(super) lease_id: LeaseId,
    pub(super) holder: Holder,
    #[serde(default)]
    pub(super) token: Token,
    /// In µs, from each edit of the comment.
    pub(super) ttl: Ttl,
    /// Counts the renewals.
    #[serde(default)]
    pub(super) beat: u64,
    #[serde(default)]
    pub(super) acquired_at: Timestamp,
    /// Released, and yet kept until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) until: Option<Timestamp>,
    #[serde(default)]
    pub(super) priority: Priority,
    /// What the caller says of itself, and what this engine adds for readers of the comment.
    #[serde(default)]
    pub(super) metadata: Metadata,
    /// The names of those entries of `metadata` that this engine has added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) added: Vec<String>,
    /// Logins that are assigned without a lease: their assignment could not be taken back when they released it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left_assigned: Vec<String>,
    /// What its holder has cleared away when it took the lock: its comments are gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) took: Vec<Gone>,
    /// The task that the issue is, as it stands with this claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<Box<Record>>,
}

/// A lease that somebody else has ended.
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

/// How a lease was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum How {
    /// Its time was over.
    Expired,
    /// It showed no sign of life.
    Stolen,
    /// Somebody wanted it so.
    Forced,
}

/// A request to a holder to stop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Asking {
    pub(super) token: Token,
    pub(super) by: Holder,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<Reason>,
}

/// Leases that were ended by somebody who does not want the lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Ending {
    /// The newest token from here on.
    pub(super) token: Token,
    pub(super) took: Vec<Gone>,
    /// The task that was in the claim of the last of them: what was known of it must not go with its comment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: Option<Box<Record>>,
}

/// What a comment of ours begins with, and the text of a lock's issue.
const BEGIN: &str = "<!-- leasehold:v1 ";
/// The entry of a claim's metadata that says when its holder was last seen alive.
pub(super) const HEARTBEAT: &str = "heartbeat_last";
const END: &str = " -->";

/// What is in a comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// Somebody's own words.
    Nothing,
    /// It was ours, and cannot be read any more.
    Garbage,
    /// Ours.
    Ours(Box<Says>),
}

impl Says {
    /// The whole text of the comment.
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

    /// Reads a comment.
    pub(super) fn read(body: &str) -> Found {
        match shown::<Self>(body) {
            None => Found::Nothing,
            Some(Err(_)) => Found::Garbage,
            Some(Ok(says)) if says.highest() > Token::MAX => Found::Garbage,
            Some(Ok(says)) => Found::Ours(Box::new(says)),
        }
    }

    /// Who has written it.
    fn holder(&self) -> &dyn std::fmt::Display {
        match self {
            Self::Raised(claim) | Self::Held(claim) | Self::Released(claim) => &claim.holder,
            Self::Asked(asking) => &asking.by,
            Self::Ended(_) => &"somebody",
        }
    }

    /// What it says of the task that the issue is.
    pub(super) fn task(&self) -> Option<&Record> {
        match self {
            Self::Raised(claim) | Self::Held(claim) | Self::Released(claim) => claim.task.as_deref(),
            Self::Ended(ending) => ending.task.as_deref(),
            Self::Asked(_) => None,
        }
    }

    /// The highest token in it.
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

/// JSON where people do not see it.
pub(super) fn hidden(what: &impl Serialize) -> String {
    hidden_after(BEGIN, what)
}

/// The same after another beginning. No `>` is left in it that could end it.
pub(super) fn hidden_after(begin: &str, what: &impl Serialize) -> String {
    let json = serde_json::to_string(what).expect("plain data becomes JSON");
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e");
    format!("{begin}{json}{END}")
}

/// What [`hidden`] has hidden.
pub(super) fn shown<T: for<'de> Deserialize<'de>>(body: &str) -> Option<Result<T, serde_json::Error>> {
    shown_after(BEGIN, body)
}

/// What [`hidden_after`] has hidden.
pub(super) fn shown_after<T: for<'de> Deserialize<'de>>(
    begin: &str,
    body: &str,
) -> Option<Result<T, serde_json::Error>> {
    let (_, rest) = body.split_once(begin.trim_end())?;
    let json = rest.split_once(END.trim_start()).map_or(rest, |(json, _)| json);
    Some(serde_json::from_str(json.trim()))
}

/// As code: nobody is notified because a holder is called `@ada`.
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

    /// Adds the facts that claims of tasks have too: who, where, since when, and what labels say of the issue. An entry of
    /// the caller's own is not changed, and what does not fit is left out.
    pub(super) fn describe(&mut self, issue: &Issue, now: Timestamp) {
        let mut about = facts(self.holder.as_str(), now);
        tell_labels(issue, &mut about);
        for (name, value) in about.iter() {
            if self.metadata.get(name).is_none() && self.metadata.set(name, value).is_ok() {
                self.added.push(name.to_owned());
            }
        }
    }

    /// Dates the last heartbeat, if this engine has said of this claim when that was.
    pub(super) fn date_heartbeat(&mut self, now: Timestamp) {
        if self.added.iter().any(|name| name == HEARTBEAT) {
            self.metadata.set(HEARTBEAT, now.to_string()).unwrap_or_default();
        }
    }

    /// What the caller has said of itself.
    fn own_metadata(&self) -> Metadata {
        let mut metadata = self.metadata.clone();
        self.added.iter().for_each(|name| metadata.remove(name));
        metadata
    }

    /// The lease that this claim is, last seen alive at `renewed_at`.
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

    /// This lease, ended by somebody else.
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
        // What people write around it does not matter.
        assert!(matches!(Says::read(&format!("> quoted\r\n{text}\r\nthanks!")), Found::Ours(_)));
    }

    /// The stored format: a comment of an earlier version is read by every later one.
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
