//! Tasks that the process that added them will run: if that process dies before they run, they
//! fail.

use crate::model::{AttemptResult, NewTask, Recovered, TaskAnswer, TaskOp, TaskState, Ttl};
use crate::testing::Fixture;
use crate::testing::shop::{Shop, numbers, task};

/// Returns a task whose runner must report within 10 seconds that it still waits.
fn wanted(number: u128) -> NewTask {
    NewTask { wanted: Some(Ttl::from_secs(10)), ..task(number) }
}

fn want() -> TaskOp {
    TaskOp::Want(Ttl::from_secs(10))
}

pub async fn a_task_whose_runner_is_gone_has_failed(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[wanted(1), wanted(2).after(60), task(3)]).await;
    assert_eq!(shop.get(1).await.wanted_until, Some(shop.f.clock.now().plus(Ttl::from_secs(10))));
    shop.f.pass(9_999);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer"), Recovered::default());
    shop.f.pass(1);
    let recovered = shop.tasks().recover(100).await.expect("an answer");
    assert_eq!(recovered, Recovered { failed: 2, ..Recovered::default() });
    let task = shop.get(1).await;
    assert_eq!((task.state, task.wanted_until, task.version), (TaskState::Failed, None, 2));
    assert!(task.error.expect("a reason").as_str().contains("runner is gone"));
    assert_eq!(shop.state(2).await, TaskState::Failed);
    assert_eq!((shop.count(TaskState::Failed).await, shop.count(TaskState::Pending).await), (2, 1));
    assert_eq!(shop.drain().await, [3]);
}

pub async fn a_runner_that_still_waits_keeps_its_task(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[wanted(1), task(2)]).await;
    for _ in 0..3 {
        shop.f.pass(9_000);
        let (answer, task) = shop.change(1, want()).await;
        assert_eq!(answer, TaskAnswer::Done);
        assert_eq!(task.wanted_until, Some(shop.f.clock.now().plus(Ttl::from_secs(10))));
        assert_eq!((task.version, task.events.len()), (1, 0), "it is no change");
        assert_eq!(shop.tasks().recover(100).await.expect("an answer"), Recovered::default());
    }
    let (answer, _) = shop.change(2, want()).await;
    assert_eq!(answer, TaskAnswer::Refused(TaskState::Pending), "it was not added for a runner");
    shop.f.pass(10_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").failed, 1);
    let (answer, _) = shop.change(1, want()).await;
    assert_eq!(answer, TaskAnswer::Refused(TaskState::Failed), "its runner learns that it came too late");
}

pub async fn a_runner_that_is_gone_is_in_nobodys_way(f: Fixture) {
    let shop = Shop::from(f);
    let locked = |number| NewTask { lock: task(number).with_lock("l").lock, ..wanted(number) };
    shop.add(&[locked(1), locked(2), locked(3), task(4).with_lock("l")]).await;
    shop.f.pass(9_000);
    shop.change(3, want()).await;
    shop.f.pass(1_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").failed, 2);
    let leased = shop.lease(1, 10).await;
    assert_eq!(numbers(&leased), [3]);
    shop.done(&leased[0]).await;
    assert_eq!(shop.drain().await, [4]);
}

pub async fn the_deadline_of_a_runner_counts_only_while_its_task_waits(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[wanted(1), wanted(2)]).await;
    let leased = shop.lease(1, 2).await;
    shop.f.pass(20_000);
    assert_eq!(shop.tasks().recover(100).await.expect("an answer"), Recovered::default(), "they run");
    shop.done(&leased[0]).await;
    assert_eq!(shop.get(1).await.wanted_until, None);
    shop.settle(&leased[1], AttemptResult::Return).await;
    assert_eq!(shop.tasks().recover(100).await.expect("an answer").failed, 1, "it waits again");
    assert_eq!(shop.state(2).await, TaskState::Failed);
}

/// The failure comes before the start time: an engine that expects due tasks must not mark the task
/// as ready first.
pub async fn a_scheduled_task_whose_runner_is_gone_never_becomes_ready(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1).after(1), wanted(2).after(16)]).await;
    let created = shop.f.clock.now();
    shop.f.pass(2_000);
    let leased = shop.lease(1, 1).await;
    assert_eq!(numbers(&leased), [1]);
    shop.done(&leased[0]).await;
    shop.f.pass(30_000);
    assert!(shop.lease(1, 2).await.is_empty(), "its runner is gone");
    let task = shop.get(2).await;
    assert_eq!((task.state, task.ready_at), (TaskState::Failed, created));
}

pub async fn leases_and_runners_share_the_limit_of_a_recovery(f: Fixture) {
    let shop = Shop::from(f);
    shop.add(&[task(1), wanted(2), wanted(3)]).await;
    assert_eq!(numbers(&shop.lease(1, 1).await), [1]);
    shop.f.pass(60_000);
    let limited = shop.tasks().recover(2).await.expect("an answer");
    assert_eq!(limited, Recovered { failed: 2, ..Recovered::default() }, "the oldest first");
    assert_eq!(shop.tasks().recover(2).await.expect("an answer").expired(), 1);
    assert_eq!(shop.tasks().recover(2).await.expect("an answer"), Recovered::default());
}
