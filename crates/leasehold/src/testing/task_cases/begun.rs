//! When an attempt counts: prefetched tasks, expired leases, and tasks that run alone.

use crate::model::{
    AttemptResult, HeldTask, LockName, NewTask, Progress, Task, TaskEventKind, TaskState, Ttl,
};
use crate::testing::task_fixture::{TaskFixture, info, numbers, task, why};

pub async fn a_task_that_starts_at_once_has_begun(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let leased = fixture.lease(1, 1).await.remove(0);
    assert!(leased.begun && fixture.get(1).await.begun);
    fixture.done(&leased).await;
    assert!(!fixture.get(1).await.begun, "it is set only while the task is leased");
}

pub async fn a_task_that_was_never_started_uses_no_attempt(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2)]).await;
    let leased = fixture.lease_ahead(1, 2, 1).await;
    assert_eq!((numbers(&leased.tasks), leased.more), (vec![1, 2], false));
    assert_eq!(
        leased.tasks.iter().map(|task| (task.begun, task.attempt)).collect::<Vec<_>>(),
        [(true, 1), (false, 1)]
    );
    fixture.f.advance_past(30_000);
    assert_eq!(fixture.tasks().recover(100).await.expect("an answer").returned, 2);
    let (started, ahead) = (fixture.get(1).await, fixture.get(2).await);
    assert_eq!((started.attempt, started.expiries, started.error.is_some()), (1, 1, true));
    assert_eq!((ahead.attempt, ahead.expiries, ahead.error.is_some()), (0, 0, false));
    assert_eq!(ahead.state, TaskState::Pending, "it is available at once");
    assert_eq!((ahead.events[0].kind, ahead.events[0].attempt), (TaskEventKind::Expired, 1));
    assert!(ahead.token > leased.tasks[1].token);
}

pub async fn a_crash_fails_no_task_that_was_never_started(fixture: TaskFixture) {
    fixture.add(&(1..=20).map(|number| task(number).attempts(2)).collect::<Vec<_>>()).await;
    for _ in 0..4 {
        // The first task may run; the others are prefetched as far as permitted.
        let leased = fixture.lease_ahead(1, 20, 1).await.tasks;
        assert!(leased.iter().filter(|task| task.begun).count() <= 1);
        fixture.f.advance_past(60_000);
        fixture.tasks().recover(100).await.expect("an answer");
    }
    assert!(fixture.count(TaskState::Failed).await <= 2, "only what was started twice has failed");
}

/// A worker that waits for the lock of a task dies. The task has one attempt, and was not started.
pub async fn a_task_that_waits_for_its_lock_uses_no_attempt(fixture: TaskFixture) {
    let locked = |number: u128| NewTask {
        lock: Some(LockName::new(format!("l/{number}")).expect("a name")),
        ..task(number)
    };
    fixture.add(&[locked(1).attempts(1), locked(2).attempts(1), task(3).attempts(1)]).await;
    let leased = fixture.lease_and_wait(1, 3).await;
    assert_eq!(numbers(&leased), [1, 2, 3]);
    assert_eq!(leased.iter().map(|task| task.begun).collect::<Vec<_>>(), [false, false, true]);
    // The second one gets its lock, and its start is reported.
    fixture.beat(&leased[1]).await;
    fixture.f.advance_past(31_000);
    fixture.tasks().recover(100).await.expect("an answer");
    let waited = fixture.get(1).await;
    assert_eq!((waited.state, waited.attempt, waited.expiries), (TaskState::Pending, 0, 0));
    assert_eq!([fixture.state(2).await, fixture.state(3).await], [TaskState::Failed; 2]);
    // Without a worker that waits for locks, the attempt counts at once.
    assert!(fixture.lease(2, 1).await.remove(0).begun);
}

/// A task that may crash its worker waits for its lock, too.
pub async fn a_task_that_runs_alone_starts_once_it_has_its_lock(fixture: TaskFixture) {
    let lock = Some(LockName::new("l").expect("a name"));
    fixture.add(&[NewTask { lock, ..task(1) }.attempts(2)]).await;
    fixture.lease(1, 1).await;
    fixture.f.advance_past(31_000);
    let leased = fixture.lease_and_wait(1, 1).await.remove(0);
    assert!(leased.runs_alone() && !leased.begun, "{leased:?}");
    fixture.f.advance_past(31_000);
    let again = fixture.lease_and_wait(1, 1).await.remove(0);
    assert_eq!((again.attempt, again.expiries), (2, 1), "the attempt did not count");
}

