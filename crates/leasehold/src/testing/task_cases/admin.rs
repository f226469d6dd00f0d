//! Administrative operations on tasks and queues.

use crate::model::{
    AttemptResult, HeartbeatResult, Pause, Payload, Priority, RetryPolicy, Settled, TaskAnswer,
    TaskEventKind, TaskState, TaskUpdate, Timestamp, Ttl,
};
use crate::testing::task_fixture::{TaskFixture, ada, cancel, queue, retry, task, update, why};

pub async fn a_pending_task_is_cancelled_at_once(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2).after(60)]).await;
    for number in [1, 2] {
        let (answer, stored) = fixture.change(number, cancel()).await;
        assert_eq!((answer, stored.state), (TaskAnswer::Done, TaskState::Aborted));
        assert_eq!(stored.cancel.as_ref().map(|asked| &asked.by), Some(&ada()));
        assert_eq!(stored, fixture.get(number).await);
    }
    fixture.f.pass(60_000);
    assert_eq!(fixture.drain().await, [0; 0]);
    assert_eq!(fixture.change(1, cancel()).await.0, TaskAnswer::Refused(TaskState::Aborted));
}

pub async fn a_running_task_is_cancelled_by_its_worker(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2), task(3)]).await;
    let leased = fixture.lease(1, 3).await;
    for (leased, verdict, state) in [
        (&leased[0], AttemptResult::Abort(None), TaskState::Aborted),
        (&leased[1], AttemptResult::Retry(why(), None), TaskState::Aborted),
        (&leased[2], AttemptResult::Done(None), TaskState::Succeeded),
    ] {
        let number = leased.id.as_uuid().as_u128();
        let (_, stored) = fixture.change(number, cancel()).await;
        assert_eq!(stored.state, TaskState::Running);
        let HeartbeatResult::Extended(Some(asked)) = fixture.beat(leased).await else { panic!("not asked") };
        assert_eq!(asked.by, ada());
        assert_eq!(fixture.settle(leased, verdict).await, Settled::Now(state));
    }
}

pub async fn a_failed_task_can_be_retried(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Retry(why(), None)).await;
    let (answer, stored) = fixture.change(1, retry()).await;
    assert_eq!((answer, stored.state, stored.attempt), (TaskAnswer::Done, TaskState::Pending, 0));
    assert_eq!(
        fixture.settle(&leased, AttemptResult::Done(None)).await,
        Settled::Lost,
        "that attempt is over"
    );
    let again = fixture.lease(1, 1).await.remove(0);
    assert!(again.token > leased.token);
    let kinds: Vec<_> = again.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [TaskEventKind::Failed, TaskEventKind::Retried]);
    assert_eq!(fixture.change(1, retry()).await.0, TaskAnswer::Refused(TaskState::Running));
    fixture.done(&again).await;
    assert_eq!(fixture.change(1, retry()).await.0, TaskAnswer::Refused(TaskState::Succeeded));
}

pub async fn a_waiting_task_can_be_run_now(fixture: TaskFixture) {
    fixture.add(&[task(1).after(3600)]).await;
    assert_eq!(fixture.change(1, retry()).await.1.state, TaskState::Pending);
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn an_update_compares_the_version(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let payload = Payload::new("\"new\"").expect("a good value in a test");
    let change =
        |expected| update(TaskUpdate { expected, payload: Some(payload.clone()), ..TaskUpdate::default() });
    assert_eq!(fixture.change(1, change(7)).await.0, TaskAnswer::VersionConflict(1));
    let (answer, stored) = fixture.change(1, change(1)).await;
    assert_eq!((answer, stored.version, stored.payload), (TaskAnswer::Done, 2, payload.clone()));
    assert_eq!(fixture.change(1, change(1)).await.0, TaskAnswer::VersionConflict(2));
    assert_eq!(fixture.lease(1, 1).await[0].payload, payload);
}

pub async fn an_update_changes_priority_and_due_time(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2), task(3).after(60)]).await;
    let priority = Some(Priority::new(9).expect("a good value in a test"));
    fixture.change(2, update(TaskUpdate { expected: 1, priority, ..TaskUpdate::default() })).await;
    let run_at = Some(fixture.f.clock.now().plus(Ttl::from_secs(30)));
    fixture.change(1, update(TaskUpdate { expected: 1, run_at, ..TaskUpdate::default() })).await;
    let run_at = Some(Timestamp::from_micros(1));
    fixture.change(3, update(TaskUpdate { expected: 1, run_at, ..TaskUpdate::default() })).await;
    assert_eq!(fixture.drain().await, [2, 3]);
    fixture.f.pass(30_000);
    assert_eq!(fixture.lease(1, 9).await.len(), 1);
}

pub async fn an_invalid_update_is_refused(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let archived = update(TaskUpdate { expected: 1, archived: Some(true), ..TaskUpdate::default() });
    assert_eq!(fixture.change(1, archived).await.0, TaskAnswer::Refused(TaskState::Pending));
    let leased = fixture.lease(1, 1).await.remove(0);
    let payload = Some(Payload::default());
    let change =
        |expected| update(TaskUpdate { expected, payload: payload.clone(), ..TaskUpdate::default() });
    assert_eq!(fixture.change(1, change(2)).await.0, TaskAnswer::Refused(TaskState::Running));
    fixture.done(&leased).await;
    assert_eq!(fixture.change(1, change(3)).await.0, TaskAnswer::Refused(TaskState::Succeeded));
    assert_eq!(fixture.get(1).await.version, 3);
    assert!(fixture.tasks().change(task(9).id, &cancel()).await.expect("an answer").is_none());
}

pub async fn the_limit_of_attempts_cannot_fall_below_those_made(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(3)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    let change = |expected, attempts| {
        let retries = Some(RetryPolicy { attempts, ..RetryPolicy::default() });
        update(TaskUpdate { expected, retries, ..TaskUpdate::default() })
    };
    assert_eq!(fixture.change(1, change(2, 1)).await.0, TaskAnswer::Done, "this one is the last");
    assert_eq!(fixture.change(1, change(3, 3)).await.0, TaskAnswer::Done);
    fixture.settle(&leased, AttemptResult::Retry(why(), Some(Ttl::from_secs(1)))).await;
    assert_eq!(fixture.change(1, change(5, 1)).await.0, TaskAnswer::Refused(TaskState::Scheduled));
    assert_eq!(fixture.change(1, change(5, 2)).await.0, TaskAnswer::Done);
}

pub async fn nothing_is_leased_from_a_paused_queue(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2).in_queue("other"), task(3).after(10)]).await;
    let pause = Pause { by: ada(), reason: None, at: fixture.f.clock.now() };
    assert!(fixture.tasks().pause(&queue("q"), Some(pause.clone())).await.expect("an answer"));
    assert!(!fixture.tasks().pause(&queue("unknown"), Some(pause.clone())).await.expect("an answer"));
    let leased = fixture.lease_from(1, 10, &["q", "other"]).await;
    assert_eq!((leased.tasks.len(), leased.next_due), (1, None));
    let queues = fixture.tasks().queues().await.expect("an answer");
    let paused: Vec<_> = queues.iter().map(|status| status.paused.clone()).collect();
    assert_eq!(paused, [None, Some(pause)]);
    assert!(fixture.tasks().pause(&queue("q"), None).await.expect("an answer"));
    assert_eq!(fixture.drain().await, [1]);
}
