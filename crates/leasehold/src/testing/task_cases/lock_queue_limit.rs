//! Tasks that are added only if the number of tasks with their lock is within a limit.

use crate::model::{AttemptResult, Enqueued, Fingerprint, NewTask, Payload, Reuse, TaskState};
use crate::testing::task_fixture::{TaskFixture, numbers, task, why};

fn alone(number: u128) -> NewTask {
    task(number).with_lock("l").with_lock_queue_limit(0)
}

pub async fn with_a_limit_of_zero_only_the_first_task_is_added(fixture: TaskFixture) {
    fixture.add(&[alone(1)]).await;
    assert_eq!(
        fixture.enqueue(&[alone(2)]).await,
        [Enqueued::LockQueueFull(task(1).id)],
        "it is next to run"
    );
    assert_eq!(fixture.enqueue(&[alone(1)]).await, [Enqueued::Added(task(1).id)], "it is there already");
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1]);
    assert_eq!(fixture.enqueue(&[alone(2)]).await, [Enqueued::LockQueueFull(task(1).id)], "it runs");
    let elsewhere = [
        alone(3).in_queue("other"),
        task(4).with_lock("m").with_lock_queue_limit(0),
        task(5).with_lock_queue_limit(0),
    ];
    let [other_queue, other_lock, no_lock] = &fixture.enqueue(&elsewhere).await[..] else {
        panic!("three answers")
    };
    assert_eq!(*other_queue, Enqueued::Added(task(3).id), "room is counted within a queue");
    assert_eq!((*other_lock, *no_lock), (Enqueued::Added(task(4).id), Enqueued::Added(task(5).id)));
    fixture.done(&leased[0]).await;
    fixture.add(&[alone(2)]).await;
    assert_eq!(fixture.state(2).await, TaskState::Pending);
}

pub async fn a_lock_queue_accepts_up_to_its_limit(fixture: TaskFixture) {
    let one_of = |number| task(number).with_lock("l").with_lock_queue_limit(2);
    fixture.add(&[one_of(1), one_of(2), one_of(3)]).await;
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1]);
    assert_eq!(fixture.enqueue(&[one_of(4)]).await, [Enqueued::LockQueueFull(task(1).id)]);
    fixture.add(&[task(5).with_lock("l")]).await;
    fixture.done(&leased[0]).await;
    assert_eq!(
        fixture.enqueue(&[one_of(4)]).await,
        [Enqueued::LockQueueFull(task(2).id)],
        "2, 3 and 5 are there"
    );
    fixture.f.pass(1);
    fixture.add(&[one_of(4).with_lock_queue_limit(3)]).await;
    for expected in [2, 3, 5, 4] {
        let leased = fixture.lease(1, 10).await;
        assert_eq!(numbers(&leased), [expected], "first come, first served");
        fixture.done(&leased[0]).await;
    }
}

pub async fn the_limit_counts_tasks_of_the_same_batch(fixture: TaskFixture) {
    let batch = [
        alone(1),
        alone(2),
        task(3).with_lock("l").with_lock_queue_limit(1),
        task(4).with_lock("l").with_lock_queue_limit(1),
    ];
    let head = task(1).id;
    assert_eq!(
        fixture.enqueue(&batch).await,
        [
            Enqueued::Added(head),
            Enqueued::LockQueueFull(head),
            Enqueued::Added(task(3).id),
            Enqueued::LockQueueFull(head)
        ]
    );
}

pub async fn a_scheduled_task_does_not_count_towards_the_limit(fixture: TaskFixture) {
    fixture.add(&[task(1).with_lock("l").after(5), alone(2)]).await;
    assert_eq!(
        fixture.enqueue(&[alone(3).after(5)]).await,
        [Enqueued::LockQueueFull(task(2).id)],
        "the room is asked for now"
    );
    assert_eq!(numbers(&fixture.lease(1, 10).await), [2]);
}

