//! Fuzz targets of the text of issues, and of the records of tasks in comments.

use super::issue_body::{IssueBody, task_from_issue};
use super::record::Record;
use crate::fuzz_corpus;
use crate::model::{QueueName, Timestamp};
use crate::store::github::api::Issue;
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn github_issues_are_parsed_as_they_were_written() {
    fuzz(fuzz_corpus!("github-issues"), 2_000, |input| {
        let text = String::from_utf8_lossy(input);
        let (first, queue) = (issue("A title", &text), QueueName::new("q").unwrap());
        let body = IssueBody::parse(&first);
        if let Some(body) = &body {
            let written = issue(&body.title(), &body.text());
            assert_eq!(IssueBody::parse(&written).as_ref(), Some(body), "{}", body.text());
            assert!(!body.title().contains(char::is_control));
            assert_eq!(body.settled().without_key().key, None);
        }
        let task = task_from_issue(&first, &queue, body.as_ref());
        assert!(task.is_some() || body.is_some(), "every issue with the label is a task");
        Shape::of(&(body, task.map(|task| (task.key.is_some(), task.priority.get() > 0))))
    });
}

#[test]
fn github_records_are_parsed_as_they_were_written() {
    let issue_task = task_from_issue(&issue("t", "b"), &QueueName::new("q").unwrap(), None).unwrap();
    fuzz(fuzz_corpus!("github-records"), 2_000, |input| match serde_json::from_slice::<Record>(input) {
        Ok(record) => {
            let json = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&json).unwrap(), record);
            let task = record.task(&issue_task);
            let again = Record::of(&task, &issue_task);
            assert!(serde_json::to_string(&again).unwrap().len() <= 56 << 10, "it fits into a comment");
            let later = record.ended(Timestamp::from_micros(1));
            assert_eq!(later.token, record.token);
            assert!(!record.line("`ada`").contains("<!--"), "{}", record.line("`ada`"));
            Shape::of(&record)
        }
        Err(error) => Shape::of_text(&error),
    });
}

fn issue(title: &str, body: &str) -> Issue {
    let date = "2024-01-01T00:00:00Z";
    serde_json::from_value(serde_json::json!({
        "number": 7, "state": "open", "title": title, "body": body, "comments": 0, "labels": ["q"],
        "created_at": date, "updated_at": date, "closed_at": null,
    }))
    .unwrap()
}
