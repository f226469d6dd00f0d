//! Calls of many callers that enqueue tasks at the same time: they share scripts, each caller gets its
//! own answer, and an error of one call does not affect the others.

use std::sync::Arc;

use leasehold::model::{Enqueued, LockName, NewTask, Payload, QueueName, TaskKey, TaskState, Ttl, When};
use leasehold::store::redis::RedisStore;

use super::support::{count, lease, new_task, new_tasks, tasks};
use crate::engines::redis::server::{Server, connect};
use crate::engines::redis::support::options;

async fn store_at(server: &Server) -> Arc<RedisStore> {
    Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap())
}

/// Enqueues these tasks by a caller each, at the same time; returns the answers in their order.
async fn enqueue_each(
    store: &Arc<RedisStore>,
    new: Vec<Vec<NewTask>>,
) -> Vec<leasehold::Result<Vec<Enqueued>>> {
    let callers: Vec<_> = new
        .into_iter()
        .map(|new| {
            let store = store.clone();
            tokio::spawn(async move { tasks(&*store).enqueue(&new).await })
        })
        .collect();
    let mut answers = Vec::new();
    for caller in callers {
        answers.push(caller.await.unwrap());
    }
    answers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_share_calls_and_each_gets_its_answer() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    tasks(&*store).enqueue(&[new_task()]).await.unwrap();
    let before = server.calls("evalsha").await;
    // Tasks of two queues, of different priorities, some with keys, locks, delays and long payloads.
    let long = Payload::of(&"x".repeat(2_000)).unwrap();
    let task = |number: u32| match number % 8 {
        1 => NewTask { queue: QueueName::new("other").unwrap(), ..new_task() },
        2 => NewTask { key: TaskKey::new(format!("k{number}")).ok(), ..new_task() },
        3 => NewTask { lock: LockName::new(format!("l{number}")).ok(), ..new_task() },
        4 => NewTask { when: When::In(Ttl::from_secs(3600)), ..new_task() },
        5 => NewTask { payload: long.clone(), ..new_task() },
        _ => new_task(),
    };
    let new: Vec<Vec<_>> = (0..400).map(|number| vec![task(number), new_task()]).collect();
    let answers = enqueue_each(&store, new.clone()).await;
    for (new, answer) in new.iter().zip(answers) {
        let added: Vec<_> = new.iter().map(|new| Enqueued::Added(new.id)).collect();
        assert_eq!(answer.unwrap(), added);
        for new in new {
            let task = tasks(&*store).get(new.id).await.unwrap().expect("the task was added");
            assert_eq!((&task.payload, &task.queue, &task.key), (&new.payload, &new.queue, &new.key));
            assert_eq!((task.version, task.updated_at), (1, task.created_at));
        }
    }
    let calls = server.calls("evalsha").await - before - 800;
    assert!(calls < 200, "{calls} calls for 400 callers");
    assert_eq!(count(&*store, TaskState::Pending).await, 801 - 50 - 50);
    assert_eq!(count(&*store, TaskState::Scheduled).await, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_several_callers_enqueue_is_added_once() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    let new = new_tasks(3);
    let answers = enqueue_each(&store, vec![new.clone(); 50]).await;
    let added: Vec<_> = new.iter().map(|new| Enqueued::Added(new.id)).collect();
    assert!(answers.into_iter().all(|answer| answer.unwrap() == added));
    // The same task twice in one call.
    tasks(&*store).enqueue(&[new[0].clone(), new[0].clone()]).await.unwrap();
    assert_eq!(count(&*store, TaskState::Pending).await, 3);
    let leased = lease(&*store, 100, Ttl::from_secs(30)).await.tasks;
    assert_eq!(leased.len(), 3);
    // A repeated call after the task has begun changes nothing.
    tasks(&*store).enqueue(&new).await.unwrap();
    assert_eq!(count(&*store, TaskState::Pending).await, 0);
    assert_eq!(tasks(&*store).get(new[0].id).await.unwrap().unwrap().state, TaskState::Running);
}

/// A call with a key whose task has an unknown format fails, and only that call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_one_call_does_not_affect_the_others() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    let keyed = |key: String| NewTask { key: TaskKey::new(key).ok(), ..new_task() };
    let strange = keyed("strange".to_owned());
    tasks(&*store).enqueue(std::slice::from_ref(&strange)).await.unwrap();
    let mut conn = connect(&server.url()).await.unwrap();
    let mut hset = ::redis::cmd("HSET");
    hset.arg("p:{t}:tasks").arg(strange.id.as_uuid().as_bytes()).arg([9_u8; 60].as_slice());
    hset.query_async::<u64>(&mut conn).await.unwrap();
    let new = (0..100).map(|number| match number % 10 {
        0 => vec![keyed("strange".to_owned())],
        5 => vec![keyed(number.to_string())],
        _ => vec![new_task()],
    });
    let answers = enqueue_each(&store, new.collect()).await;
    for (number, answer) in answers.into_iter().enumerate() {
        match answer {
            Err(error) => assert!(number % 10 == 0 && !error.is_retryable(), "call {number}: {error}"),
            Ok(answer) => assert!(number % 10 != 0 && matches!(answer[..], [Enqueued::Added(_)])),
        }
    }
    assert_eq!(count(&*store, TaskState::Pending).await, 91);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_survive_flushed_scripts() {
    let server = Server::start(&[]).await;
    let store = store_at(&server).await;
    for round in 1..=10 {
        let _: String = server.command(&["SCRIPT", "FLUSH"]).await.unwrap();
        let answers = enqueue_each(&store, (0..20).map(|_| vec![new_task()]).collect()).await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(count(&*store, TaskState::Pending).await, round * 20);
    }
}
