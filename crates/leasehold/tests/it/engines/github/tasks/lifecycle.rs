//! Test of the common case: an issue that a person has labelled is leased, extended and completed.

use std::time::Duration;

use leasehold::model::{AttemptResult, HeartbeatResult, Payload, Progress, Settled, TaskState};

use super::support::{TTL, id, worker};
use crate::engines::github::support::fake;

#[tokio::test]
async fn a_labelled_issue_is_run_and_closed() {
    let (fake, clock) = fake().await;
    let number = fake.labelled_issue("Fix the roof", &["agent", "complexity:high", "estimate:2h"]);
    fake.repo().issues.get_mut(&number).unwrap().body = "It leaks.".to_owned();
    let ada = worker(&fake, "ada").await;
    let task = ada.takes().await;
    assert_eq!((task.id, task.state, task.attempt), (id(number), TaskState::Running, 1));
    let payload: serde_json::Value = task.payload.read().unwrap();
    assert_eq!(payload["title"], "Fix the roof");
    assert_eq!(payload["body"], "It leaks.");
    assert_eq!(payload["author"], "eve");
    clock.advance(Duration::from_secs(20));
    assert_eq!(
        ada.heartbeat(&task, Some(Progress::of(2, 5).note("encoding"))).await,
        HeartbeatResult::Extended(None)
    );
    {
        let repo = fake.repo();
        let issue = &repo.issues[&number];
        assert_eq!(issue.assignees, ["ada"]);
        let [comment] = &issue.comments.values().collect::<Vec<_>>()[..] else { panic!("one comment") };
        let line = comment.body.lines().next().unwrap();
        assert!(line.contains("works on it since 2023-11-14T22:13:20Z (attempt 1, token "), "{line}");
        assert!(line.ends_with(": 40 % — `encoding`."), "{line}");
        for fact in
            [r#""task_info.complexity":"high""#, r#""task_info.estimated_duration":"2h""#, r#""worker_id":"#]
        {
            assert!(comment.body.contains(fact), "{}", comment.body);
        }
    }
    let workers = ada.store.tasks().unwrap().workers().await.unwrap();
    let [seen] = workers.as_slice() else { panic!("one worker: {workers:?}") };
    assert_eq!((seen.info.id, seen.info.pid, seen.info.busy), (ada.id, std::process::id(), 1));
    assert_eq!((seen.started_at.since(task.created_at), seen.seen_at), (Duration::ZERO, clock.now()));
    let result = Payload::new("{\"pull\": 7}").unwrap();
    let settled = ada.settle(&task, AttemptResult::Done(Some(result.clone()))).await;
    assert_eq!(settled, Settled::Now(TaskState::Succeeded));
    {
        let repo = fake.repo();
        let issue = &repo.issues[&number];
        assert!(issue.is_closed && issue.assignees.is_empty());
        assert_eq!(issue.state_reason.as_deref(), Some("completed"));
        let [comment] = &issue.comments.values().collect::<Vec<_>>()[..] else { panic!("one comment") };
        assert!(comment.body.starts_with("✅ **Done** by `"), "{}", comment.body);
        assert!(comment.body.contains("```json\n{\"pull\": 7}\n```"), "{}", comment.body);
    }
    assert_eq!(ada.settle(&task, AttemptResult::Done(Some(result.clone()))).await, settled, "repeated");
    let stored = ada.get(number).await;
    assert_eq!((stored.state, stored.result), (TaskState::Succeeded, Some(result)));
    assert!(ada.lease(5).await.is_empty());
    assert!(TTL.as_duration() > Duration::from_secs(20));
}
