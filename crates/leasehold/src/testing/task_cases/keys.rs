//! Adding the same task again.

use crate::model::{
    AttemptResult, Enqueued, FinishedFilter, NewTask, Payload, Reuse, TaskKey, TaskState, Ttl,
};
use crate::testing::task_fixture::{TaskFixture, queue, task, why};

pub async fn a_repeated_task_is_added_once(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    fixture.add(&[task(1), task(2)]).await;
    assert_eq!(fixture.count(TaskState::Pending).await, 2);
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.done(&leased).await;
    fixture.add(&[task(1)]).await;
    assert_eq!(fixture.drain().await, [2]);
}

pub async fn the_same_key_means_the_same_task(fixture: TaskFixture) {
    let same = |number| {
        let mut new = task(number).with_key("post-42");
        new.payload = Payload::new("[1]").expect("a good value in a test");
        new
    };
    fixture.add(&[same(1)]).await;
    assert_eq!(fixture.enqueue(&[same(2)]).await, [Enqueued::Duplicate(task(1).id)]);
    let keyed = fixture
        .tasks()
        .get_by_key(&queue("q"), &TaskKey::new("post-42").expect("a good value in a test"))
        .await
        .expect("an answer");
    assert_eq!(keyed.map(|task| task.id), Some(task(1).id));
    let leased = fixture.lease(1, 10).await;
    assert_eq!(leased.len(), 1);
    fixture.done(&leased[0]).await;
    // Also when the task is done.
    assert_eq!(fixture.enqueue(&[same(3)]).await, [Enqueued::Duplicate(task(1).id)]);
    assert_eq!(fixture.drain().await, [0; 0]);
}

pub async fn the_same_key_twice_in_a_batch_is_one_task(fixture: TaskFixture) {
    let same = |number| {
        let mut new = task(number).with_key("k");
        new.payload = Payload::default();
        new
    };
    let enqueued = fixture.enqueue(&[same(1), task(2), same(3)]).await;
    let (one, two) = (task(1).id, task(2).id);
    assert_eq!(enqueued, [Enqueued::Added(one), Enqueued::Added(two), Enqueued::Duplicate(one)]);
}

pub async fn a_key_with_another_payload_is_refused(fixture: TaskFixture) {
    fixture.add(&[task(1).with_key("k")]).await;
    let enqueued = fixture.enqueue(&[task(2).with_key("k"), task(3)]).await;
    assert_eq!(enqueued, [Enqueued::KeyReused(task(1).id), Enqueued::Added(task(3).id)]);
    assert_eq!(fixture.drain().await, [1, 3]);
}

pub async fn a_key_is_unique_within_its_queue(fixture: TaskFixture) {
    fixture.add(&[task(1).with_key("k"), task(2).in_queue("other").with_key("k")]).await;
}

pub async fn a_key_can_be_reused_when_its_task_has_failed(fixture: TaskFixture) {
    let same = |number, reuse| {
        let mut new = task(number).with_key("k");
        (new.payload, new.reuse) = (Payload::default(), reuse);
        new
    };
    fixture.add(&[same(1, Reuse::Failed)]).await;
    assert_eq!(fixture.enqueue(&[same(2, Reuse::Failed)]).await, [Enqueued::Duplicate(task(1).id)]);
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Fail(why())).await;
    assert_eq!(fixture.enqueue(&[same(2, Reuse::Never)]).await, [Enqueued::Duplicate(task(1).id)]);
    assert_eq!(fixture.enqueue(&[task(3).with_key("k")]).await, [Enqueued::KeyReused(task(1).id)]);
    fixture.add(&[same(4, Reuse::Failed)]).await;
    assert_eq!(fixture.get(1).await.key, None);
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.done(&leased).await;
    assert_eq!(fixture.enqueue(&[same(5, Reuse::Failed)]).await, [Enqueued::Duplicate(task(4).id)]);
    fixture.add(&[same(6, Reuse::Finished)]).await;
}

/// Programs write the members of an object in any order.
pub async fn a_key_compares_the_canonical_payload(fixture: TaskFixture) {
    let about = |number, payload: &str| {
        let mut new = task(number).with_key("k");
        new.payload = Payload::new(payload).expect("a good value in a test");
        new
    };
    fixture.add(&[about(1, r#"{"a": 1, "b": [2, {"c": "ä", "d": null}]}"#)]).await;
    let same = about(2, r#"{"b":[2.0,{"d":null,"c":"\u00e4"}],"a":1e0}"#);
    assert_eq!(fixture.enqueue(&[same]).await, [Enqueued::Duplicate(task(1).id)]);
    let other = about(3, r#"{"b":[2.0,{"d":null,"c":"\u00e4"}],"a":10}"#);
    assert_eq!(fixture.enqueue(&[other]).await, [Enqueued::KeyReused(task(1).id)]);
    assert_eq!(fixture.get(1).await.payload.as_str(), r#"{"a": 1, "b": [2, {"c": "ä", "d": null}]}"#);
}

/// One task of a key at a time: the payload of the earlier task does not matter once its key may be
/// used again.
pub async fn a_free_key_can_be_used_with_another_payload(fixture: TaskFixture) {
    let next = |number, reuse| {
        let mut new = task(number).with_key("k");
        new.reuse = reuse;
        new
    };
    fixture.add(&[next(1, Reuse::Finished)]).await;
    assert_eq!(fixture.enqueue(&[next(2, Reuse::Finished)]).await, [Enqueued::KeyReused(task(1).id)]);
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.done(&leased).await;
    assert_eq!(fixture.enqueue(&[next(3, Reuse::Failed)]).await, [Enqueued::KeyReused(task(1).id)]);
    fixture.add(&[next(4, Reuse::Finished)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Fail(why())).await;
    fixture.add(&[next(5, Reuse::Failed)]).await;
    assert_eq!(fixture.drain().await, [5]);
}

/// The id of a purged task may be used again, with another key: the first key must not lead to that task.
pub async fn a_purged_task_frees_its_key(fixture: TaskFixture) {
    let with_timeout = |number| NewTask { timeout: Some(Ttl::from_secs(5)), ..task(number) };
    fixture.add(&[task(1).with_key("k"), with_timeout(2).with_key("l")]).await;
    for leased in fixture.lease(1, 2).await {
        fixture.done(&leased).await;
    }
    fixture.f.pass(1);
    let which = FinishedFilter { queue: None, state: None, before: fixture.f.clock.now(), limit: 10 };
    assert_eq!(fixture.tasks().purge(&which).await.expect("an answer"), 2);
    fixture.add(&[task(1).with_key("m"), with_timeout(2).with_key("n")]).await;
    for key in ["k", "l"] {
        let key = TaskKey::new(key).expect("a good key");
        assert_eq!(fixture.tasks().get_by_key(&queue("q"), &key).await.expect("an answer"), None);
    }
    fixture.add(&[task(3).with_key("k")]).await;
}
