//! Fuzz target of the packed records of tasks.

use super::codec::{Stored, enqueue_arguments, pack, record_tail};
use crate::fuzz_corpus;
use crate::model::{NewTask, Task, TaskId, Timestamp};
use crate::testing::fuzz::{Shape, fuzz};

#[test]
fn redis_tasks_are_read_as_they_were_packed() {
    fuzz(fuzz_corpus!("tasks"), 3_000, |input| match serde_json::from_slice::<Task>(input) {
        Ok(task) if is_storable(&task) => {
            assert_eq!(unpacked(&task), task);
            let new = NewTask::new(task.id, task.queue.clone(), task.payload.clone());
            let new = NewTask { key: task.key.clone(), lock: task.lock.clone(), ..new };
            // Numbers, the key, and the names: nothing else is added to what the caller gave.
            assert!(enqueue_arguments(&new).len() < 300 && record_tail(&new).len() < 2000);
            Shape::of(&task)
        }
        Ok(_) => Shape::of(&"not storable"),
        Err(error) => Shape::of_text(&error),
    });
}

#[test]
fn redis_tasks_of_any_bytes_are_refused_or_read() {
    fuzz(fuzz_corpus!("redis-tasks"), 4_000, |input| {
        match Stored::read(&[7; 16], input.to_vec(), b"1".to_vec()) {
            Ok(stored) => {
                // The payload of a packed record is trusted; the others are checked when they are written.
                assert_eq!(normalized(unpacked(&stored.task)), normalized(stored.task.clone()));
                Shape::of(&stored.task)
            }
            Err(error) => Shape::of_text(&error),
        }
    });
}

fn unpacked(task: &Task) -> Task {
    let packed = pack(task).expect("a task can be packed");
    let payload = packed.payload.map(|payload| payload.as_str().as_bytes().to_vec()).unwrap_or_default();
    Stored::read(task.id.as_uuid().as_bytes(), packed.record, payload).expect("a packed task is read").task
}

/// Returns the task as a record without changes has it: a new task has no lease.
fn normalized(mut task: Task) -> Task {
    if task.version == 1 {
        let new = Task::new(
            &NewTask::new(TaskId::from_uuid(uuid::Uuid::nil()), task.queue.clone(), task.payload.clone()),
            task.created_at,
        );
        task = Task {
            attempt: new.attempt,
            token: new.token,
            updated_at: task.created_at,
            leased_at: None,
            lease_expires_at: None,
            finished_at: None,
            begun: false,
            expiries: 0,
            worker: None,
            ..task
        };
    }
    task
}

/// Whether the rules can make the task: a time that is set is not zero, and a task that was never
/// changed is new.
fn is_storable(task: &Task) -> bool {
    let times = [task.leased_at, task.lease_expires_at, task.finished_at, task.runner_deadline];
    times.iter().flatten().all(|time| *time != Timestamp::default()) && normalized(task.clone()) == *task
}
