//! Filters of a trigger: which events start its workflow, by the kind of the event, its branch and
//! its body.

use leasehold::model::{EventName, ValidationError};
use serde::Deserialize;
use serde_json_path::JsonPath;

use super::event::Event;
use super::signature::Scheme;

/// Maximum length of a query. Queries are written by hand, so a longer one is rejected.
const MAX_QUERY_BYTES: usize = 1000;
/// Maximum nesting depth of brackets and parentheses in a query: the parser is recursive.
const MAX_QUERY_DEPTH: usize = 16;
/// Maximum length of a pattern. A longer pattern could match nothing.
const MAX_PATTERN_BYTES: usize = 255;
/// Events that senders send only to test a connection.
const GITHUB_PING: &str = "ping";
const STRIPE_PING: &str = "v2.core.event_destination.ping";

/// Filter of a trigger. An empty list accepts every event.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Filter {
    /// Kinds of events; one of them has to match.
    pub events: Vec<Pattern>,
    /// Branches, for GitHub events; one of them has to match.
    pub branches: Vec<Pattern>,
    /// Conditions on the body; all of them have to hold.
    pub when: Vec<Condition>,
}

/// Pattern for a text: an exact text, or a prefix if the pattern ends with `*`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern {
    text: String,
    is_prefix: bool,
}

/// `JSONPath` query (RFC 9535). The condition holds if the query selects at least one node of the body.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Condition(JsonPath);

impl Filter {
    /// Returns the reason why this event starts nothing, for its sender; `None` if the event passes.
    pub(crate) fn rejection(&self, event: &Event<'_>, name: Option<&EventName>) -> Option<String> {
        let name = name.map(EventName::as_str);
        self.of_name(event.scheme, name).or_else(|| self.of_branch(event)).or_else(|| self.of_body(event))
    }

    fn of_name(&self, scheme: Scheme, name: Option<&str>) -> Option<String> {
        let Some(name) = name else {
            let unnamed = "the delivery does not name its event, and this trigger lists events";
            return (!self.events.is_empty()).then(|| unnamed.to_owned());
        };
        let is_test = match scheme {
            Scheme::Github => name == GITHUB_PING,
            Scheme::Stripe => name == STRIPE_PING,
            Scheme::Standard | Scheme::None => false,
        };
        if is_test {
            let is_listed = self.events.iter().any(|pattern| !pattern.is_prefix && pattern.text == name);
            return (!is_listed)
                .then(|| format!("'{name}' is a test event, and this trigger does not list it"));
        }
        // `pull_request` matches all its actions.
        let kind = (scheme == Scheme::Github).then(|| name.split('.').next()).flatten().unwrap_or(name);
        let is_listed = |pattern: &Pattern| pattern.matches(name) || pattern.matches(kind);
        let passes = self.events.is_empty() || self.events.iter().any(is_listed);
        (!passes).then(|| format!("event '{name}' is not one of this trigger's events"))
    }

    fn of_branch(&self, event: &Event<'_>) -> Option<String> {
        if self.branches.is_empty() {
            return None;
        }
        let Some(branch) = event.branch() else {
            return Some("the event has no branch, and this trigger lists branches".to_owned());
        };
        let passes = self.branches.iter().any(|pattern| pattern.matches(branch));
        let shown = || branch.chars().take(MAX_PATTERN_BYTES).collect::<String>();
        (!passes).then(|| format!("branch {:?} is not one of this trigger's branches", shown()))
    }

    fn of_body(&self, event: &Event<'_>) -> Option<String> {
        if self.when.is_empty() {
            return None;
        }
        let Some(body) = event.json() else {
            return Some("the body is not JSON, and this trigger has conditions on it".to_owned());
        };
        let failed = self.when.iter().position(|condition| condition.0.query(body).is_empty())?;
        Some(format!("the body does not match condition {} of this trigger", failed + 1))
    }
}

impl Pattern {
    /// Validates the text and creates a pattern.
    pub fn new(text: impl Into<String>) -> Result<Self, ValidationError> {
        let text: String = text.into();
        let invalid =
            |rule| ValidationError::other(format!("invalid pattern '{}': {rule}", text.escape_debug()));
        let beginning = text.strip_suffix('*');
        let fixed = beginning.unwrap_or(&text);
        if fixed.contains('*') {
            return Err(invalid("'*' is allowed only at the end"));
        }
        let is_odd =
            fixed.len() > MAX_PATTERN_BYTES || fixed.contains(char::is_control) || fixed.trim() != fixed;
        if is_odd || text.is_empty() {
            return Err(invalid(
                "must have 1 to 255 bytes, no control characters, and no blanks at either end",
            ));
        }
        Ok(Self { text: fixed.to_owned(), is_prefix: beginning.is_some() })
    }

    fn matches(&self, text: &str) -> bool {
        if self.is_prefix { text.starts_with(&self.text) } else { text == self.text }
    }
}

impl TryFrom<String> for Pattern {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Self::new(text)
    }
}

impl Condition {
    /// Parses the query.
    pub fn new(query: &str) -> Result<Self, ValidationError> {
        if query.len() > MAX_QUERY_BYTES {
            return Err(ValidationError::other(format!(
                "a JSONPath query must have at most {MAX_QUERY_BYTES} bytes"
            )));
        }
        if depth(query) > MAX_QUERY_DEPTH {
            return Err(ValidationError::other(format!(
                "a JSONPath query must not be nested deeper than {MAX_QUERY_DEPTH}"
            )));
        }
        let invalid =
            |error| ValidationError::other(format!("invalid JSONPath query '{query}' (RFC 9535): {error}"));
        JsonPath::parse(query).map(Self).map_err(invalid)
    }
}

