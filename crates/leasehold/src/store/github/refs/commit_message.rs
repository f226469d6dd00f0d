//! Message of a commit: a few lines for people, and a document as JSON in its last line.

use serde::{Deserialize, Serialize};

use crate::model::Timestamp;
use crate::store::{Annotation, NewDocument, RESERVED_PREFIX};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CommitDocument {
    /// Key of the document: the name of the ref contains only its hash.
    pub(super) key: String,
    /// Version, which rises with every write.
    pub(super) version: u64,
    /// Time from which the document counts as nonexistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires_at: Option<Timestamp>,
    /// Random number of this write: two commits with otherwise equal contents, within the same
    /// second, would be one and the same commit, and both writers would take it for their own.
    pub(super) write: u64,
    pub(super) body: String,
}

const BEGIN: &str = "leasehold:v1 ";

impl CommitDocument {
    /// Returns the whole message. Escapes what GitHub could take for the name of a user or the
    /// number of an issue, so that no user is notified of a renewal.
    pub(super) fn render(&self, draft: &NewDocument) -> String {
        let json = serde_json::to_string(self).expect("the value is plain data");
        let json = json.replace('@', "\\u0040").replace('#', "\\u0023");
        let lines = readable_lines(&self.key, draft);
        format!("{}\n\n{BEGIN}{json}\n", lines.join("\n"))
    }

    /// Parses a message; `None` if it is not leasehold's.
    pub(super) fn parse(message: &str) -> Option<Self> {
        let json = message.lines().rev().find_map(|line| line.strip_prefix(BEGIN))?;
        serde_json::from_str(json).ok()
    }

    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

fn readable_lines(key: &str, draft: &NewDocument) -> Vec<String> {
    if key.starts_with(RESERVED_PREFIX) {
        return vec!["Older events of a lock".to_owned()];
    }
    let text = |name: &str| {
        draft.annotations.iter().find_map(|(known, annotation)| match annotation {
            Annotation::Text(text) if *known == name => Some(text.as_str()),
            _ => None,
        })
    };
    let first = match (text("status"), text("holder")) {
        (Some("held"), Some(holder)) => format!("Lock {key} is held by {holder}"),
        (Some(_), _) => format!("Lock {key} is free"),
        (None, _) => format!("Document {key}"),
    };
    let mut lines = vec![plain(&first)];
    if !draft.annotations.is_empty() {
        lines.push(String::new());
    }
    for (name, annotation) in &draft.annotations {
        match annotation {
            Annotation::Text(text) => lines.push(plain(&format!("{name}: {text}"))),
            Annotation::Number(number) => lines.push(format!("{name}: {number}")),
            Annotation::Texts(texts) => {
                lines.extend(texts.iter().map(|(key, text)| plain(&format!("{name}.{key}: {text}"))));
            }
        }
    }
    lines
}

/// Puts text on one line in which GitHub recognizes neither users nor issues.
fn plain(text: &str) -> String {
    let one_line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    one_line.replace('@', "@\u{200b}").replace('#', "#\u{200b}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> CommitDocument {
        CommitDocument {
            key: "#7 @ada\n".to_owned(),
            version: 3,
            expires_at: None,
            write: 5,
            body: "{\"a\":\"\n@x\"}".to_owned(),
        }
    }

    #[test]
    fn a_message_is_parsed_again_and_notifies_no_user() {
        let annotations = vec![
            ("status", Annotation::Text("held".to_owned())),
            ("token", Annotation::Number(9)),
            ("holder", Annotation::Text("@eve".to_owned())),
            ("metadata", Annotation::Texts(vec![("why".to_owned(), "fixes #3\nleasehold:v1 {}".to_owned())])),
        ];
        let message = document().render(&NewDocument { body: String::new(), annotations, keep: None });
        assert_eq!(CommitDocument::parse(&message), Some(document()));
        assert_eq!(CommitDocument::parse(message.trim_end()), Some(document()));
        let first = message.lines().next().unwrap();
        assert_eq!(first.replace('\u{200b}', ""), "Lock #7 @ada  is held by @eve");
        assert!(message.contains("\ntoken: 9\n"), "{message}");
        for (at, _) in message.match_indices(['@', '#']) {
            assert!(message[at + 1..].starts_with('\u{200b}'), "{message}");
        }
    }

    /// Guards the stored format: every later version has to read a commit of an earlier one.
    #[test]
    fn a_commit_of_the_first_version_is_parsed() {
        let message = "Lock deploy is free\n\nstatus: free\n\nleasehold:v1 {\"key\":\"deploy\",\"version\":7,\"write\":1,\"body\":\"{}\"}";
        let document = CommitDocument {
            key: "deploy".to_owned(),
            version: 7,
            expires_at: None,
            write: 1,
            body: "{}".to_owned(),
        };
        assert_eq!(CommitDocument::parse(message), Some(document));
    }

    #[test]
    fn a_foreign_message_is_not_parsed() {
        for message in ["", "Initial commit", "leasehold:v1 {}", "x\n\nleasehold:v2 {\"key\":\"k\"}"] {
            assert_eq!(CommitDocument::parse(message), None, "{message}");
        }
    }
}
