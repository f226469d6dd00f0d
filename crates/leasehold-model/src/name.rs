//! Names and other short texts that users type: validated once, on construction.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ValidationError, ValueKind};

/// Maximum length of a name, holder or reason, in bytes of UTF-8.
pub(super) const MAX_BYTES: usize = 255;
/// Maximum length of a workflow name: shorter, because the names of its queue and its lock add a prefix.
pub(super) const MAX_WORKFLOW: usize = MAX_BYTES - WORKFLOW.len();
/// Prefix of the queue and of the lock of a workflow.
pub(super) const WORKFLOW: &str = "workflow/";

/// Defines the conversions of a text: from what callers pass, validated (`T`, `&T`) or to be validated,
/// and to a plain text.
macro_rules! text_conversions {
    ($type:ident) => {
        text_conversions!($type, &str, String, &String);

        impl std::str::FromStr for $type {
            type Err = $crate::ValidationError;
            fn from_str(text: &str) -> Result<Self, $crate::ValidationError> {
                Self::new(text)
            }
        }

        impl From<&$type> for $type {
            fn from(text: &$type) -> $type {
                text.clone()
            }
        }

        impl From<$type> for String {
            fn from(text: $type) -> String {
                text.as_str().to_owned()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
    ($type:ident, $($text:ty),*) => {$(
        impl TryFrom<$text> for $type {
            type Error = $crate::ValidationError;
            fn try_from(text: $text) -> Result<Self, $crate::ValidationError> {
                Self::new(text)
            }
        }
    )*};
}
#[cfg(feature = "schedules")]
pub(crate) use text_conversions;

/// Defines an id that is a UUID. `$what` completes the error "'text' is not …".
macro_rules! id {
    ($(#[$doc:meta])* $type:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(Uuid);

        impl $type {
            /// Creates an id from a UUID.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// Returns the id as a UUID.
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }

            fn parse(text: &str) -> Result<Self, ValidationError> {
                let wrong = |_| ValidationError::new(ValueKind::Id, format!("'{text}' is not {}", $what));
                Uuid::parse_str(text).map(Self).map_err(wrong)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.0.hyphenated().encode_lower(&mut Uuid::encode_buffer()))
            }
        }
    };
}
pub(crate) use id;

/// Defines a text type with one validation rule: 1 to 255 bytes (or up to the given maximum), no
/// control characters, no line separators, no characters that change the direction of the
/// surrounding text, no blanks at either end.
macro_rules! short_text {
    ($(#[$doc:meta])* $type:ident, $word:literal) => {
        short_text!($(#[$doc])* $type, $word, MAX_BYTES);
    };
    ($(#[$doc:meta])* $type:ident, $word:literal, $most:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(Arc<str>);

        impl $type {
            /// Validates the text and creates the value.
            pub fn new(text: impl AsRef<str>) -> Result<Self, ValidationError> {
                check($word, text.as_ref(), $most)?;
                Ok(Self(text.as_ref().into()))
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        text_conversions!($type);

        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}

short_text!(
    /// Name of a lock. Any text of 1 to 255 bytes without control characters, line separators and
    /// bidirectional controls; `/` is allowed.
    LockName,
    "lock name"
);
short_text!(
    /// Name of the execution, process or person that holds or requests a lock.
    Holder,
    "holder"
);
short_text!(
    /// Reason for an intervention, kept in the history.
    Reason,
    "reason"
);

short_text!(
    /// Name of a queue of tasks.
    QueueName,
    "queue name"
);
short_text!(
    /// Name of a schedule.
    ScheduleName,
    "schedule name"
);
short_text!(
    /// Key that identifies a task when it is added again; unique in its queue.
    TaskKey,
    "key"
);

short_text!(
    /// Name of a workflow. Its executions are tasks of the queue `workflow/NAME` and run under the
    /// lock `workflow/NAME`.
    WorkflowName,
    "workflow name",
    MAX_WORKFLOW
);

short_text!(
    /// Id of a trigger; part of the address of its webhook.
    TriggerId,
    "trigger id"
);
short_text!(
    /// Kind of an event in the sender's terms, such as `push` or `invoice.paid`.
    EventName,
    "event name"
);
short_text!(
    /// Id that the sender assigned to a webhook delivery.
    DeliveryId,
    "delivery id"
);

fn check(word: &str, text: &str, most: usize) -> Result<(), ValidationError> {
    let position = |found: fn(char) -> bool| text.chars().position(found).map(|at| at + 1);
    let why = if text.is_empty() {
        "is empty".to_owned()
    } else if text.len() > most {
        format!("has {} bytes; {most} is the most", text.len())
    } else if let Some(at) = position(char::is_control) {
        format!("{text:?} has a control character at position {at}")
    } else if let Some(at) = position(misleads) {
        // Such a text is displayed differently from its content, or takes two lines of a list.
        format!("{text:?} has a line separator or a bidirectional control at position {at}")
    } else if text.trim() != text {
        format!("{text:?} begins or ends with a blank")
    } else {
        return Ok(());
    };
    Err(ValidationError::new(ValueKind::Name, format!("the {word} {why}")))
}

/// Returns whether `c` is a line or paragraph separator or has the property `Bidi_Control`.
fn misleads(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_any_short_printable_text() {
        for good in ["a", "terraform/prod", "Ünïcödé 名前", &"x".repeat(255)] {
            assert_eq!(LockName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn a_bad_name_says_what_is_wrong() {
        let wrong = |text: &str| LockName::new(text).unwrap_err().to_string();
        assert_eq!(wrong(""), "the lock name is empty");
        assert_eq!(wrong(&"x".repeat(256)), "the lock name has 256 bytes; 255 is the most");
        assert_eq!(wrong("a\nb"), "the lock name \"a\\nb\" has a control character at position 2");
        assert_eq!(wrong("a\u{7f}"), "the lock name \"a\\u{7f}\" has a control character at position 2");
        let misleading = ["\u{2028}", "\u{2029}", "\u{202e}", "\u{2066}", "\u{200f}", "\u{61c}"];
        for mark in misleading {
            let message = wrong(&format!("a{mark}b"));
            let what = "has a line separator or a bidirectional control at position 2";
            assert!(message.ends_with(what), "{message}");
            assert!(!message.contains(mark), "it is not printed raw: {message:?}");
        }
        assert_eq!(wrong(" a"), "the lock name \" a\" begins or ends with a blank");
    }

    #[test]
    fn stored_text_is_checked_too() {
        assert!(serde_json::from_str::<LockName>("\"\"").is_err());
        assert_eq!(serde_json::to_string(&LockName::new("a/b").unwrap()).unwrap(), "\"a/b\"");
    }
}
