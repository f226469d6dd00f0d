//! A query for the leases of a worker, while tasks end.

use std::collections::BTreeSet;
use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::thread;

use super::subject::HeldLeases;
use crate::model::{NewTask, Payload, QueueName, Task, TaskId, Timestamp, Token, Ttl};
use crate::store::BootInstant;

fn task(number: u128) -> Task {
    let id = TaskId::from_uuid(uuid::Uuid::from_u128(number));
    let new = NewTask::new(id, QueueName::new("q").expect("a name"), Payload::default());
    Task { token: Token::new(1).expect("a token"), ..Task::new(&new, Timestamp::from_micros(1)) }
}

/// The store still lists a task whose completion is on its way: a worker that starts it again would run
/// it twice.
pub fn a_query_never_starts_a_task_that_is_held_or_was_done() {
    let (leases, ttl) = (Arc::new(HeldLeases::default()), Ttl::from_secs(9));
    let tasks = [task(1), task(2)];
    let store: Arc<Mutex<BTreeSet<TaskId>>> = Arc::default();
    for task in &tasks {
        store.lock().expect("no panic").insert(task.id);
        leases.insert(task, ttl, BootInstant::now());
    }
    let workers: Vec<_> = tasks
        .iter()
        .map(|task| {
            let (leases, store, task) = (leases.clone(), store.clone(), task.clone());
            thread::spawn(move || {
                store.lock().expect("no panic").remove(&task.id);
                leases.remove([(task.id, task.token)]);
            })
        })
        .collect();
    leases.record_removals();
    let listed = store.lock().expect("no panic").clone();
    for task in tasks.iter().filter(|task| listed.contains(&task.id)) {
        assert!(leases.is_known(task.id, task.token), "the task would be started again");
    }
    leases.stop_recording_removals();
    for worker in workers {
        worker.join().expect("no panic");
    }
    assert_eq!(leases.len(), 0, "nothing remains");
}

/// A heartbeat, an expiry, a cancellation and a new lease of the same task, at the same time.
pub fn a_lost_lease_is_never_shown_as_held() {
    let (leases, ttl, sent) = (Arc::new(HeldLeases::default()), Ttl::from_secs(9), BootInstant::now());
    let (first, second) = (task(1), Task { token: Token::new(2).expect("a token"), ..task(1) });
    let terms = leases.insert(&first, ttl, sent);
    let held = leases.of_ttl(ttl);
    let heartbeat = thread::spawn({
        let leases = leases.clone();
        move || {
            let result = crate::model::HeartbeatResult::Extended(None);
            leases.apply_heartbeats(&held, &[result], sent.plus(ttl.as_duration()));
        }
    });
    let again = thread::spawn({
        let (leases, second) = (leases.clone(), second.clone());
        move || leases.insert(&second, ttl, sent)
    });
    let ended = thread::spawn({
        let (leases, first) = (leases.clone(), first.clone());
        move || leases.remove([(first.id, first.token)])
    });
    heartbeat.join().expect("no panic");
    ended.join().expect("no panic");
    let later = again.join().expect("no panic");
    assert!(later.borrow().cancelled.is_none(), "the end of the first lease does not affect the second");
    assert!(leases.is_known(second.id, second.token) && !leases.is_known(first.id, first.token));
    let has_ended = terms.has_changed().is_err();
    assert!(terms.borrow().cancelled.is_some() || has_ended, "the first handler is cancelled, or has ended");
}
