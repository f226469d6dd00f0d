//! Cost of calls in commands: it does not depend on the number of other tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::model::{
    AttemptResult, FinishedFilter, LeaseTasks, LockName, Message, NewTask, Payload, Priority, QueueName,
    Settle, TaskState, Timestamp, Ttl, When, WorkerId,
};
use leasehold::store::ListTasks;
use leasehold::store::redis::RedisStore;
use leasehold::{HandlerError, Leasehold};

use super::support::{done, lease, new_task, new_tasks, queue, tasks};
use crate::engines::redis::server::Server;
use crate::engines::redis::support::{open, options};
use crate::engines::support::clock;

/// Returns how often each command was called, also within scripts.
async fn commands(server: &Server) -> BTreeMap<String, u64> {
    let info: String = server.command(&["INFO", "commandstats"]).await.unwrap();
    let line = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = rest.split(',').next()?.parse().ok()?;
        Some((name.to_owned(), calls))
    };
    let ours = |(name, _): &(String, u64)| {
        !["info", "client", "hello", "ping"].iter().any(|own| name.starts_with(own))
    };
    info.lines().filter_map(line).filter(ours).collect()
}

/// Leases ten tasks and settles them; returns the commands that this took.
async fn one_round(server: &Server, store: &RedisStore) -> BTreeMap<String, u64> {
    let before = commands(server).await;
    let leased = lease(store, 10, Ttl::from_secs(30)).await.tasks;
    assert_eq!(leased.len(), 10);
    tasks(store).settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    let after = commands(server).await;
    let more = |(name, calls): (&String, &u64)| {
        let more = calls - before.get(name).copied().unwrap_or(0);
        (more > 0).then(|| (name.clone(), more))
    };
    after.iter().filter_map(more).collect()
}