pub async fn a_heartbeat_reports_that_a_task_was_started(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2), task(3)]).await;
    let leased = fixture.lease_ahead(1, 3, 0).await.tasks;
    let held = |task: &Task| HeldTask { begun: false, ..HeldTask::new(task.id, task.token) };
    let progress = Some(Progress::of(1, 2));
    let beats = [
        held(&leased[0]),
        HeldTask::new(leased[1].id, leased[1].token),
        HeldTask { progress, ..held(&leased[2]) },
    ];
    fixture.tasks().heartbeat(&info(1), &beats, Ttl::from_secs(30)).await.expect("heard");
    let begun = [fixture.get(1).await.begun, fixture.get(2).await.begun, fixture.get(3).await.begun];
    assert_eq!(begun, [false, true, true], "progress is only made by what was started");
    fixture.tasks().heartbeat(&info(1), &[held(&leased[1])], Ttl::from_secs(30)).await.expect("heard");
    assert!(fixture.get(2).await.begun, "what was started stays so");
    fixture.f.advance_past(30_000);
    fixture.tasks().recover(100).await.expect("an answer");
    let attempts = [fixture.get(1).await.attempt, fixture.get(2).await.attempt, fixture.get(3).await.attempt];
    assert_eq!(attempts, [0, 1, 1]);
}

pub async fn a_settled_task_counts_as_started(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2)]).await;
    let leased = fixture.lease_ahead(1, 2, 0).await.tasks;
    fixture.done(&leased[0]).await;
    fixture.settle(&leased[1], AttemptResult::Retry(why(), Some(Ttl::from_secs(1)))).await;
    assert_eq!((fixture.get(1).await.attempt, fixture.get(2).await.attempt), (1, 1));
}

pub async fn only_fresh_tasks_with_attempts_left_are_prefetched(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(1), task(2), task(3)]).await;
    let leased = fixture.lease_ahead(1, 10, 0).await;
    assert_eq!((numbers(&leased.tasks), leased.more), (vec![], true), "a single attempt is not taken ahead");
    let leased = fixture.lease_ahead(1, 10, 1).await;
    assert_eq!((numbers(&leased.tasks), leased.more), (vec![1, 2, 3], false));
    assert_eq!(leased.tasks.iter().map(|task| task.begun).collect::<Vec<_>>(), [true, false, false]);
    fixture.done(&leased.tasks[0]).await;
    fixture.done(&leased.tasks[1]).await;
    // A task that was leased before is not prefetched either.
    fixture.settle(&leased.tasks[2], AttemptResult::Return).await;
    let leased = fixture.lease_ahead(1, 10, 0).await;
    assert_eq!((numbers(&leased.tasks), leased.more), (vec![], true));
    let leased = fixture.lease_ahead(1, 10, 1).await;
    assert_eq!((numbers(&leased.tasks), leased.more), (vec![3], false));
}

pub async fn a_lease_call_takes_expired_tasks(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2).in_queue("other")]).await;
    let first = fixture.lease(7, 1).await.remove(0);
    fixture.lease_from(7, 1, &["other"]).await;
    fixture.f.advance_past(30_500);
    // No process has recovered the task.
    let leased = fixture.lease(8, 1).await;
    assert_eq!((numbers(&leased), leased[0].attempt, leased[0].expiries), (vec![1], 2, 1));
    assert!(leased[0].token > first.token);
    assert_eq!(numbers(&fixture.lease_from(8, 1, &["other"]).await.tasks), [2]);
}

pub async fn a_lease_call_takes_expired_tasks_that_never_started_at_once(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    assert_eq!(fixture.lease_ahead(7, 1, 0).await.tasks.len(), 1);
    fixture.f.pass(29_999);
    assert_eq!(fixture.lease(8, 1).await, []);
    fixture.f.advance_past(1);
    let leased = fixture.lease(8, 1).await;
    assert_eq!((numbers(&leased), leased[0].attempt, leased[0].begun), (vec![1], 1, true));
}

