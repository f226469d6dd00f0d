//! How attempts end, and which workers may end them.

use crate::model::{
    AttemptResult, HeartbeatResult, HeldTask, Payload, Progress, RetryPolicy, Settle, Settled, TaskEventKind,
    TaskState, Token, Ttl,
};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, info, numbers, task, why, worker};

pub async fn a_result_is_kept(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.f.pass(1_000);
    let result =
        Payload::new("{\"url\": \"https://example.org\", \"size\": 1.50}").expect("a good value in a test");
    let settled = shop.settle(&leased, AttemptResult::Done(Some(result.clone()))).await;
    assert_eq!(settled, Settled::Now(TaskState::Succeeded));
    let stored = shop.get(1).await;
    assert_eq!((stored.state, stored.version, stored.attempt), (TaskState::Succeeded, 3, 1));
    assert_eq!(stored.result, Some(result));
    assert_eq!(stored.finished_at, Some(shop.f.clock.now()));
    assert_eq!((stored.lease_expires_at, stored.worker), (None, Some(worker(1))));
}

pub async fn what_is_done_is_not_leased_again(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.done(&leased).await;
    shop.f.pass(100_000);
    assert_eq!(shop.drain().await, [0; 0]);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").expired(), 0);
}

pub async fn a_settlement_that_is_sent_again_is_the_same(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), task(2)]).await;
    for (leased, verdict, state) in [
        (shop.lease(1, 1).await.remove(0), AttemptResult::Done(None), TaskState::Succeeded),
        (shop.lease(1, 1).await.remove(0), AttemptResult::Retry(why(), None), TaskState::Scheduled),
    ] {
        assert_eq!(shop.settle(&leased, verdict.clone()).await, Settled::Now(state));
        let stored = shop.tasks().get(leased.id).await.expect("an answer");
        assert_eq!(shop.settle(&leased, verdict).await, Settled::Now(state));
        assert_eq!(shop.tasks().get(leased.id).await.expect("an answer"), stored);
    }
}

pub async fn an_old_token_settles_nothing(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let zombie = shop.lease(1, 1).await.remove(0);
    shop.f.outlast(31_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").returned, 1);
    // No worker has leased the task again, but the zombie's lease is over nevertheless.
    assert_eq!(shop.settle(&zombie, AttemptResult::Done(None)).await, Settled::Lost);
    let second = shop.lease(2, 1).await.remove(0);
    assert_eq!(shop.settle(&zombie, AttemptResult::Fail(why())).await, Settled::Lost);
    assert_eq!(shop.get(1).await, second);
    shop.done(&second).await;
    assert_eq!(shop.settle(&zombie, AttemptResult::Done(None)).await, Settled::Lost);
    assert_eq!(shop.get(1).await.attempt, 2);
}

pub async fn a_late_settlement_counts_if_nobody_has_ended_the_lease(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.f.outlast(31_000);
    shop.done(&leased).await;
}

pub async fn each_of_a_batch_is_settled_by_itself(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), task(2), task(3)]).await;
    let leased = shop.lease(1, 3).await;
    let mut settles: Vec<Settle> = leased
        .iter()
        .map(|task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) })
        .collect();
    settles[1].token = Token::default();
    settles[2].verdict = AttemptResult::Fail(why());
    settles.push(Settle { id: task(99).id, ..settles[0].clone() });
    let settled = shop.tasks().settle(&settles).await.expect("an answer");
    assert_eq!(
        settled,
        [Settled::Now(TaskState::Succeeded), Settled::Lost, Settled::Now(TaskState::Failed), Settled::Lost]
    );
    assert_eq!(shop.state(2).await, TaskState::Running);
}

