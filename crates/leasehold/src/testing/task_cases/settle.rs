//! How attempts end, and which workers may end them.

use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, Payload, Progress, RetryPolicy, Settle, Settled, TaskAnswer,
    TaskEventKind, TaskState, Token, Ttl,
};
use crate::testing::task_fixture::{TaskFixture, cancel, info, numbers, task, why, worker};

pub async fn a_result_is_stored(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.f.pass(1_000);
    let result =
        Payload::new("{\"url\": \"https://example.org\", \"size\": 1.50}").expect("a good value in a test");
    let settled = fixture.settle(&leased, AttemptResult::Done(Some(result.clone()))).await;
    assert_eq!(settled, Settled::Now(TaskState::Succeeded));
    let stored = fixture.get(1).await;
    assert_eq!((stored.state, stored.version, stored.attempt), (TaskState::Succeeded, 3, 1));
    assert_eq!(stored.result, Some(result));
    assert_eq!(stored.finished_at, Some(fixture.f.clock.now()));
    assert_eq!((stored.lease_expires_at, stored.worker), (None, Some(worker(1))));
}

pub async fn a_finished_task_is_not_leased_again(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.done(&leased).await;
    fixture.f.pass(100_000);
    assert_eq!(fixture.drain().await, [0; 0]);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").expired(), 0);
}

pub async fn a_repeated_settlement_is_accepted_once(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2)]).await;
    for (leased, verdict, state) in [
        (fixture.lease(1, 1).await.remove(0), AttemptResult::Done(None), TaskState::Succeeded),
        (fixture.lease(1, 1).await.remove(0), AttemptResult::Retry(why(), None), TaskState::Scheduled),
    ] {
        assert_eq!(fixture.settle(&leased, verdict.clone()).await, Settled::Now(state));
        let stored = fixture.tasks().get(leased.id).await.expect("an answer");
        assert_eq!(fixture.settle(&leased, verdict).await, Settled::Now(state));
        assert_eq!(fixture.tasks().get(leased.id).await.expect("an answer"), stored);
    }
}

pub async fn an_old_token_settles_nothing(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let zombie = fixture.lease(1, 1).await.remove(0);
    fixture.f.advance_past(31_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").returned, 1);
    // No worker has leased the task again, but the zombie's lease is over nevertheless.
    assert_eq!(fixture.settle(&zombie, AttemptResult::Done(None)).await, Settled::Lost);
    let second = fixture.lease(2, 1).await.remove(0);
    assert_eq!(fixture.settle(&zombie, AttemptResult::Fail(why())).await, Settled::Lost);
    assert_eq!(fixture.get(1).await, second);
    fixture.done(&second).await;
    assert_eq!(fixture.settle(&zombie, AttemptResult::Done(None)).await, Settled::Lost);
    assert_eq!(fixture.get(1).await.attempt, 2);
}

pub async fn a_late_settlement_counts_while_the_lease_has_not_been_ended(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.f.advance_past(31_000);
    fixture.done(&leased).await;
}

pub async fn each_task_of_a_batch_is_settled_separately(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2), task(3)]).await;
    let leased = fixture.lease(1, 3).await;
    let mut settles: Vec<Settle> = leased
        .iter()
        .map(|task| Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) })
        .collect();
    settles[1].token = Token::default();
    settles[2].result = AttemptResult::Fail(why());
    settles.push(Settle { id: task(99).id, ..settles[0].clone() });
    let settled = fixture.tasks().settle(&settles).await.expect("an answer");
    assert_eq!(
        settled,
        [Settled::Now(TaskState::Succeeded), Settled::Lost, Settled::Now(TaskState::Failed), Settled::Lost]
    );
    assert_eq!(fixture.state(2).await, TaskState::Running);
}

pub async fn a_failed_attempt_is_retried_after_a_delay(fixture: TaskFixture) {
    let mut new = task(1);
    new.retries =
        RetryPolicy { attempts: 3, initial_delay: Ttl::from_secs(10), max_delay: Ttl::from_secs(60) };
    fixture.add(&[new]).await;
    for (attempt, least, most) in [(1, 7_500, 12_500), (2, 15_000, 25_000)] {
        let leased = fixture.lease(1, 1).await.remove(0);
        assert_eq!(leased.attempt, attempt);
        let settled = fixture.settle(&leased, AttemptResult::Retry(why(), None)).await;
        assert_eq!(settled, Settled::Now(TaskState::Scheduled));
        assert_eq!(fixture.get(1).await.error, Some(why()));
        fixture.f.pass(least - 1);
        assert_eq!(fixture.drain().await, [0; 0], "before the pause is over");
        fixture.f.advance_past(most - least + 1);
    }
    let leased = fixture.lease(1, 1).await.remove(0);
    assert_eq!(
        fixture.settle(&leased, AttemptResult::Retry(why(), None)).await,
        Settled::Now(TaskState::Failed)
    );
    let stored = fixture.get(1).await;
    assert_eq!(stored.events.len(), 3);
    assert!(stored.events.iter().all(|event| event.kind == TaskEventKind::Failed));
    assert_eq!(stored.events.iter().map(|event| event.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(stored.events[0].why, Some(why()));
}

pub async fn a_failed_attempt_may_choose_its_delay(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Retry(why(), Some(Ttl::from_secs(100)))).await;
    fixture.f.pass(99_999);
    assert_eq!(fixture.drain().await, [0; 0]);
    fixture.f.pass(1);
    assert_eq!(fixture.drain().await, [1]);
}

pub async fn a_permanent_failure_leaves_attempts_unused(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(5)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    assert_eq!(fixture.settle(&leased, AttemptResult::Fail(why())).await, Settled::Now(TaskState::Failed));
    let stored = fixture.get(1).await;
    assert_eq!((stored.error, stored.finished_at), (Some(why()), Some(fixture.f.clock.now())));
}

/// A task that was requested to stop must not be started again because its attempt has failed.
pub async fn a_failure_after_a_request_to_stop_aborts_the_task(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(5), task(2)]).await;
    let leased = fixture.lease(1, 2).await;
    for number in [1, 2] {
        let (answer, _) = fixture.change(number, cancel()).await;
        assert_eq!(answer, TaskAnswer::Done);
    }
    let settled = fixture.settle(&leased[0], AttemptResult::Fail(why())).await;
    assert_eq!(settled, Settled::Now(TaskState::Aborted));
    assert_eq!(fixture.get(1).await.error, Some(why()));
    fixture.done(&leased[1]).await;
}

