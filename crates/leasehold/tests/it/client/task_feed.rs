//! Events of tasks as they happen, on every engine with tasks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::client::{TaskFeed, TaskFeedItem, TaskHistoryView};
use leasehold::model::{
    AttemptResult, FinishedFilter, Holder, LeaseTasks, Message, NewTask, Payload, QueueName, Reason, Settle,
    Task, TaskHistoryKind, TaskId, Timestamp, Ttl, WorkerId,
};
use leasehold::store::memory::MemoryStore;
use leasehold::store::{Clock, ListTasks};
use leasehold::{Leasehold, StartResult};
use uuid::Uuid;

use super::support::{faulty, memory, until};
use super::workflows::fixture::Lab;

/// Defines one test per case; the argument is the path of an `async fn() -> Lab`.
macro_rules! feed_cases {
    ($lab:path) => {
        crate::client::task_feed::feed_cases! { @tests $lab;
            every_event_is_reported_once
            tasks_that_finish_between_two_polls_are_reported_completely
            tasks_that_were_open_before_are_followed
            tasks_that_wait_for_a_lock_are_followed
            interventions_are_reported
            a_feed_of_a_queue_has_no_other_tasks
            the_history_has_the_events_of_the_feed
        }
    };
    (@tests $lab:path; $($case:ident)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $case() {
            crate::client::task_feed::$case($lab().await).await;
        })+
    };
}
pub(crate) use feed_cases;

mod on_memory {
    super::feed_cases!(crate::client::workflows::fixture::memory);
}

mod on_sqlite {
    super::feed_cases!(crate::client::workflows::fixture::sqlite);
}

fn new_task() -> NewTask {
    let id = TaskId::from_uuid(Uuid::now_v7());
    let mut new = NewTask::new(id, QueueName::new("mail").unwrap(), Payload::of("hello").unwrap());
    new.retries.attempts = 2;
    new
}

async fn add(leasehold: &Leasehold, new: Vec<NewTask>) {
    for added in leasehold.enqueue_new(new).await.unwrap() {
        added.unwrap();
    }
}

fn worker() -> WorkerId {
    WorkerId::from_uuid(Uuid::from_u128(7))
}

/// Leases exactly this number of tasks, and waits until they are due.
async fn lease(leasehold: &Leasehold, count: usize) -> Vec<Task> {
    let store = leasehold.store();
    let leased = std::sync::Mutex::new(Vec::new());
    until("enough tasks are due", async || {
        let left = count - leased.lock().unwrap().len();
        let most = u32::try_from(left).unwrap();
        let queues = vec![QueueName::new("mail").unwrap()];
        let request = LeaseTasks::new(worker(), queues, most, Ttl::from_secs(30));
        let tasks = store.tasks().unwrap().lease(&request).await.unwrap().tasks;
        let mut leased = leased.lock().unwrap();
        leased.extend(tasks);
        leased.len() == count
    })
    .await;
    leased.into_inner().unwrap()
}

async fn settle(leasehold: &Leasehold, tasks: &[Task], verdict: &AttemptResult) {
    let settle = |task: &Task| Settle { id: task.id, token: task.token, result: verdict.clone() };
    let all: Vec<_> = tasks.iter().map(settle).collect();
    for part in all.chunks(100) {
        leasehold.store().tasks().unwrap().settle(part).await.unwrap();
    }
}

fn done() -> AttemptResult {
    AttemptResult::Done(None)
}

fn failed() -> AttemptResult {
    AttemptResult::Retry(Message::new("no route to host"), Some(Ttl::from_millis(1)))
}

async fn events(feed: &mut TaskFeed) -> Vec<TaskHistoryView> {
    let items = feed.poll().await.unwrap().into_iter();
    items
        .map(|item| match item {
            TaskFeedItem::Event(event) => event,
            other => panic!("a notice: {other:?}"),
        })
        .collect()
}

async fn kinds(feed: &mut TaskFeed) -> Vec<String> {
    events(feed).await.iter().map(|event| event.kind.to_string()).collect()
}