pub async fn a_failed_attempt_is_tried_again_after_a_pause(f: Fixture) {
    let shop = Shop::from(f);
    let mut new = task(1);
    new.retries = RetryPolicy { attempts: 3, first: Ttl::from_secs(10), longest: Ttl::from_secs(60) };
    shop.add(&[new]).await;
    for (attempt, least, most) in [(1, 7_500, 12_500), (2, 15_000, 25_000)] {
        let leased = shop.lease(1, 1).await.remove(0);
        assert_eq!(leased.attempt, attempt);
        let settled = shop.settle(&leased, AttemptResult::Retry(why(), None)).await;
        assert_eq!(settled, Settled::Now(TaskState::Scheduled));
        assert_eq!(shop.get(1).await.error, Some(why()));
        shop.f.pass(least - 1);
        assert_eq!(shop.drain().await, [0; 0], "before the pause is over");
        shop.f.outlast(most - least + 1);
    }
    let leased = shop.lease(1, 1).await.remove(0);
    assert_eq!(
        shop.settle(&leased, AttemptResult::Retry(why(), None)).await,
        Settled::Now(TaskState::Failed)
    );
    let stored = shop.get(1).await;
    assert_eq!(stored.events.len(), 3);
    assert!(stored.events.iter().all(|event| event.kind == TaskEventKind::Failed));
    assert_eq!(stored.events.iter().map(|event| event.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(stored.events[0].why, Some(why()));
}

pub async fn a_failed_attempt_may_choose_its_pause(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.settle(&leased, AttemptResult::Retry(why(), Some(Ttl::from_secs(100)))).await;
    shop.f.pass(99_999);
    assert_eq!(shop.drain().await, [0; 0]);
    shop.f.pass(1);
    assert_eq!(shop.drain().await, [1]);
}

pub async fn failing_for_good_leaves_attempts_unused(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).attempts(5)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    assert_eq!(shop.settle(&leased, AttemptResult::Fail(why())).await, Settled::Now(TaskState::Failed));
    let stored = shop.get(1).await;
    assert_eq!((stored.error, stored.finished_at), (Some(why()), Some(shop.f.clock.now())));
}

pub async fn snoozing_and_returning_use_no_attempt(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).attempts(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    let settled = shop.settle(&leased, AttemptResult::Snooze(Ttl::from_secs(60))).await;
    assert_eq!(settled, Settled::Now(TaskState::Scheduled));
    assert_eq!(shop.drain().await, [0; 0]);
    shop.f.pass(60_000);
    let leased = shop.lease(1, 1).await.remove(0);
    assert_eq!(shop.settle(&leased, AttemptResult::Return).await, Settled::Now(TaskState::Pending));
    let leased = shop.lease(2, 1).await.remove(0);
    assert_eq!(leased.attempt, 1);
    let kinds: Vec<_> = leased.events.iter().map(|event| event.kind).collect();
    assert_eq!(kinds, [TaskEventKind::Snoozed, TaskEventKind::Returned]);
    shop.done(&leased).await;
}

pub async fn a_task_that_is_given_back_keeps_its_place(f: Fixture) {
    let shop = Shop::from(f);
    for number in 1..=3 {
        shop.add(&[task(number)]).await;
        shop.f.pass(1);
    }
    let leased = shop.lease(1, 2).await;
    assert_eq!(numbers(&leased), [1, 2]);
    shop.f.pass(1_000);
    assert_eq!(shop.settle(&leased[0], AttemptResult::Return).await, Settled::Now(TaskState::Pending));
    assert_eq!(shop.drain().await, [1, 3], "in its old place");
    shop.settle(&leased[1], AttemptResult::Return).await;
    shop.f.pass(1);
    shop.add(&[task(4)]).await;
    assert_eq!(shop.drain().await, [2, 4], "also after what came later was leased");
}

pub async fn deferring_uses_no_attempt_and_is_no_event(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).attempts(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    let pause = AttemptResult::Defer(Ttl::from_secs(5));
    assert_eq!(shop.settle(&leased, pause).await, Settled::Now(TaskState::Scheduled));
    assert_eq!(shop.drain().await, [0; 0]);
    shop.f.pass(5_000);
    let leased = shop.lease(2, 1).await.remove(0);
    assert_eq!((leased.attempt, leased.events.len()), (1, 0));
    shop.done(&leased).await;
}

pub async fn a_sign_of_life_extends_the_lease_and_nothing_else(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.f.pass(20_000);
    assert_eq!(shop.beat(&leased).await, HeartbeatResult::Extended(None));
    let stored = shop.get(1).await;
    assert_eq!(stored.lease_expires_at, Some(shop.f.clock.now().plus(Ttl::from_secs(30))));
    assert_eq!((stored.version, stored.updated_at), (leased.version, leased.updated_at));
    shop.f.pass(20_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").expired(), 0);
    shop.done(&leased).await;
    assert_eq!(shop.beat(&leased).await, HeartbeatResult::Lost);
}

pub async fn signs_of_life_are_answered_one_by_one(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), task(2)]).await;
    let leased = shop.lease(1, 2).await;
    let held = |number: usize, token| HeldTask::new(leased[number].id, token);
    let unknown = HeldTask { id: task(9).id, ..held(0, leased[0].token) };
    let all = [held(0, Token::default()), held(1, leased[1].token), unknown];
    let beats = shop.tasks().heartbeat(&info(1), &all, Ttl::from_secs(30)).await.expect("an answer");
    assert_eq!(beats, [HeartbeatResult::Lost, HeartbeatResult::Extended(None), HeartbeatResult::Lost]);
    assert_eq!(shop.tasks().heartbeat(&info(1), &[], Ttl::from_secs(30)).await.expect("an answer"), []);
}

pub async fn progress_travels_with_a_sign_of_life(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    let progress = Some(Progress::of(3, 10).note("encoding"));
    let held = HeldTask { progress: progress.clone(), ..HeldTask::new(leased.id, leased.token) };
    shop.tasks().heartbeat(&info(1), &[held], Ttl::from_secs(30)).await.expect("an answer");
    assert_eq!(shop.get(1).await.progress, progress);
    shop.beat(&leased).await;
    assert_eq!(shop.get(1).await.progress, progress, "no news leaves it as it was");
    shop.settle(&leased, AttemptResult::Return).await;
    shop.lease(1, 1).await;
    assert_eq!(shop.get(1).await.progress, None, "another attempt begins anew");
}