pub async fn after_a_second_lost_lease_the_usual_pause_applies(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    let mut ends = None;
    for _ in 0..2 {
        ends = fixture.lease(1, 1).await.remove(0).lease_expires_at;
        fixture.f.advance_past(30_000);
        fixture.tasks().recover(100).await.expect("an answer");
        fixture.f.pass(500);
    }
    let (stored, ends) = (fixture.get(1).await, ends.expect("it was leased"));
    assert_eq!((stored.attempt, stored.expiries), (2, 2));
    // Two seconds after the second attempt, plus or minus a quarter.
    assert!(stored.run_at >= ends.plus(Ttl::from_millis(1500)), "{} {}", stored.run_at, ends);
    assert!(stored.run_at <= ends.plus(Ttl::from_millis(2500)), "{} {}", stored.run_at, ends);
}

pub async fn a_heartbeat_resets_the_count_of_lost_leases(fixture: TaskFixture) {
    fixture.add(&[task(1)]).await;
    fixture.lease(1, 1).await;
    fixture.f.advance_past(30_500);
    let leased = fixture.lease(1, 1).await.remove(0);
    assert_eq!(leased.expiries, 1);
    fixture.settle(&leased, AttemptResult::Retry(why(), Some(Ttl::from_secs(1)))).await;
    assert_eq!(fixture.get(1).await.expiries, 0);
}

pub async fn a_task_that_lost_its_workers_runs_alone(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2)]).await;
    for _ in 0..2 {
        assert_eq!(fixture.lease(1, 10).await.len(), 2);
        fixture.f.advance_past(30_000);
        fixture.tasks().recover(100).await.expect("an answer");
        fixture.f.pass(10_000);
    }
    fixture.add(&[task(3)]).await;
    let mut all = Vec::new();
    for _ in 0..3 {
        let leased = fixture.lease(1, 10).await;
        assert_eq!(leased.len(), 1, "{leased:?}");
        all.extend(leased);
    }
    all.sort_by_key(|task| task.id);
    assert_eq!(all.iter().map(Task::runs_alone).collect::<Vec<_>>(), [true, true, false]);
    assert!(all.iter().all(|task| task.begun));
    assert_eq!((all[0].expiries, all[0].attempt), (2, 3));
}

pub async fn a_task_that_runs_alone_is_not_started_beside_others(fixture: TaskFixture) {
    fixture.add(&[task(1).attempts(2)]).await;
    fixture.lease(1, 1).await;
    fixture.f.advance_past(30_500);
    // The worker has other tasks: it holds this one until they are done, and then reports its
    // start.
    let leased = fixture.lease_ahead(1, 5, 5).await.tasks.remove(0);
    assert!(leased.runs_alone() && !leased.begun, "{leased:?}");
    fixture.beat(&leased).await;
    assert!(fixture.get(1).await.begun);
    fixture.f.advance_past(30_000);
    fixture.tasks().recover(100).await.expect("an answer");
    assert_eq!(fixture.state(1).await, TaskState::Failed, "it was its last attempt");
}

/// One task kills every worker that starts it. Seven others run beside it.
pub async fn a_poison_task_does_not_fail_its_neighbours(fixture: TaskFixture) {
    const POISON: u128 = 4;
    fixture.add(&(1..=8).map(|number| task(number).attempts(3)).collect::<Vec<_>>()).await;
    let mut rounds = 0;
    loop {
        rounds += 1;
        assert!(rounds < 40, "it does not end");
        let leased = fixture.lease(rounds, 8).await;
        if numbers(&leased).contains(&POISON) {
            // The worker dies with all its tasks.
            fixture.f.advance_past(30_000);
        } else {
            for task in &leased {
                fixture.done(task).await;
            }
        }
        fixture.tasks().recover(100).await.expect("an answer");
        fixture.f.pass(10_000);
        if leased.is_empty() {
            break;
        }
    }
    for number in 1..=8 {
        let expected = if number == POISON { TaskState::Failed } else { TaskState::Succeeded };
        assert_eq!(fixture.state(number).await, expected, "task {number}");
    }
    assert_eq!(fixture.get(POISON).await.attempt, 3);
}
