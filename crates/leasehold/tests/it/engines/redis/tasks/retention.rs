//! Archiving and purging of finished tasks in many queues.

use std::ops::Range;
use std::time::Duration;

use leasehold::model::{
    AttemptResult, FinishedFilter, LeaseTasks, Message, NewTask, QueueName, Settle, TaskState, Timestamp,
    Ttl, WorkerId,
};
use uuid::Uuid;

use super::support::{done, new_task, tasks};
use crate::engines::redis::server::Server;
use crate::engines::redis::support::open;
use crate::engines::support::clock;

/// The index of queues has one time for all finished tasks of a queue. One script searches fewer queues.
#[tokio::test]
async fn finished_tasks_behind_many_queues_with_kept_tasks_are_archived_and_purged() {
    let (server, clock) = (Server::start(&[]).await, clock());
    let store = open(&server.url(), "p", &clock).await;
    let finish = async |queues: Range<u32>, verdict: AttemptResult| {
        let count = queues.end - queues.start;
        let queues: Vec<_> = queues.map(|queue| QueueName::new(format!("queue-{queue}")).unwrap()).collect();
        let new: Vec<_> = queues.iter().map(|queue| NewTask { queue: queue.clone(), ..new_task() }).collect();
        tasks(&*store).enqueue(&new).await.unwrap();
        let worker = WorkerId::from_uuid(Uuid::now_v7());
        let request = LeaseTasks::new(worker, queues, count, Ttl::from_secs(600));
        let leased = tasks(&*store).lease(&request).await.unwrap().tasks;
        assert_eq!(leased.len(), new.len());
        // Many tasks end at the same time.
        for some in leased.chunks(100) {
            let settle = |task| Settle { result: verdict.clone(), ..done(task) };
            tasks(&*store).settle(&some.iter().map(settle).collect::<Vec<_>>()).await.unwrap();
            clock.advance(Duration::from_millis(1));
        }
    };
    finish(0..1000, AttemptResult::Fail(Message::new("no"))).await;
    finish(1000..1001, AttemptResult::Done(None)).await;
    let (state, before) = (Some(TaskState::Succeeded), Timestamp::from_micros(u64::MAX));
    let which = FinishedFilter { queue: None, state, before, limit: 100 };
    for expected in [1, 0] {
        assert_eq!(tasks(&*store).archive(&which).await.unwrap(), expected);
    }
    for expected in [1, 0] {
        assert_eq!(tasks(&*store).purge(&which).await.unwrap(), expected);
    }
    let queues = tasks(&*store).queues().await.unwrap();
    let failed: u64 = queues.iter().map(|status| status.counts.get(TaskState::Failed)).sum();
    assert_eq!(failed, 1000);
    let all = FinishedFilter { state: None, limit: 2000, ..which };
    assert_eq!(tasks(&*store).archive(&all).await.unwrap(), 1000);
    assert_eq!(tasks(&*store).purge(&all).await.unwrap(), 1000);
    assert_eq!(server.command::<u64>(&["EXISTS", "p:{t}:tasks", "p:{t}:over"]).await.unwrap(), 0);
}