/// Returns the nesting depth of brackets and parentheses. Those in quotes count too.
fn depth(query: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in query.bytes() {
        match byte {
            b'[' | b'(' => depth += 1,
            b']' | b')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

impl TryFrom<String> for Condition {
    type Error = ValidationError;
    fn try_from(text: String) -> Result<Self, ValidationError> {
        Self::new(&text)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::new(*text).unwrap()).collect()
    }

    fn passes(filter: &Filter, scheme: Scheme, name: Option<&str>, body: &str) -> bool {
        let headers = HeaderMap::new();
        let name = name.map(|name| EventName::new(name).unwrap());
        filter.rejection(&Event::new(scheme, &headers, body.as_bytes()), name.as_ref()).is_none()
    }

    #[test]
    fn an_event_passes_by_its_kind() {
        let github =
            Filter { events: patterns(&["push", "pull_request.opened", "issue*"]), ..Filter::default() };
        for name in ["push", "pull_request.opened", "issues.opened", "issue_comment.created"] {
            assert!(passes(&github, Scheme::Github, Some(name), "{}"), "{name}");
        }
        for name in ["pull_request.closed", "pull_request", "pushed", "ping", "Push"] {
            assert!(!passes(&github, Scheme::Github, Some(name), "{}"), "{name}");
        }
        assert!(!passes(&github, Scheme::Github, None, "{}"));
        let whole = Filter { events: patterns(&["pull_request"]), ..Filter::default() };
        assert!(passes(&whole, Scheme::Github, Some("pull_request.closed"), "{}"));
        assert!(!passes(&whole, Scheme::Github, Some("pull_request_review.submitted"), "{}"));
        let stripe = Filter { events: patterns(&["invoice.*", "charge"]), ..Filter::default() };
        assert!(passes(&stripe, Scheme::Stripe, Some("invoice.paid"), "{}"));
        for name in ["invoice", "invoices.paid", "charge.refunded"] {
            assert!(!passes(&stripe, Scheme::Stripe, Some(name), "{}"), "{name}");
        }
    }

    #[test]
    fn a_test_event_passes_only_if_it_is_listed_as_it_is() {
        for (scheme, ping) in [(Scheme::Github, GITHUB_PING), (Scheme::Stripe, STRIPE_PING)] {
            let with = |texts: &[&str]| Filter { events: patterns(texts), ..Filter::default() };
            for events in [&[][..], &["*"], &["p*", "v2.*"]] {
                assert!(!passes(&with(events), scheme, Some(ping), "{}"), "{ping} {events:?}");
            }
            assert!(passes(&with(&["*", ping]), scheme, Some(ping), "{}"));
            assert!(passes(&with(&["*"]), scheme, Some("push"), "{}"));
            assert!(passes(&with(&[]), Scheme::Standard, Some(ping), "{}"));
        }
    }

    #[test]
    fn an_event_passes_by_its_branch() {
        let filter = Filter { branches: patterns(&["main", "release/*"]), ..Filter::default() };
        let push = |branch: &str| format!(r#"{{"ref":"refs/heads/{branch}"}}"#);
        for branch in ["main", "release/1.0"] {
            assert!(passes(&filter, Scheme::Github, Some("push"), &push(branch)), "{branch}");
        }
        for branch in ["main2", "topic/main", "release"] {
            assert!(!passes(&filter, Scheme::Github, Some("push"), &push(branch)), "{branch}");
        }
        assert!(!passes(&filter, Scheme::Github, Some("push"), r#"{"ref":"refs/tags/main"}"#));
    }

    #[test]
    fn an_event_passes_by_every_condition_on_its_body() {
        let conditions = |texts: &[&str]| {
            let when = texts.iter().map(|text| Condition::new(text).unwrap()).collect();
            Filter { when, ..Filter::default() }
        };
        let body = r#"{"deleted":false,"pull_request":{"draft":false,"labels":[{"name":"ship it"}]},"n":3}"#;
        let holds = |texts: &[&str]| passes(&conditions(texts), Scheme::Stripe, None, body);
        assert!(holds(&["$.pull_request"]));
        assert!(holds(&["$[?$.deleted == false]"]));
        assert!(holds(&["$[?@.draft == false]", "$.pull_request.labels[?@.name == 'ship it']"]));
        assert!(holds(&["$.pull_request.labels[?match(@.name, 'ship.*')]"]));
        assert!(!holds(&["$.pull_request", "$[?$.n > 3]"]));
        assert!(!holds(&["$.nothing"]));
        assert!(!passes(&conditions(&["$"]), Scheme::Stripe, None, "not json"));
        for invalid in ["", "pull_request", "$[", "$.a b", "$[?@.a ==]", "$[?nothing(@)]"] {
            assert!(Condition::new(invalid).is_err(), "{invalid}");
        }
        assert!(Condition::new(&format!("$.{}", "a".repeat(MAX_QUERY_BYTES))).is_err());
    }

    #[test]
    fn a_pattern_has_one_star_at_its_end() {
        assert!(Pattern::new("*").unwrap().matches("anything"));
        for invalid in ["", "*a", "a*b", "**", " a", "a\n", &"x".repeat(256)] {
            assert!(Pattern::new(invalid).is_err(), "{invalid}");
        }
    }
}
