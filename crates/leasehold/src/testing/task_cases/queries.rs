//! Queries of tasks and queues, and purging of tasks.

use crate::model::{AttemptResult, FinishedFilter, Payload, Progress, TaskState, Timestamp};
use crate::store::ListTasks;
use crate::testing::task_fixture::{TaskFixture, queue, task, why, worker};

pub async fn an_unknown_task_is_not_found(fixture: TaskFixture) {
    assert!(fixture.tasks().get(task(1).id).await.expect("an answer").is_none());
    assert!(fixture.tasks().queues().await.expect("an answer").is_empty());
    assert!(fixture.tasks().list(&ListTasks::default()).await.expect("an answer").items.is_empty());
}

pub async fn tasks_are_listed_newest_first_in_pages(fixture: TaskFixture) {
    fixture.add(&(1..=7).map(task).collect::<Vec<_>>()).await;
    let mut query = ListTasks { limit: 3, ..ListTasks::default() };
    let mut seen = Vec::new();
    loop {
        let page = fixture.tasks().list(&query).await.expect("an answer");
        seen.push(page.items.len());
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(seen, [3, 3, 1]);
    assert_eq!(fixture.list(&ListTasks::default()).await, [7, 6, 5, 4, 3, 2, 1]);
}

pub async fn a_list_without_payloads_omits_them(fixture: TaskFixture) {
    let mut large = task(2);
    large.payload = Payload::of(&"x".repeat(5000)).expect("a good value in a test");
    fixture.add(&[task(1), large.clone()]).await;
    let leased = fixture.lease(1, 10).await;
    let running = |brief| ListTasks { state: Some(TaskState::Running), brief, ..ListTasks::default() };
    let listed = async |brief| fixture.tasks().list(&running(brief)).await.expect("listed").items;
    for (task, whole) in listed(true).await.iter().zip(leased.iter().rev()) {
        assert_eq!(task.payload, Payload::default());
        assert_eq!((task.id, task.token, &task.queue), (whole.id, whole.token, &whole.queue));
    }
    assert_eq!(listed(false).await[0].payload, large.payload);
}

pub async fn tasks_are_listed_by_state_queue_and_lock(fixture: TaskFixture) {
    fixture
        .add(&[task(1), task(2), task(3).in_queue("other"), task(4).with_lock("l"), task(5).after(9)])
        .await;
    let leased = fixture.lease(7, 1).await.remove(0);
    fixture.done(&leased).await;
    let all = ListTasks::default;
    assert_eq!(fixture.list(&ListTasks { queue: Some(queue("other")), ..all() }).await, [3]);
    assert_eq!(fixture.list(&ListTasks { state: Some(TaskState::Pending), ..all() }).await, [4, 3, 2]);
    assert_eq!(fixture.list(&ListTasks { state: Some(TaskState::Succeeded), ..all() }).await, [1]);
    assert_eq!(fixture.list(&ListTasks { lock: task(4).with_lock("l").lock, ..all() }).await, [4]);
    assert_eq!(fixture.list(&ListTasks { worker: Some(worker(7)), ..all() }).await, [1]);
    let both = ListTasks { queue: Some(queue("q")), state: Some(TaskState::Scheduled), ..all() };
    assert_eq!(fixture.list(&both).await, [5]);
}

/// Also by a client that has never used the queue.
pub async fn a_queue_is_returned_by_its_name(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2), task(3).in_queue("other")]).await;
    let tasks = fixture.f.two.tasks().expect("tasks");
    let found = tasks.queue(&queue("q")).await.expect("an answer").expect("it is there");
    assert_eq!((found.queue, found.counts.get(TaskState::Pending)), (queue("q"), 2));
    assert!(tasks.queue(&queue("nowhere")).await.expect("an answer").is_none());
}

