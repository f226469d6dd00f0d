//! Adding and administering tasks through the client.

use std::time::Duration;

use leasehold::model::{Holder, Payload, QueueName, TaskState, TaskUpdate};
use leasehold::{Error, Leasehold};

use super::support::memory;
use super::worker::Say;

fn say(text: &str) -> Say {
    Say { text: text.to_owned() }
}

#[tokio::test]
async fn a_key_adds_a_task_once() {
    let leasehold = memory().await;
    let first = leasehold.enqueue(&say("hello")).key("greeting").await.unwrap();
    let again = leasehold.enqueue(&say("hello")).key("greeting").await.unwrap();
    assert_eq!((first.id, first.duplicate, again.duplicate), (again.id, false, true));
    let other = leasehold.enqueue(&say("good-bye")).key("greeting").await.unwrap_err();
    assert_eq!((other.code(), other.is_retryable()), ("KEY_REUSED", false));
    assert!(other.to_string().contains("key 'greeting' of queue 'say' is taken by task"), "{other}");
    assert!(other.to_string().contains(&first.id.to_string()), "{other}");
}

#[tokio::test]
async fn invalid_arguments_are_rejected_when_a_task_is_added() {
    let leasehold = memory().await;
    let message = async |error: leasehold::Result<leasehold::EnqueueResult>| error.unwrap_err().to_string();
    assert_eq!(message(leasehold.enqueue(&say("x")).key("").await).await, "the key is empty");
    let far = message(leasehold.enqueue(&say("x")).priority(5000).await).await;
    assert!(far.contains("5000 is out of bounds"), "{far}");
    let large = message(leasehold.enqueue(&say(&"x".repeat(2 << 20))).await).await;
    assert!(large.contains("1048576 is the most"), "{large}");
    let queue = message(leasehold.enqueue_to("", Payload::default()).await).await;
    assert_eq!(queue, "the queue name is empty");
    assert!(leasehold.tasks().unwrap().queues().await.unwrap().is_empty(), "nothing was added");
}

#[tokio::test]
async fn many_tasks_are_added_at_once() {
    let leasehold = memory().await;
    let all: Vec<Say> = (0..100).map(|number| say(&number.to_string())).collect();
    let ids = leasehold.enqueue_all(&all).await.unwrap();
    assert_eq!(ids.len(), 100);
    assert!(ids.is_sorted(), "they keep their order");
    let queues = leasehold.tasks().unwrap().queues().await.unwrap();
    assert_eq!(queues[0].counts.get(TaskState::Pending), 100);
}

#[tokio::test]
async fn an_update_of_an_old_version_is_refused() {
    let leasehold = memory().await;
    let id = leasehold.enqueue(&say("old")).await.unwrap().id;
    let tasks = leasehold.tasks().unwrap();
    let change =
        |expected| TaskUpdate { expected, payload: Payload::of(&say("new")).ok(), ..TaskUpdate::default() };
    assert_eq!(tasks.update(id, change(1)).await.unwrap().version, 2);
    let error = tasks.update(id, change(1)).await.unwrap_err();
    assert!(matches!(error, Error::VersionConflict { expected: 1, current: 2, .. }), "{error}");
    assert_eq!(error.code(), "VERSION_CONFLICT");
}

#[tokio::test]
async fn operations_that_do_not_fit_the_state_are_rejected() {
    let leasehold = memory().await;
    let tasks = leasehold.tasks().unwrap();
    let ada = || Holder::new("ada").unwrap();
    let queue = QueueName::new("nowhere").unwrap();
    let error = tasks.pause(&queue, ada(), None).await.unwrap_err();
    assert_eq!(
        (error.code(), error.to_string()),
        ("UNKNOWN_QUEUE", "there is no queue 'nowhere'; there is none yet".to_owned())
    );
    let id = leasehold.enqueue(&say("x")).delay(Duration::from_mins(1)).await.unwrap().id;
    let error = tasks.resume(&queue).await.unwrap_err().to_string();
    assert_eq!(error, "there is no queue 'nowhere'; there is 'say'");
    assert_eq!(tasks.cancel(id, ada(), None).await.unwrap().state, TaskState::Aborted);
    let error = tasks.cancel(id, ada(), None).await.unwrap_err();
    assert_eq!(error.code(), "TASK_STATE");
    assert_eq!(tasks.retry(id, ada()).await.unwrap().state, TaskState::Pending);
    let unknown = leasehold::model::TaskId::from_uuid(uuid::Uuid::nil());
    assert_eq!(tasks.get(unknown).await.unwrap_err().code(), "UNKNOWN_TASK");
}

#[tokio::test]
async fn an_engine_without_tasks_reports_so() {
    let store = leasehold::store::Cas::new(leasehold::store::memory::MemoryDocs::with_clock(
        leasehold::store::Clock::system(),
    ));
    let leasehold = Leasehold::with_store(std::sync::Arc::new(store.unwrap())).unwrap();
    let error = leasehold.enqueue(&say("x")).await.unwrap_err();
    assert_eq!(error.code(), "NOT_SUPPORTED");
    assert!(leasehold.tasks().is_err());
}
