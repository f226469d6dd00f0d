//! Issues, comments and people in the format of the description.

use std::sync::OnceLock;

use leasehold::model::Timestamp;
use serde_json::{Value, json};

use super::description::Description;
use super::repo::{Assignment, Comment, Issue, Repo};

/// Overrides fields of a sample.
fn filled(sample: &Value, values: &Value) -> Value {
    let mut whole = sample.clone();
    for (name, value) in values.as_object().expect("fields") {
        whole[name] = value.clone();
    }
    whole
}

pub(super) fn time(seconds: u64) -> String {
    Timestamp::from_micros(seconds * 1_000_000).to_string()
}

pub(super) fn user(description: &Description, repo: &Repo, login: &str) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let sample = SAMPLE.get_or_init(|| description.sample("simple-user"));
    let is_bot = repo.people.get(login).is_some_and(|person| person.is_bot);
    filled(sample, &json!({ "login": login, "type": if is_bot { "Bot" } else { "User" } }))
}

pub(super) fn comment(description: &Description, repo: &Repo, id: u64, comment: &Comment) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let sample = SAMPLE.get_or_init(|| description.sample("issue-comment"));
    let association = repo.people.get(&comment.author).map_or("NONE", |person| person.association);
    let issue = repo.issues.iter().find(|(_, issue)| issue.comments.contains_key(&id));
    let number = issue.map_or(0, |(number, _)| *number);
    let values = json!({
        "id": id,
        "issue_url": format!("https://api.github.example/repos/ada/engine/issues/{number}"),
        "body": comment.body,
        "user": user(description, repo, &comment.author),
        "author_association": association,
        "created_at": time(comment.created_at),
        "updated_at": time(comment.updated_at),
    });
    filled(sample, &values)
}

pub(super) fn issue(description: &Description, repo: &Repo, number: u64, issue: &Issue) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let sample = SAMPLE.get_or_init(|| description.sample("issue"));
    let assignees: Vec<_> = issue.assignees.iter().map(|login| user(description, repo, login)).collect();
    let labels: Vec<_> = issue.labels.iter().map(|label| json!({ "name": label })).collect();
    let values = json!({
        "number": number,
        "title": issue.title,
        "body": issue.body,
        "user": user(description, repo, &issue.author),
        "state": if issue.is_closed { "closed" } else { "open" },
        "state_reason": issue.state_reason,
        "closed_at": issue.closed_at.map(time),
        "author_association": repo.people.get(&issue.author).map_or("NONE", |person| person.association),
        "html_url": format!("https://github.example/ada/engine/issues/{number}"),
        "locked": issue.is_locked,
        "labels": labels,
        "assignee": assignees.first(),
        "assignees": assignees,
        "comments": issue.comments.len(),
        "created_at": time(issue.created_at),
        "updated_at": time(issue.updated_at),
    });
    let mut shown = filled(sample, &values);
    if issue.is_pull_request {
        let url = "https://github.example/";
        shown["pull_request"] = json!({ "diff_url": url, "html_url": url, "patch_url": url, "url": url });
    }
    shown
}

/// Returns the labels of an issue in the format of the calls for labels.
pub(super) fn labels(description: &Description, issue: &Issue) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let sample = SAMPLE.get_or_init(|| description.sample("label"));
    issue.labels.iter().map(|label| filled(sample, &json!({ "name": label }))).collect()
}

/// Returns the events of an issue.
pub(super) fn events(description: &Description, repo: &Repo, issue: &Issue) -> Vec<Value> {
    static SAMPLES: OnceLock<[Value; 2]> = OnceLock::new();
    let samples =
        || [description.sample("unlabeled-issue-event"), description.sample("state-change-issue-event")];
    let [about_label, about_state] = SAMPLES.get_or_init(samples);
    let show = |(event, label, at): &(&str, Option<String>, u64)| {
        let values = json!({ "event": event, "created_at": time(*at), "actor": user(description, repo, &issue.author) });
        match label {
            Some(label) => {
                let mut shown = filled(about_label, &values);
                shown["label"] = json!({ "name": label, "color": "ededed" });
                shown
            }
            None => filled(about_state, &values),
        }
    };
    let others = issue.assignments.iter().map(|event| (event.at, assignment(description, repo, event)));
    let mut all: Vec<_> = issue.events.iter().map(|event| (event.2, show(event))).chain(others).collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, event)| event).collect()
}

fn assignment(description: &Description, repo: &Repo, event: &Assignment) -> Value {
    static SAMPLE: OnceLock<Value> = OnceLock::new();
    let sample = SAMPLE.get_or_init(|| description.sample("assigned-issue-event"));
    let values = json!({
        "event": if event.adds { "assigned" } else { "unassigned" },
        "actor": user(description, repo, &event.by),
        "assignee": user(description, repo, &event.login),
        "assigner": user(description, repo, &event.by),
        "created_at": time(event.at),
    });
    filled(sample, &values)
}

pub(super) fn repository(description: &Description, can_push: bool) -> Value {
    let permissions = json!({ "admin": false, "pull": true, "push": can_push });
    filled(&description.sample("full-repository"), &json!({ "has_issues": true, "permissions": permissions }))
}

pub(super) fn rate_limit(description: &Description) -> Value {
    description.sample("rate-limit-overview")
}