pub async fn the_key_is_checked_before_the_limit(fixture: TaskFixture) {
    let same = |number| NewTask { payload: Payload::default(), ..alone(number).with_key("k") };
    fixture.add(&[same(1)]).await;
    assert_eq!(fixture.enqueue(&[same(2)]).await, [Enqueued::Duplicate(task(1).id)]);
    assert_eq!(fixture.enqueue(&[alone(2).with_key("k")]).await, [Enqueued::KeyReused(task(1).id)]);
}

pub async fn a_refused_task_takes_no_key(fixture: TaskFixture) {
    fixture.add(&[alone(1)]).await;
    assert_eq!(fixture.enqueue(&[alone(2).with_key("k")]).await, [Enqueued::LockQueueFull(task(1).id)]);
    assert_eq!(
        fixture
            .tasks()
            .get_by_key(&task(2).queue, &alone(2).with_key("k").key.expect("it has one"))
            .await
            .expect("read"),
        None
    );
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.done(&leased).await;
    assert_eq!(
        fixture.enqueue(&[alone(3).with_key("k")]).await,
        [Enqueued::Added(task(3).id)],
        "whatever it is about"
    );
}

pub async fn a_refused_task_does_not_move_the_key(fixture: TaskFixture) {
    let again =
        |number| NewTask { payload: Payload::default(), reuse: Reuse::Failed, ..alone(number).with_key("k") };
    fixture.add(&[again(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Fail(why())).await;
    fixture.add(&[alone(2)]).await;
    assert_eq!(fixture.enqueue(&[again(3)]).await, [Enqueued::LockQueueFull(task(2).id)]);
    assert_eq!(fixture.get(1).await.key, again(1).key);
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.done(&leased).await;
    fixture.add(&[again(3)]).await;
    assert_eq!((fixture.get(1).await.key, fixture.get(3).await.key), (None, again(1).key));
}

pub async fn of_sixteen_concurrent_tasks_one_is_within_the_limit(fixture: TaskFixture) {
    let mut tries = tokio::task::JoinSet::new();
    for number in 1..=16 {
        let store = if number % 2 == 0 { fixture.f.one.clone() } else { fixture.f.two.clone() };
        tries.spawn(async move {
            let tasks = store.tasks().expect("it has tasks");
            loop {
                match tasks.enqueue(&[alone(number)]).await {
                    Ok(mut answers) => break answers.remove(0),
                    // On a busy machine a call may exceed its timeout. A task with the same id is added once.
                    Err(error) => assert!(error.is_retryable(), "{error:?}"),
                }
            }
        });
    }
    let answers = tries.join_all().await;
    let added: Vec<_> = answers.iter().filter(|answer| matches!(answer, Enqueued::Added(_))).collect();
    let [Enqueued::Added(head)] = added[..] else { panic!("{added:?}") };
    let refused = answers.iter().filter(|answer| **answer == Enqueued::LockQueueFull(*head)).count();
    assert_eq!(refused, 15);
}

pub async fn a_key_may_cover_a_part_of_the_payload(fixture: TaskFixture) {
    let about = |number, about: &str| NewTask {
        fingerprint: Some(Fingerprint::of(about.as_bytes())),
        ..task(number).with_key("k")
    };
    fixture.add(&[about(1, "one")]).await;
    assert_eq!(
        fixture.enqueue(&[about(2, "one")]).await,
        [Enqueued::Duplicate(task(1).id)],
        "another payload, the same part"
    );
    assert_eq!(fixture.enqueue(&[about(2, "two")]).await, [Enqueued::KeyReused(task(1).id)]);
    assert_eq!(fixture.get(1).await.fingerprint, Fingerprint::of(b"one"));
}

pub async fn the_reason_of_a_cancellation_is_stored(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    fixture.settle(&leased, AttemptResult::Abort(Some(why()))).await;
    let task = fixture.get(1).await;
    assert_eq!((task.state, task.error), (TaskState::Aborted, Some(why())));
}
