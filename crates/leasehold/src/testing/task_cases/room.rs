//! Tasks that are added only if the number of tasks with their lock is within a limit.

use crate::model::{AttemptResult, Enqueued, Fingerprint, NewTask, Payload, Reuse, TaskState};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, numbers, task, why};

fn alone(number: u128) -> NewTask {
    task(number).with_lock("l").with_room(0)
}

pub async fn where_nobody_may_be_in_the_way_one_is_added(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[alone(1)]).await;
    assert_eq!(shop.enqueue(&[alone(2)]).await, [Enqueued::NoRoom(task(1).id)], "it is next to run");
    assert_eq!(shop.enqueue(&[alone(1)]).await, [Enqueued::Added(task(1).id)], "it is there already");
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1]);
    assert_eq!(shop.enqueue(&[alone(2)]).await, [Enqueued::NoRoom(task(1).id)], "it runs");
    let elsewhere = [alone(3).in_queue("other"), task(4).with_lock("m").with_room(0), task(5).with_room(0)];
    let [other_queue, other_lock, no_lock] = &shop.enqueue(&elsewhere).await[..] else {
        panic!("three answers")
    };
    assert_eq!(*other_queue, Enqueued::Added(task(3).id), "room is counted within a queue");
    assert_eq!((*other_lock, *no_lock), (Enqueued::Added(task(4).id), Enqueued::Added(task(5).id)));
    shop.done(&leased[0]).await;
    shop.add(&[alone(2)]).await;
    assert_eq!(shop.state(2).await, TaskState::Pending);
}

pub async fn a_line_has_so_many_places(f: Fixture) {
    let shop = Shop::from(f);
    let one_of = |number| task(number).with_lock("l").with_room(2);
    shop.add(&[one_of(1), one_of(2), one_of(3)]).await;
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [1]);
    assert_eq!(shop.enqueue(&[one_of(4)]).await, [Enqueued::NoRoom(task(1).id)]);
    shop.add(&[task(5).with_lock("l")]).await;
    shop.done(&leased[0]).await;
    assert_eq!(shop.enqueue(&[one_of(4)]).await, [Enqueued::NoRoom(task(2).id)], "2, 3 and 5 are there");
    shop.f.pass(1);
    shop.add(&[one_of(4).with_room(3)]).await;
    for expected in [2, 3, 5, 4] {
        let leased = shop.lease(1, 10).await;
        assert_eq!(numbers(&leased), [expected], "first come, first served");
        shop.done(&leased[0]).await;
    }
}

pub async fn room_is_counted_within_a_batch(f: Fixture) {
    let shop = Shop::from(f);
    let batch =
        [alone(1), alone(2), task(3).with_lock("l").with_room(1), task(4).with_lock("l").with_room(1)];
    let head = task(1).id;
    assert_eq!(
        shop.enqueue(&batch).await,
        [Enqueued::Added(head), Enqueued::NoRoom(head), Enqueued::Added(task(3).id), Enqueued::NoRoom(head)]
    );
}

pub async fn what_waits_for_its_time_takes_no_room(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).with_lock("l").after(5), alone(2)]).await;
    assert_eq!(
        shop.enqueue(&[alone(3).after(5)]).await,
        [Enqueued::NoRoom(task(2).id)],
        "the room is asked for now"
    );
    assert_eq!(numbers(&shop.lease(1, 10).await), [2]);
}

pub async fn a_key_counts_before_room(f: Fixture) {
    let shop = Shop::from(f);
    let same = |number| NewTask { payload: Payload::default(), ..alone(number).with_key("k") };
    shop.add(&[same(1)]).await;
    assert_eq!(shop.enqueue(&[same(2)]).await, [Enqueued::Duplicate(task(1).id)]);
    assert_eq!(shop.enqueue(&[alone(2).with_key("k")]).await, [Enqueued::KeyReused(task(1).id)]);
}

pub async fn a_refused_task_takes_no_key(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[alone(1)]).await;
    assert_eq!(shop.enqueue(&[alone(2).with_key("k")]).await, [Enqueued::NoRoom(task(1).id)]);
    assert_eq!(
        shop.tasks()
            .keyed(&task(2).queue, &alone(2).with_key("k").key.expect("it has one"))
            .await
            .expect("read"),
        None
    );
    let leased = shop.lease(1, 1).await.remove(0);
    shop.done(&leased).await;
    assert_eq!(
        shop.enqueue(&[alone(3).with_key("k")]).await,
        [Enqueued::Added(task(3).id)],
        "whatever it is about"
    );
}

pub async fn a_refused_task_leaves_the_key_where_it_is(f: Fixture) {
    let shop = Shop::from(f);
    let again =
        |number| NewTask { payload: Payload::default(), reuse: Reuse::Failed, ..alone(number).with_key("k") };
    shop.add(&[again(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.settle(&leased, AttemptResult::Fail(why())).await;
    shop.add(&[alone(2)]).await;
    assert_eq!(shop.enqueue(&[again(3)]).await, [Enqueued::NoRoom(task(2).id)]);
    assert_eq!(shop.get(1).await.key, again(1).key);
    let leased = shop.lease(1, 1).await.remove(0);
    shop.done(&leased).await;
    shop.add(&[again(3)]).await;
    assert_eq!((shop.get(1).await.key, shop.get(3).await.key), (None, again(1).key));
}

pub async fn of_sixteen_at_once_one_finds_room(f: Fixture) {
    let shop = Shop::from(f);
    let mut tries = tokio::task::JoinSet::new();
    for number in 1..=16 {
        let store = if number % 2 == 0 { shop.f.one.clone() } else { shop.f.two.clone() };
        tries.spawn(async move {
            store.tasks().expect("it has tasks").enqueue(&[alone(number)]).await.expect("answered").remove(0)
        });
    }
    let answers = tries.join_all().await;
    let added: Vec<_> = answers.iter().filter(|answer| matches!(answer, Enqueued::Added(_))).collect();
    let [Enqueued::Added(head)] = added[..] else { panic!("{added:?}") };
    let refused = answers.iter().filter(|answer| **answer == Enqueued::NoRoom(*head)).count();
    assert_eq!(refused, 15);
}

pub async fn a_key_may_stand_for_a_part_of_the_payload(f: Fixture) {
    let shop = Shop::from(f);
    let about = |number, about: &str| NewTask {
        fingerprint: Some(Fingerprint::of(about.as_bytes())),
        ..task(number).with_key("k")
    };
    shop.add(&[about(1, "one")]).await;
    assert_eq!(
        shop.enqueue(&[about(2, "one")]).await,
        [Enqueued::Duplicate(task(1).id)],
        "another payload, the same part"
    );
    assert_eq!(shop.enqueue(&[about(2, "two")]).await, [Enqueued::KeyReused(task(1).id)]);
    assert_eq!(shop.get(1).await.fingerprint, Fingerprint::of(b"one"));
}

pub async fn why_it_was_stopped_is_kept(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1)]).await;
    let leased = shop.lease(1, 1).await.remove(0);
    shop.settle(&leased, AttemptResult::Abort(Some(why()))).await;
    let task = shop.get(1).await;
    assert_eq!((task.state, task.error), (TaskState::Aborted, Some(why())));
}