/// Returns the kinds of the events of each task, in their order.
async fn kinds_by_task(feed: &mut TaskFeed) -> BTreeMap<TaskId, Vec<TaskHistoryKind>> {
    let mut by_task = BTreeMap::<_, Vec<_>>::new();
    let events = events(feed).await;
    assert!(events.is_sorted_by_key(|event| event.at));
    for event in events {
        by_task.entry(event.task).or_default().push(event.kind);
    }
    by_task
}

pub(crate) async fn every_event_is_reported_once(lab: Lab) {
    let mut feed = lab.two.tasks().unwrap().follow("mail").await.unwrap();
    assert_eq!(kinds(&mut feed).await, [""; 0]);
    let new = new_task();
    add(&lab.one, vec![new.clone()]).await;
    assert_eq!(kinds(&mut feed).await, ["added"]);
    let leased = lease(&lab.one, 1).await;
    let started = events(&mut feed).await.remove(0);
    assert_eq!((started.kind, started.attempt, started.task), (TaskHistoryKind::Started, 1, new.id));
    assert_eq!((started.worker, started.token), (Some(worker()), leased[0].token));
    assert_eq!(kinds(&mut feed).await, [""; 0]);
    settle(&lab.one, &leased, &failed()).await;
    let retried = events(&mut feed).await.remove(0);
    assert_eq!((retried.kind, retried.attempt), (TaskHistoryKind::AttemptFailed, 1));
    assert_eq!(retried.reason.unwrap().as_str(), "no route to host");
    assert!(retried.after_seconds.is_some_and(|seconds| seconds >= 0.0));
    let leased = lease(&lab.one, 1).await;
    settle(&lab.one, &leased, &failed()).await;
    assert_eq!(kinds(&mut feed).await, ["started", "attempt_failed", "failed"]);
    assert_eq!(kinds(&mut feed).await, [""; 0]);
}

pub(crate) async fn tasks_that_finish_between_two_polls_are_reported_completely(lab: Lab) {
    use TaskHistoryKind::{Added, Started, Succeeded};
    let mut feed = lab.two.tasks().unwrap().follow_all().await.unwrap();
    for round in 0..3 {
        let new: Vec<_> = (0..120).map(|_| new_task()).collect();
        let ids: Vec<_> = new.iter().map(|new| new.id).collect();
        add(&lab.one, new).await;
        let leased = lease(&lab.one, ids.len()).await;
        settle(&lab.one, &leased, &done()).await;
        let seen = kinds_by_task(&mut feed).await;
        assert_eq!(seen.len(), ids.len(), "round {round}");
        assert!(ids.iter().all(|id| seen[id] == [Added, Started, Succeeded]), "round {round}: {seen:?}");
    }
    assert_eq!(kinds(&mut feed).await, [""; 0]);
}

pub(crate) async fn tasks_that_were_open_before_are_followed(lab: Lab) {
    use TaskHistoryKind::{Started, Succeeded};
    add(&lab.one, (0..150).map(|_| new_task()).collect()).await;
    let running = lease(&lab.one, 20).await;
    let mut feed = lab.two.tasks().unwrap().follow("mail").await.unwrap();
    assert_eq!(kinds(&mut feed).await, [""; 0], "what was before is not reported");
    let others = lease(&lab.one, 130).await;
    settle(&lab.one, &running, &done()).await;
    settle(&lab.one, &others, &done()).await;
    let seen = kinds_by_task(&mut feed).await;
    assert!(running.iter().all(|task| seen[&task.id] == [Succeeded]), "{seen:?}");
    assert!(others.iter().all(|task| seen[&task.id] == [Started, Succeeded]), "{seen:?}");
    assert_eq!((seen.len(), kinds(&mut feed).await.len()), (150, 0));
}

pub(crate) async fn tasks_that_wait_for_a_lock_are_followed(lab: Lab) {
    let with_lock = || new_task().with_lock("db");
    add(&lab.one, (0..60).map(|_| with_lock()).collect()).await;
    let mut feed = lab.two.tasks().unwrap().follow("mail").await.unwrap();
    add(&lab.one, (0..2).map(|_| with_lock()).collect()).await;
    assert_eq!(kinds(&mut feed).await, ["added", "added"]);
    for _ in 0..62 {
        let leased = lease(&lab.one, 1).await;
        settle(&lab.one, &leased, &done()).await;
    }
    let seen = kinds_by_task(&mut feed).await;
    assert_eq!(seen.len(), 62);
    assert!(seen.values().all(|kinds| *kinds == [TaskHistoryKind::Started, TaskHistoryKind::Succeeded]));
    assert_eq!(kinds(&mut feed).await, [""; 0]);
}

