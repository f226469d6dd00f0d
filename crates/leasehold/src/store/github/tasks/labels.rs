//! Meaning of labels: the urgency of an issue, and metadata of its task.

use crate::model::{Metadata, Priority, QueueName, RetryPolicy, ValidationError, ValueKind};
use crate::store::github::api::Issue;

/// Label of an issue whose task has failed for good. A person removes it to have the task retried.
pub(super) const FAILED: &str = "leasehold:failed";
/// Label of an issue that was created for a task.
pub(super) const TASK_LABEL: &str = "leasehold:task";

/// Maximum length of a label in characters.
const MAX_LABEL: usize = 50;

/// Labels for urgency, each with its class and weight. A higher class goes first, however long
/// other tasks have waited.
const URGENCY: [(&str, i32, i32); 9] = [
    ("priority:critical", 2, 1000),
    ("p0", 2, 1000),
    ("priority:high", 1, 100),
    ("p1", 1, 100),
    ("priority:medium", 0, 0),
    ("priority:normal", 0, 0),
    ("p2", 0, 0),
    ("priority:low", -1, -100),
    ("p3", -1, -100),
];

/// Prefixes of labels that state metadata of a task, each with the name of the entry in its claim.
const METADATA_LABELS: [(&str, &str); 4] = [
    ("complexity:", "task_info.complexity"),
    ("estimate:", "task_info.estimated_duration"),
    ("type:", "task_info.type"),
    ("priority:", "task_info.priority"),
];

/// Fails if the name of a queue cannot be a label.
pub(super) fn check_queue(queue: &QueueName) -> Result<(), ValidationError> {
    if queue.as_str().chars().count() > MAX_LABEL || queue.as_str().contains(',') {
        return Err(ValidationError::new(
            ValueKind::Name,
            format!(
                "queue '{queue}' cannot be a label of GitHub: a label has at most {MAX_LABEL} characters and no comma"
            ),
        ));
    }
    Ok(())
}

/// Returns the class and the weight of the most urgent label of an issue.
pub(super) fn urgency(issue: &Issue) -> (i32, Priority) {
    let read = |label: &str| {
        let label = label.to_lowercase();
        let named = URGENCY.iter().find(|(name, ..)| *name == label);
        let number = || label.strip_prefix("priority:")?.trim().parse().ok().map(|weight| (0, weight));
        let (class, weight) = named.map(|(_, class, weight)| (*class, *weight)).or_else(number)?;
        Priority::new(weight).ok().map(|weight| (class, weight))
    };
    issue.labels().filter_map(read).max().unwrap_or_default()
}

/// Returns the retry policy of an issue, whose label may be like `attempts:3`.
pub(super) fn retries(issue: &Issue) -> RetryPolicy {
    let read = |label: &str| label.to_lowercase().strip_prefix("attempts:")?.trim().parse().ok();
    let attempts =
        issue.labels().find_map(read).filter(|attempts| (1..=RetryPolicy::MAX_ATTEMPTS).contains(attempts));
    attempts.map_or_else(RetryPolicy::default, |attempts| RetryPolicy { attempts, ..RetryPolicy::default() })
}

/// Adds the metadata in an issue's labels to the metadata of a claim. Leaves out what does not fit.
pub(crate) fn add_label_metadata(issue: &Issue, metadata: &mut Metadata) {
    for label in issue.labels() {
        let lower = label.to_lowercase();
        if let Some((prefix, name)) = METADATA_LABELS.iter().find(|(prefix, _)| lower.starts_with(prefix)) {
            let value = label.get(prefix.len()..).unwrap_or_default().trim();
            if metadata.get(name).is_none() && !value.is_empty() {
                metadata.set(*name, value).unwrap_or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn issue(labels: &[&str]) -> Issue {
        let labels: Vec<_> = labels.iter().map(|name| json!({ "name": name })).collect();
        serde_json::from_value(json!({
            "number": 1, "state": "open", "title": "t", "comments": 0, "labels": labels,
            "created_at": "2024-01-01T00:00:00Z", "updated_at": "2024-01-01T00:00:00Z", "closed_at": null,
        }))
        .unwrap()
    }

    #[test]
    fn the_most_urgent_label_counts() {
        let urgency = |labels: &[&str]| {
            let (class, weight) = urgency(&issue(labels));
            (class, weight.get())
        };
        assert_eq!(urgency(&["bug"]), (0, 0));
        assert_eq!(urgency(&["Priority:Low", "P0"]), (2, 1000));
        assert_eq!(urgency(&["priority:high"]), (1, 100));
        assert_eq!(urgency(&["priority:7"]), (0, 7));
        assert_eq!(urgency(&["priority:99999", "p3"]), (-1, -100));
    }

    #[test]
    fn labels_become_metadata() {
        let issue = issue(&[
            "Complexity:high",
            "estimate:2h",
            "type: bug",
            "priority:P1",
            "complexity:low",
            "attempts:3",
        ]);
        let mut metadata = Metadata::default();
        add_label_metadata(&issue, &mut metadata);
        let added: Vec<_> = metadata.iter().collect();
        assert_eq!(
            added,
            [
                ("task_info.complexity", "high"),
                ("task_info.estimated_duration", "2h"),
                ("task_info.priority", "P1"),
                ("task_info.type", "bug")
            ]
        );
        assert_eq!(retries(&issue).attempts, 3);
    }

    #[test]
    fn a_queue_has_to_be_a_label() {
        assert!(check_queue(&QueueName::new("agent work").unwrap()).is_ok());
        assert!(check_queue(&QueueName::new("a,b").unwrap()).is_err());
        assert!(check_queue(&QueueName::new("x".repeat(51)).unwrap()).is_err());
    }
}