pub async fn snoozing_and_returning_use_no_attempt(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    let settled = fixture.settle(&leased, AttemptResult::Snooze(Ttl::from_secs(60))).await;
    assert_eq!(settled, Settled::Now(TaskState::Scheduled));
    assert_eq!(fixture.drain().await, [0; 0]);
    fixture.f.pass(60_000);
    let leased = fixture.lease(1, 1).await.remove(0);
    assert_eq!(fixture.settle(&leased, AttemptResult::Return).await, Settled::Now(TaskState::Pending));
    let leased = fixture.lease(2, 1).await.remove(0);
    assert_eq!(leased.attempt, 1);
    let kinds: Vec<_> = leased.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [TaskEventKind::Snoozed, TaskEventKind::Returned]);
    fixture.done(&leased).await;
}

pub async fn a_returned_task_keeps_its_position(fixture: TaskFixture) {
    for number in 1..=3 {
        fixture.add(&[task(number)]).await;
        fixture.f.pass(1);
    }
    let leased = fixture.lease(1, 2).await;
    assert_eq!(numbers(&leased), [1, 2]);
    fixture.f.pass(1_000);
    assert_eq!(fixture.settle(&leased[0], AttemptResult::Return).await, Settled::Now(TaskState::Pending));
    assert_eq!(fixture.drain().await, [1, 3], "in its old place");
    fixture.settle(&leased[1], AttemptResult::Return).await;
    fixture.f.pass(1);
    fixture.add(&[task(4)]).await;
    assert_eq!(fixture.drain().await, [2, 4], "also after what came later was leased");
}

pub async fn deferring_uses_no_attempt_and_records_no_event(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    let pause = AttemptResult::Defer(Ttl::from_secs(5));
    assert_eq!(fixture.settle(&leased, pause).await, Settled::Now(TaskState::Scheduled));
    assert_eq!(fixture.drain().await, [0; 0]);
    fixture.f.pass(5_000);
    let leased = fixture.lease(2, 1).await.remove(0);
    assert_eq!((leased.attempt, leased.events.len()), (1, 0));
    fixture.done(&leased).await;
}

pub async fn a_heartbeat_extends_the_lease_and_changes_nothing_else(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.f.pass(20_000);
    assert_eq!(fixture.beat(&leased).await, HeartbeatResult::Extended(None));
    let stored = fixture.get(1).await;
    assert_eq!(stored.lease_expires_at, Some(fixture.f.clock.now().plus(Ttl::from_secs(30))));
    assert_eq!((stored.version, stored.updated_at), (leased.version, leased.updated_at));
    fixture.f.pass(20_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").expired(), 0);
    fixture.done(&leased).await;
    assert_eq!(fixture.beat(&leased).await, HeartbeatResult::Lost);
}

pub async fn heartbeats_are_answered_per_task(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2)]).await;
    let leased = fixture.lease(1, 2).await;
    let held = |number: usize, token| HeldTask::new(leased[number].id, token);
    let unknown = HeldTask { id: task(9).id, ..held(0, leased[0].token) };
    let all = [held(0, Token::default()), held(1, leased[1].token), unknown];
    let beats = fixture.tasks().heartbeat(&info(1), &all, Ttl::from_secs(30)).await.expect("an answer");
    assert_eq!(beats, [HeartbeatResult::Lost, HeartbeatResult::Extended(None), HeartbeatResult::Lost]);
    assert_eq!(fixture.tasks().heartbeat(&info(1), &[], Ttl::from_secs(30)).await.expect("an answer"), []);
}

pub async fn progress_is_sent_with_a_heartbeat(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    let progress = Some(Progress::of(3, 10).note("encoding"));
    let held = HeldTask { progress: progress.clone(), ..HeldTask::new(leased.id, leased.token) };
    fixture.tasks().heartbeat(&info(1), &[held], Ttl::from_secs(30)).await.expect("an answer");
    assert_eq!(fixture.get(1).await.progress, progress);
    fixture.beat(&leased).await;
    assert_eq!(fixture.get(1).await.progress, progress, "no news leaves it as it was");
    fixture.settle(&leased, AttemptResult::Return).await;
    fixture.lease(1, 1).await;
    assert_eq!(fixture.get(1).await.progress, None, "another attempt begins anew");
}