pub(crate) async fn interventions_are_reported(lab: Lab) {
    let (tasks, ada) = (lab.one.tasks().unwrap(), Holder::new("ada").unwrap());
    let mut feed = lab.two.tasks().unwrap().follow("mail").await.unwrap();
    let new = new_task();
    add(&lab.one, vec![new.clone()]).await;
    tasks.cancel(new.id, ada.clone(), Some(Reason::new("wrong file").unwrap())).await.unwrap();
    assert_eq!(kinds(&mut feed).await, ["added", "cancel_requested", "aborted"]);
    tasks.retry(new.id, ada.clone()).await.unwrap();
    let retried = events(&mut feed).await;
    assert_eq!((retried.len(), retried[0].kind), (1, TaskHistoryKind::Retried));
    assert_eq!(retried[0].by, Some(ada.clone()));
    let leased = lease(&lab.one, 1).await;
    tasks.cancel(new.id, ada.clone(), None).await.unwrap();
    settle(&lab.one, &leased, &AttemptResult::Abort(None)).await;
    assert_eq!(kinds(&mut feed).await, ["started", "cancel_requested", "aborted"]);
    // A task that is deleted before the next poll has no more events.
    let other = new_task();
    add(&lab.one, vec![other.clone()]).await;
    assert_eq!(kinds(&mut feed).await, ["added"]);
    tasks.cancel(other.id, ada, None).await.unwrap();
    let later = lab.one.now().await.unwrap().plus(Ttl::from_secs(3600));
    let finished = FinishedFilter { queue: None, state: None, before: later, limit: 100 };
    assert_eq!(lab.one.store().tasks().unwrap().purge(&finished).await.unwrap(), 2);
    assert_eq!(kinds(&mut feed).await, [""; 0]);
}

pub(crate) async fn a_feed_of_a_queue_has_no_other_tasks(lab: Lab) {
    let tasks = lab.two.tasks().unwrap();
    let mut mail = tasks.follow("mail").await.unwrap();
    let mut deploy = tasks.follow("workflow/deploy").await.unwrap();
    let mut all = tasks.follow_all().await.unwrap();
    add(&lab.one, (0..60).map(|_| new_task().in_queue("other")).collect()).await;
    let StartResult::Started(execution) = lab.deploy().start("v1").await.unwrap() else { panic!("locked") };
    add(&lab.one, vec![new_task()]).await;
    assert_eq!(
        events(&mut mail).await.iter().map(|event| event.queue.as_str()).collect::<Vec<_>>(),
        ["mail"]
    );
    let deployed = events(&mut deploy).await;
    assert_eq!((deployed.len(), deployed[0].execution), (1, Some(execution.id)));
    assert_eq!(kinds(&mut all).await.len(), 62);
    for feed in [&mut mail, &mut deploy, &mut all] {
        assert_eq!(kinds(feed).await, [""; 0]);
    }
}

pub(crate) async fn the_history_has_the_events_of_the_feed(lab: Lab) {
    let tasks = lab.two.tasks().unwrap();
    let mut feed = tasks.follow("mail").await.unwrap();
    let new: Vec<_> = (0..3).map(|_| new_task()).collect();
    let first = new[0].id;
    add(&lab.one, new).await;
    add(&lab.one, vec![new_task().in_queue("other")]).await;
    let leased = lease(&lab.one, 3).await;
    settle(&lab.one, &leased, &failed()).await;
    settle(&lab.one, &lease(&lab.one, 3).await, &done()).await;
    let seen = events(&mut feed).await;
    assert_eq!(seen.len(), 15);
    let query = ListTasks::default().queue(QueueName::new("mail").unwrap());
    let sorted = |mut events: Vec<TaskHistoryView>| {
        events.sort_by_key(|event| (event.task, event.at, event.token));
        events
    };
    assert_eq!(sorted(tasks.history_of(&query, 100).await.unwrap()), sorted(seen.clone()));
    assert_eq!(tasks.history_of(&query, 1).await.unwrap().len(), 5, "the newest task");
    let of_first: Vec<_> = seen.into_iter().filter(|event| event.task == first).collect();
    assert_eq!(tasks.history(first).await.unwrap(), of_first);
}

