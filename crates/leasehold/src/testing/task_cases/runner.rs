//! Tasks that the process that added them will run: if that process dies before they run, they
//! fail.

use crate::model::{AttemptResult, NewTask, Recovered, TaskAnswer, TaskOp, TaskState, Ttl};
use crate::testing::task_fixture::{TaskFixture, numbers, task};

/// Returns a task whose runner must report within 10 seconds that it still waits.
fn with_runner(number: u128) -> NewTask {
    NewTask { runner_ttl: Some(Ttl::from_secs(10)), ..task(number) }
}

fn renew() -> TaskOp {
    TaskOp::RenewRunner(Ttl::from_secs(10))
}

pub async fn a_task_with_a_dead_runner_fails(fixture: TaskFixture) {
    fixture.add(&[with_runner(1), with_runner(2).after(60), task(3)]).await;
    assert_eq!(fixture.get(1).await.runner_deadline, Some(fixture.f.clock.now().plus(Ttl::from_secs(10))));
    fixture.f.pass(9_999);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer"), Recovered::default());
    fixture.f.pass(1);
    let recovered = fixture.tasks().recover(100).await.expect("an answer");
    assert_eq!(recovered, Recovered { failed: 2, ..Recovered::default() });
    let task = fixture.get(1).await;
    assert_eq!((task.state, task.runner_deadline, task.version), (TaskState::Failed, None, 2));
    assert!(task.error.expect("a reason").as_str().contains("runner is dead"));
    assert_eq!(fixture.state(2).await, TaskState::Failed);
    assert_eq!((fixture.count(TaskState::Failed).await, fixture.count(TaskState::Pending).await), (2, 1));
    assert_eq!(fixture.drain().await, [3]);
}

pub async fn a_runner_that_still_waits_keeps_its_task(fixture: TaskFixture) {
    fixture.add(&[with_runner(1), task(2)]).await;
    for _ in 0..3 {
        fixture.f.pass(9_000);
        let (answer, task) = fixture.change(1, renew()).await;
        assert_eq!(answer, TaskAnswer::Done);
        assert_eq!(task.runner_deadline, Some(fixture.f.clock.now().plus(Ttl::from_secs(10))));
        assert_eq!((task.version, task.events.len()), (1, 0), "it is no change");
        assert_eq!(fixture.tasks().recover(100).await.expect("an answer"), Recovered::default());
    }
    let (answer, _) = fixture.change(2, renew()).await;
    assert_eq!(answer, TaskAnswer::Refused(TaskState::Pending), "it was not added for a runner");
    fixture.f.pass(10_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").failed, 1);
    let (answer, _) = fixture.change(1, renew()).await;
    assert_eq!(answer, TaskAnswer::Refused(TaskState::Failed), "its runner learns that it came too late");
}

pub async fn a_dead_runner_blocks_no_other_task(fixture: TaskFixture) {
    let locked = |number| NewTask { lock: task(number).with_lock("l").lock, ..with_runner(number) };
    fixture.add(&[locked(1), locked(2), locked(3), task(4).with_lock("l")]).await;
    fixture.f.pass(9_000);
    fixture.change(3, renew()).await;
    fixture.f.pass(1_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").failed, 2);
    let leased = fixture.lease(1, 10).await;
    assert_eq!(numbers(&leased), [3]);
    fixture.done(&leased[0]).await;
    assert_eq!(fixture.drain().await, [4]);
}

pub async fn the_deadline_of_a_runner_counts_only_while_its_task_waits(fixture: TaskFixture) {
    fixture.add(&[with_runner(1), with_runner(2)]).await;
    let leased = fixture.lease(1, 2).await;
    fixture.f.pass(20_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer"), Recovered::default(), "they run");
    fixture.done(&leased[0]).await;
    assert_eq!(fixture.get(1).await.runner_deadline, None);
    fixture.settle(&leased[1], AttemptResult::Return).await;
    // Engines that look for deadlines from their last check on must find it.
    assert_eq!(fixture.get(2).await.runner_deadline, Some(fixture.f.clock.now()));
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").failed, 1, "it waits again");
    assert_eq!(fixture.state(2).await, TaskState::Failed);
}

/// The failure comes before the start time: an engine that expects due tasks must not mark the task
/// as ready first.
pub async fn a_scheduled_task_with_a_dead_runner_never_becomes_ready(fixture: TaskFixture) {
    fixture.add(&[task(1).after(1), with_runner(2).after(16)]).await;
    let created = fixture.f.clock.now();
    fixture.f.pass(2_000);
    let leased = fixture.lease(1, 1).await;
    assert_eq!(numbers(&leased), [1]);
    fixture.done(&leased[0]).await;
    fixture.f.pass(30_000);
    assert!(fixture.lease(1, 2).await.is_empty(), "its runner is dead");
    let task = fixture.get(2).await;
    assert_eq!((task.state, task.ready_at), (TaskState::Failed, created));
}

pub async fn leases_and_runners_share_the_limit_of_a_recovery(fixture: TaskFixture) {
    fixture.add(&[task(1), with_runner(2), with_runner(3)]).await;
    assert_eq!(numbers(&fixture.lease(1, 1).await), [1]);
    fixture.f.pass(60_000);
    let limited = fixture.tasks().recover(2).await.expect("an answer");
    assert_eq!(limited, Recovered { failed: 2, ..Recovered::default() }, "the oldest first");
    assert_eq!(fixture.tasks().recover(2).await.expect("an answer").expired(), 1);
    assert_eq!(fixture.tasks().recover(2).await.expect("an answer"), Recovered::default());
}