pub async fn counts_follow_every_change(fixture: TaskFixture) {
    let counts = async || {
        let mut counts = Vec::new();
        for state in TaskState::ALL {
            counts.push(fixture.count(state).await);
        }
        counts
    };
    fixture
        .add(&[task(1), task(2), task(3), task(4).after(10), task(5).with_lock("l"), task(6).with_lock("l")])
        .await;
    assert_eq!(counts().await, [1, 1, 4, 0, 0, 0, 0]);
    let leased = fixture.lease(1, 4).await;
    assert_eq!(counts().await, [1, 1, 0, 4, 0, 0, 0]);
    fixture.done(&leased[0]).await;
    fixture.settle(&leased[1], AttemptResult::Fail(why())).await;
    fixture.settle(&leased[2], AttemptResult::Return).await;
    fixture.settle(&leased[3], AttemptResult::Abort(None)).await;
    assert_eq!(counts().await, [1, 0, 2, 0, 1, 1, 1]);
    fixture.f.pass(40_000);
    fixture.tasks().recover(100).await.expect("an answer");
    assert_eq!(counts().await, [0, 0, 3, 0, 1, 1, 1]);
    let queues = fixture.tasks().queues().await.expect("an answer");
    assert_eq!(queues[0].counts.open(), 3);
}

pub async fn finished_tasks_can_be_archived_and_purged(fixture: TaskFixture) {
    fixture.add(&[task(1), task(2), task(3), task(4).in_queue("other")]).await;
    let leased = fixture.lease_from(1, 10, &["q", "other"]).await.tasks;
    fixture.done(&leased[0]).await;
    fixture.settle(&leased[1], AttemptResult::Fail(why())).await;
    fixture.done(&leased[3]).await;
    let ended = fixture.f.clock.now();
    let which = |state, before| FinishedFilter { queue: Some(queue("q")), state, before, limit: 100 };
    assert_eq!(
        fixture.tasks().archive(&which(None, ended)).await.expect("an answer"),
        0,
        "not before it ended"
    );
    let later = Timestamp::from_micros(ended.as_micros() + 1);
    assert_eq!(
        fixture.tasks().archive(&which(Some(TaskState::Succeeded), later)).await.expect("an answer"),
        1
    );
    assert_eq!(
        fixture.tasks().archive(&which(Some(TaskState::Succeeded), later)).await.expect("an answer"),
        0
    );
    assert_eq!(fixture.list(&ListTasks::default()).await, [4, 3, 2]);
    let also = ListTasks { archived: true, ..ListTasks::default() };
    assert_eq!(fixture.list(&also).await, [4, 3, 2, 1]);
    assert_eq!(fixture.count(TaskState::Succeeded).await, 0);
    assert!(fixture.get(1).await.archived);
    assert_eq!(fixture.tasks().purge(&which(None, later)).await.expect("an answer"), 2);
    assert_eq!(fixture.list(&also).await, [4, 3], "what runs and what is of another queue stays");
    assert_eq!(fixture.count(TaskState::Failed).await, 0);
    assert_eq!(fixture.count(TaskState::Running).await, 1);
}

pub async fn tasks_that_finished_together_are_archived_and_purged_by_id(fixture: TaskFixture) {
    fixture.add(&[task(4), task(2), task(5), task(1), task(3)]).await;
    for leased in fixture.lease(1, 10).await.iter().rev() {
        fixture.done(leased).await;
    }
    let later = Timestamp::from_micros(fixture.f.clock.now().as_micros() + 1);
    let which = |limit| FinishedFilter { queue: None, state: None, before: later, limit };
    assert_eq!(fixture.tasks().archive(&which(2)).await.expect("an answer"), 2);
    assert_eq!(fixture.list(&ListTasks::default()).await, [5, 4, 3]);
    assert_eq!(fixture.tasks().purge(&which(3)).await.expect("an answer"), 3);
    assert_eq!(fixture.list(&ListTasks { archived: true, ..ListTasks::default() }).await, [5, 4]);
}

pub async fn a_stored_task_is_returned_unchanged(fixture: TaskFixture) {
    let mut odd =
        task(1).with_key("k'\"; DROP TABLE task; --").with_lock("l/ö").with_priority(-7).attempts(9);
    odd.payload = Payload::new("{\"a\": \"'\\u0000\\n名\", \"n\": 12345678901234567890}")
        .expect("a good value in a test");
    fixture.add(&[odd.clone().in_queue("queue with 'blanks'")]).await;
    let stored = fixture.get(1).await;
    let new = odd.in_queue("queue with 'blanks'");
    assert_eq!(stored, crate::model::Task::new(&new, fixture.f.clock.now()));
    assert!(Progress::default().of.is_none());
}