/// A poll that fails in the middle, at any of its calls, loses no event and repeats none.
#[tokio::test]
async fn a_failed_poll_loses_no_event() {
    for call in 0..10 {
        let (store, client, other) = faulty();
        add(&other, (0..3).map(|_| new_task()).collect()).await;
        let mut feed = client.tasks().unwrap().follow("mail").await.unwrap();
        // More than the first page of a poll.
        add(&other, (0..60).map(|_| new_task()).collect()).await;
        let leased = lease(&other, 62).await;
        settle(&other, &leased[..61], &done()).await;
        store.fail_read_after(call);
        let mut seen = Vec::new();
        for _ in 0..2 {
            seen.extend(feed.poll().await.unwrap_or_default());
        }
        assert_eq!(seen.len(), 60 + 62 + 61, "call {call}: {seen:?}");
        assert!(feed.poll().await.unwrap().is_empty(), "call {call}");
    }
}

/// The id of a task contains the time of the caller that added it: with a late clock, the task is not
/// among the newest.
#[tokio::test]
async fn a_task_of_a_caller_with_a_late_clock_is_reported() {
    let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
    let leasehold = Leasehold::with_store(Arc::new(MemoryStore::with_clock(clock.clone()))).unwrap();
    add(&leasehold, (0..200).map(|_| new_task()).collect()).await;
    settle(&leasehold, &lease(&leasehold, 200).await, &done()).await;
    clock.advance(Duration::from_secs(1));
    let mut feed = leasehold.tasks().unwrap().follow("mail").await.unwrap();
    let mut late = new_task();
    late.id = TaskId::from_uuid(Uuid::from_u128(7));
    add(&leasehold, vec![late.clone()]).await;
    settle(&leasehold, &lease(&leasehold, 1).await, &done()).await;
    let mut seen = Vec::new();
    for _ in 0..10 {
        clock.advance(Duration::from_secs(1));
        seen.extend(events(&mut feed).await);
    }
    assert_eq!(seen.iter().map(|event| event.task).collect::<Vec<_>>(), [late.id; 3]);
}

/// With more open tasks than a feed reads, it says so once, and reports those that run and the new ones.
#[tokio::test]
async fn a_feed_of_too_many_tasks_says_so() {
    let leasehold = memory().await;
    for _ in 0..51 {
        add(&leasehold, (0..100).map(|_| new_task()).collect()).await;
    }
    let mut feed = leasehold.tasks().unwrap().follow("mail").await.unwrap();
    let first = feed.poll().await.unwrap();
    let [TaskFeedItem::Notice(notice)] = &first[..] else { panic!("{first:?}") };
    assert_eq!(notice.kind, "sampled");
    assert!(notice.message.contains("more than 5000 tasks are open"), "{}", notice.message);
    add(&leasehold, vec![new_task()]).await;
    assert_eq!(kinds(&mut feed).await, ["added"]);
    let leased = lease(&leasehold, 3).await;
    assert_eq!(kinds(&mut feed).await, ["started"; 3]);
    settle(&leasehold, &leased, &done()).await;
    assert_eq!(kinds(&mut feed).await, ["succeeded"; 3]);
}

#[tokio::test]
async fn a_feed_waits_for_events() {
    let leasehold = memory().await;
    let mut feed = leasehold.tasks().unwrap().follow("mail").await.unwrap();
    let waiting = tokio::spawn(async move { feed.next().await.unwrap().len() });
    add(&leasehold, vec![new_task()]).await;
    assert_eq!(tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap(), 1);
    let wrong = leasehold.tasks().unwrap().follow("a\nb").await;
    assert_eq!(wrong.map(drop).unwrap_err().code(), "INVALID");
}