async fn add(store: &RedisStore, count: usize, new: impl Fn() -> NewTask) {
    for _ in 0..count / 1000 {
        let new: Vec<_> = (0..1000).map(|_| new()).collect();
        tasks(store).enqueue(&new).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_costs_the_same_with_any_backlog() {
    let server = Server::start(&[]).await;
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    tasks(&store).enqueue(&new_tasks(100)).await.unwrap();
    one_round(&server, &store).await;
    let few = one_round(&server, &store).await;
    // Scheduled tasks of high priority, blocked tasks, and a long queue.
    let later = || NewTask {
        when: When::In(Ttl::from_secs(3600)),
        priority: Priority::new(1000).unwrap(),
        ..new_task()
    };
    add(&store, 20_000, later).await;
    let locked = || NewTask { lock: leasehold::model::LockName::new("l").ok(), ..new_task() };
    add(&store, 20_000, locked).await;
    add(&store, 100_000, new_task).await;
    assert_eq!(one_round(&server, &store).await, few);
    // A list by state reads only that state if it has few tasks, and scans all tasks otherwise.
    for (state, count) in [(TaskState::Succeeded, 30), (TaskState::Pending, 1000), (TaskState::Running, 0)] {
        let query = ListTasks::default().state(state).limit(1000);
        let before = server.calls("evalsha").await + server.calls("eval").await;
        let listed = tasks(&store).list(&query).await.unwrap().items;
        let calls = server.calls("evalsha").await + server.calls("eval").await - before;
        assert_eq!(listed.len(), count);
        assert!(
            listed.iter().all(|task| task.state == state) && listed.is_sorted_by_key(|task| Reverse(task.id))
        );
        assert!(calls <= 10, "{calls} calls to list by {state}");
    }
    let calls: u64 = few.values().sum();
    assert!(calls <= 25, "ten leases and settlements took {calls} commands: {few:?}");
}

/// Work for all queues costs nothing for queues without such work.
#[tokio::test]
async fn the_cost_of_recovery_and_purge_does_not_depend_on_other_queues() {
    let server = Server::start(&[]).await;
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    let round = async || {
        let before: u64 = commands(&server).await.values().sum();
        tasks(&store).recover(100).await.unwrap();
        let which =
            FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(1), limit: 100 };
        assert_eq!(tasks(&store).purge(&which).await.unwrap(), 0);
        commands(&server).await.values().sum::<u64>() - before
    };
    tasks(&store).enqueue(&new_tasks(1)).await.unwrap();
    round().await;
    let few = round().await;
    for number in 0..2000 {
        let queue = QueueName::new(format!("queue-{number}")).unwrap();
        let later = When::In(Ttl::from_secs(3600));
        let new =
            [NewTask { queue: queue.clone(), ..new_task() }, NewTask { queue, when: later, ..new_task() }];
        tasks(&store).enqueue(&new).await.unwrap();
    }
    assert_eq!(round().await, few, "commands without any work");
}

fn numbered(queue: usize) -> QueueName {
    QueueName::new(format!("queue-{queue}")).unwrap()
}

/// While a script runs, the server does nothing else.
#[tokio::test]
async fn the_list_of_many_queues_is_read_by_several_scripts() {
    let server = Server::start(&[]).await;
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    let scripts = async || server.calls("evalsha").await + server.calls("eval").await;
    for (queues, expected) in [(0..250, 1), (250..1_001, 5)] {
        let new = |number| NewTask { queue: numbered(number), ..new_task() };
        let new: Vec<NewTask> = queues.clone().map(new).collect();
        for new in new.chunks(1000) {
            tasks(&store).enqueue(new).await.unwrap();
        }
        tasks(&store).queues().await.unwrap();
        let before = scripts().await;
        let listed = tasks(&store).queues().await.unwrap();
        assert_eq!(scripts().await - before, expected);
        assert_eq!(listed.len(), queues.end);
        assert!(listed.is_sorted_by_key(|status| &status.queue));
        assert!(listed.iter().all(|status| status.counts.get(TaskState::Pending) == 1));
    }
}

/// One call handles a limited number of tasks, and reads no more queues than have them.
#[tokio::test]
async fn the_cost_of_promotion_does_not_depend_on_other_queues_with_due_tasks() {
    let (server, clock) = (Server::start(&[]).await, clock());
    let store = open(&server.url(), "p", &clock).await;
    // As many as one call promotes from each queue, all at the same time.
    let add_due = async |queues: std::ops::Range<usize>| {
        for number in queues {
            let new = || NewTask { queue: numbered(number), ..new_task().after(10) };
            add(&store, 1000, new).await;
        }
        clock.advance(Duration::from_secs(11));
    };
    let promote = async || {
        let before: u64 = commands(&server).await.values().sum();
        assert_eq!(tasks(&*store).recover(10).await.unwrap().promoted, 1000);
        commands(&server).await.values().sum::<u64>() - before
    };
    add_due(0..1).await;
    promote().await;
    add_due(1..2).await;
    let few = promote().await;
    add_due(2..12).await;
    for _ in 2..12 {
        assert_eq!(promote().await, few);
    }
    assert_eq!(tasks(&*store).recover(10).await.unwrap().promoted, 0);
}

#[tokio::test]
async fn the_earliest_due_tasks_of_all_queues_are_promoted_first() {
    let (server, clock) = (Server::start(&[]).await, clock());
    let store = open(&server.url(), "p", &clock).await;
    let now = clock.now().as_micros();
    let new: Vec<_> = (1..=3000)
        .map(|number: u16| NewTask {
            queue: numbered(usize::from(number % 3)),
            when: When::At(Timestamp::from_micros(now + u64::from(number))),
            ..new_task()
        })
        .collect();
    for chunk in new.chunks(1000) {
        tasks(&*store).enqueue(chunk).await.unwrap();
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!(tasks(&*store).recover(10).await.unwrap().promoted, 1000);
    let states = [TaskState::Pending, TaskState::Pending, TaskState::Scheduled, TaskState::Scheduled];
    for (at, state) in [0, 999, 1000, 2999].into_iter().zip(states) {
        assert_eq!(tasks(&*store).get(new[at].id).await.unwrap().unwrap().state, state, "{at}");
    }
}

/// One call handles a limited number of tasks, and reads no more queues than have them.
#[tokio::test]
async fn the_cost_of_a_purge_does_not_depend_on_other_queues_with_finished_tasks() {
    let (server, clock) = (Server::start(&[]).await, clock());
    let store = open(&server.url(), "p", &clock).await;
    let finish = async |queue: usize, count: u32| {
        let new: Vec<_> = (0..count).map(|_| NewTask { queue: numbered(queue), ..new_task() }).collect();
        tasks(&*store).enqueue(&new).await.unwrap();
        let worker = WorkerId::from_uuid(uuid::Uuid::now_v7());
        let request = LeaseTasks::new(worker, vec![numbered(queue)], count, Ttl::from_secs(30));
        let leased = tasks(&*store).lease(&request).await.unwrap().tasks;
        tasks(&*store).settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
        clock.advance(Duration::from_secs(1));
    };
    let purge = async || {
        let before: u64 = commands(&server).await.values().sum();
        let any_time = Timestamp::from_micros(u64::MAX);
        let which = FinishedFilter { queue: None, state: None, before: any_time, limit: 100 };
        assert_eq!(tasks(&*store).purge(&which).await.unwrap(), 100);
        commands(&server).await.values().sum::<u64>() - before
    };
    finish(0, 400).await;
    purge().await;
    let few = purge().await;
    for queue in 1..10 {
        finish(queue, 100).await;
    }
    for _ in 0..11 {
        let many = purge().await;
        assert!(many <= few + 10, "{many} commands, {few} without other queues");
    }
}

/// A worker that lost an answer lists its running tasks, also beside very many tasks of other workers.
#[tokio::test]
async fn a_list_of_running_tasks_reads_no_other_tasks() {
    let (server, clock) = (Server::start(&[]).await, clock());
    let store = open(&server.url(), "p", &clock).await;
    let lease_for = async |worker: WorkerId, count: u32| {
        let request = LeaseTasks::new(worker, vec![queue()], count, Ttl::from_secs(30));
        let leased = tasks(&*store).lease(&request).await.unwrap().tasks;
        assert_eq!(leased.len(), count as usize);
        leased
    };
    let [one, two] = [1, 2].map(leasehold::testing::task_fixture::worker);
    add(&store, 8000, new_task).await;
    for _ in 0..5 {
        let leased = lease_for(two, 1000).await;
        tasks(&*store).settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    }
    // More and fewer with the same deadline than one script searches.
    let mut running = Vec::new();
    for count in [1200, 100, 100, 100, 501] {
        running.extend(lease_for(one, count).await.iter().map(|task| task.id));
        clock.advance(Duration::from_millis(1));
    }
    running.sort_unstable_by_key(|id| Reverse(*id));
    let query = |worker: WorkerId| {
        ListTasks::default().state(TaskState::Running).worker(worker).brief(true).limit(1000)
    };
    let before = server.calls("evalsha").await + server.calls("eval").await;
    assert!(tasks(&*store).list(&query(two)).await.unwrap().items.is_empty());
    let calls = server.calls("evalsha").await + server.calls("eval").await - before;
    assert!(calls <= 10, "{calls} calls to list the tasks of a worker without any");
    let (mut listed, mut next) = (Vec::new(), query(one));
    loop {
        let page = tasks(&*store).list(&next).await.unwrap();
        listed.extend(page.items.iter().map(|task| task.id));
        next.after = page.next;
        if next.after.is_none() {
            break;
        }
    }
    assert!(listed == running, "{} of {} tasks were listed", listed.len(), running.len());
}

#[tokio::test]
async fn a_list_without_payloads_reads_none() {
    let server = Server::start(&[]).await;
    let store = RedisStore::connect(options(&server.url(), "p")).await.unwrap();
    let payload = Payload::of(&"x".repeat(1000)).unwrap();
    let new: Vec<_> = (0..10).map(|_| NewTask { payload: payload.clone(), ..new_task() }).collect();
    tasks(&store).enqueue(&new).await.unwrap();
    lease(&store, 5, Ttl::from_secs(30)).await;
    for state in [None, Some(TaskState::Pending), Some(TaskState::Running)] {
        let list = async |brief: bool| {
            let before = server.calls("hget").await;
            let page = tasks(&store).list(&ListTasks::default().state(state).brief(brief)).await.unwrap();
            (page.items.len() as u64, server.calls("hget").await - before)
        };
        let ((listed, without), (_, with)) = (list(true).await, list(false).await);
        assert_eq!(with - without, listed, "{state:?}");
    }
}

/// A large payload is written once: neither a lease nor a settlement writes it again, nor a failed attempt.
#[tokio::test]
async fn a_large_payload_is_not_written_again() {
    let (server, clock) = (Server::start(&["appendonly yes", "appendfsync no"]).await, clock());
    let store = open(&server.url(), "p", &clock).await;
    let size = async || {
        let info: String = server.command(&["INFO", "persistence"]).await.unwrap();
        let size =
            info.lines().find_map(|line| line.trim_end().strip_prefix("aof_current_size:")?.parse().ok());
        size.unwrap_or(0_u64)
    };
    let payload = Payload::of(&"x".repeat(1_000_000)).unwrap();
    let before = size().await;
    tasks(&*store).enqueue(&[NewTask { payload: payload.clone(), ..new_task() }]).await.unwrap();
    let added = size().await;
    let leased = lease(&*store, 1, Ttl::from_secs(30)).await.tasks;
    assert_eq!(leased[0].payload, payload);
    let verdict = AttemptResult::Retry(Message::new("no"), Some(Ttl::from_secs(5)));
    tasks(&*store).settle(&[Settle { result: verdict, ..done(&leased[0]) }]).await.unwrap();
    clock.advance(Duration::from_secs(6));
    let leased = lease(&*store, 1, Ttl::from_secs(30)).await.tasks;
    assert_eq!(leased[0].payload, payload);
    tasks(&*store).settle(&[done(&leased[0])]).await.unwrap();
    let settled = size().await;
    assert!(added - before > 1_000_000, "{}", added - before);
    assert!(settled - added < 10_000, "{}", settled - added);
    assert_eq!(tasks(&*store).get(leased[0].id).await.unwrap().unwrap().payload, payload);
}

/// Idle worker, and a lock held by another client: the tasks that wait for it cause no commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_behind_a_held_lock_cost_no_commands() {
    let server = Server::start(&[]).await;
    let store = Arc::new(RedisStore::connect(options(&server.url(), "p")).await.unwrap());
    let leasehold = Leasehold::with_store(store.clone()).unwrap();
    let guard = leasehold.lock("l").ttl(Duration::from_mins(1)).acquire().await.unwrap();
    let lock = LockName::new("l").unwrap();
    add(&store, 1000, || NewTask { lock: Some(lock.clone()), ..new_task() }).await;
    let worker = leasehold
        .worker()
        .slots(1)
        .handle_queue("q", Duration::from_secs(15), |_| async { Ok::<_, HandlerError>(()) });
    let worker = worker.start().unwrap();
    while leasehold.locks().status(&lock).await.unwrap().waiters.is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let before: u64 = commands(&server).await.values().sum();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after: u64 = commands(&server).await.values().sum();
    let per_second = (after - before) / 4;
    assert!(per_second < 200, "{per_second} commands a second");
    let page = tasks(&*store).list(&ListTasks::default().limit(1000)).await.unwrap();
    assert!(page.items.iter().all(|task| task.version <= 2 && task.events.is_empty()));
    guard.release().await.unwrap();
    worker.stop(Duration::from_secs(5)).await;
}
