//! Schedules, through the client and its workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use leasehold::model::{
    MisfirePolicy, Payload, QueueName, RetryPolicy, Schedule, ScheduleName, TaskState, Timestamp, Ttl,
};
use leasehold::store::{ListTasks, NewDocument, PutIf};
use leasehold::{HandlerError, Leasehold, TaskContext, TaskType};

use super::support::{faulty, memory, until};
use super::worker::{Say, add, endless};

fn nightly() -> ScheduleName {
    ScheduleName::new("nightly").unwrap()
}

fn say() -> Say {
    Say { text: "good night".to_owned() }
}

async fn task_count(leasehold: &Leasehold) -> usize {
    leasehold.tasks().unwrap().list(&ListTasks::default()).await.unwrap().items.len()
}

#[tokio::test]
async fn a_tick_adds_one_task_regardless_of_the_number_of_workers() {
    let leasehold = memory().await;
    leasehold.schedule("nightly", "* * * * * *", &say()).await.unwrap();
    let worker = || {
        leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap()
    };
    let workers = [worker(), worker(), worker()];
    until("three ticks", async || task_count(&leasehold).await >= 3).await;
    for worker in workers {
        worker.stop(Duration::from_secs(5)).await;
    }
    let tasks = leasehold.tasks().unwrap().list(&ListTasks::default()).await.unwrap().items;
    let mut keys: Vec<_> = tasks.iter().map(|task| task.key.clone().unwrap()).collect();
    let times: Vec<_> = tasks.iter().map(|task| task.run_at.as_micros() % 1_000_000).collect();
    assert_eq!(times, vec![0; tasks.len()], "on the second");
    keys.dedup();
    assert_eq!(keys.len(), tasks.len());
    let consecutive =
        tasks.windows(2).all(|two| two[0].run_at.since(two[1].run_at) == Duration::from_secs(1));
    assert!(consecutive, "no tick is missing");
}

#[tokio::test]
async fn a_schedule_can_be_set_paused_resumed_and_removed() {
    let leasehold = memory().await;
    let schedules = leasehold.schedules().unwrap();
    let set = leasehold
        .schedule("nightly", "0 3 * * *", &say())
        .zone("Europe/Berlin")
        .missed(MisfirePolicy::RunLast)
        .await
        .unwrap();
    assert_eq!(schedules.list().await.unwrap(), std::slice::from_ref(&set));
    let again = leasehold.schedule("nightly", "0 3 * * *", &say()).zone("Europe/Berlin").await.unwrap();
    assert_eq!(again.since, set.since, "its position is kept");
    assert!(schedules.pause(&nightly()).await.unwrap().paused);
    assert!(!schedules.resume(&nightly()).await.unwrap().paused);
    schedules.remove(&nightly()).await.unwrap();
    assert!(schedules.list().await.unwrap().is_empty());
    assert_eq!(schedules.get(&nightly()).await.unwrap_err().code(), "UNKNOWN_SCHEDULE");
    assert_eq!(schedules.remove(&nightly()).await.unwrap_err().code(), "UNKNOWN_SCHEDULE");
    leasehold.schedule("nightly", "0 4 * * *", &say()).await.unwrap();
    assert_eq!(schedules.get(&nightly()).await.unwrap().cron.as_str(), "0 4 * * *");
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Limited;

impl TaskType for Limited {
    const QUEUE: &'static str = "limited";
    const RETRIES: RetryPolicy = RetryPolicy { attempts: 2, ..RetryPolicy::DEFAULT };
    const TIMEOUT: Option<Duration> = Some(Duration::from_mins(5));
}

#[tokio::test]
async fn the_tasks_of_a_schedule_have_the_settings_of_their_type() {
    let leasehold = memory().await;
    let settings = (Limited::RETRIES, Some(Ttl::from_secs(300)));
    let schedule = leasehold.schedule("nightly", "* * * * * *", &Limited).await.unwrap();
    assert_eq!((schedule.retries, schedule.timeout), settings);
    let _worker = endless(&leasehold, &Arc::default());
    until("a tick", async || task_count(&leasehold).await > 0).await;
    let task = leasehold.tasks().unwrap().list(&ListTasks::default()).await.unwrap().items.remove(0);
    assert_eq!((task.retries, task.timeout), settings);
}

#[tokio::test]
async fn an_invalid_schedule_is_rejected() {
    let leasehold = memory().await;
    let details = |error: leasehold::Error| (error.code(), error.to_string());
    let cron = details(leasehold.schedule("s", "every day", &say()).await.unwrap_err());
    assert_eq!(cron.0, "INVALID");
    assert!(cron.1.contains("'every day' is not a valid cron expression"), "{}", cron.1);
    let zone = details(leasehold.schedule("s", "@daily", &say()).zone("Berlin").await.unwrap_err());
    assert!(zone.1.contains("no time zone 'Berlin'"), "{}", zone.1);
    let queue = leasehold.schedule_to("s", "@daily", "", Payload::default()).await.unwrap_err();
    assert_eq!(details(queue).1, "the queue name is empty");
}

#[tokio::test]
async fn a_paused_schedule_does_not_tick() {
    let leasehold = memory().await;
    leasehold.schedule("nightly", "* * * * * *", &say()).await.unwrap();
    leasehold.schedules().unwrap().pause(&nightly()).await.unwrap();
    leasehold.schedule("other", "* * * * * *", &say()).await.unwrap();
    let _worker =
        leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap();
    let done = ListTasks::default().state(TaskState::Succeeded);
    let list = async || leasehold.tasks().unwrap().list(&done).await.unwrap().items;
    until("the other has ticked", async || !list().await.is_empty()).await;
    let keys: Vec<_> = list().await.into_iter().map(|task| task.key.unwrap().to_string()).collect();
    assert!(keys.iter().all(|key| key.starts_with("schedule other ")), "{keys:?}");
}

/// Stores a schedule without validation.
async fn store(leasehold: &Leasehold, schedule: &Schedule) {
    let document = NewDocument::new(serde_json::to_string(schedule).unwrap());
    let store = leasehold.store();
    let put = store
        .documents()
        .unwrap()
        .put_if(&format!("schedule/{}", schedule.name), None, document)
        .await
        .unwrap();
    assert!(matches!(put, PutIf::Written(_)));
}

#[tokio::test]
async fn a_schedule_that_cannot_tick_does_not_block_others() {
    let leasehold = memory().await;
    let good = leasehold.schedule("z", "* * * * *", &say()).await.unwrap();
    let long_ago = Timestamp::from_micros(good.since.as_micros() - 120_000_000);
    // With the time of a tick, the name is too long for a key.
    let name = ScheduleName::new("a".repeat(250)).unwrap();
    store(&leasehold, &Schedule { name, since: long_ago, ..good.clone() }).await;
    let name = ScheduleName::new("zz").unwrap();
    store(&leasehold, &Schedule { name, since: long_ago, ..good }).await;
    leasehold.schedules().unwrap().tick().await.unwrap();
    assert_eq!(task_count(&leasehold).await, 2, "two ticks of the other schedule");
}

/// Another transaction holds what the tasks of one schedule need.
#[tokio::test]
async fn a_schedule_whose_tasks_cannot_be_added_now_does_not_block_others() {
    let (faults, leasehold, _other) = faulty();
    let set = leasehold.schedule("zz", "* * * * *", &say()).await.unwrap();
    let long_ago = Timestamp::from_micros(set.since.as_micros() - 120_000_000);
    let blocked = QueueName::new("blocked").unwrap();
    for name in ["a", "b", "c", "d", "z"] {
        let queue = if name == "z" { set.queue.clone() } else { blocked.clone() };
        let name = ScheduleName::new(name).unwrap();
        store(&leasehold, &Schedule { name, since: long_ago, queue, ..set.clone() }).await;
    }
    faults.lose_enqueues_to(blocked);
    let _worker =
        leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start();
    // A minute may begin meanwhile.
    until("two ticks of the other schedule", async || task_count(&leasehold).await >= 2).await;
}

/// No worker has run for a year: catching up takes a while, and must not cost a lease.
#[tokio::test]
async fn catching_up_does_not_delay_heartbeats() {
    let leasehold = memory().await;
    let set = leasehold.schedule_to("0", "* * * * *", "other", Payload::default()).await.unwrap();
    let year = Duration::from_hours(365 * 24);
    let since = Timestamp::from_micros(set.since.as_micros() - u64::try_from(year.as_micros()).unwrap());
    for number in 1..=20 {
        let name = ScheduleName::new(number.to_string()).unwrap();
        store(&leasehold, &Schedule { name, since, ..set.clone() }).await;
    }
    let active = Arc::new(AtomicU32::new(0));
    let id = add(&leasehold, "long").await;
    let _worker = endless(&leasehold, &active);
    until("it runs", async || active.load(Ordering::SeqCst) == 1).await;
    let queue = QueueName::new("other").unwrap();
    until("all ticks are caught up", async || {
        let status = leasehold.tasks().unwrap().queue(&queue).await;
        status.is_ok_and(|status| status.counts.get(TaskState::Pending) >= 20_000)
    })
    .await;
    let task = leasehold.tasks().unwrap().get(id).await.unwrap();
    assert_eq!((task.attempt, task.state), (1, TaskState::Running));
    assert_eq!(active.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn jitter_delays_tasks_by_less_than_its_value_and_a_tick_adds_one_task() {
    let leasehold = memory().await;
    let jitter = Duration::from_millis(900);
    leasehold.schedule("nightly", "* * * * * *", &say()).jitter(jitter).await.unwrap();
    let worker = || {
        leasehold.worker().handle(|_: TaskContext<Say>| async { Ok::<_, HandlerError>(()) }).start().unwrap()
    };
    let _workers = [worker(), worker()];
    until("three ticks", async || task_count(&leasehold).await >= 3).await;
    let tasks = leasehold.tasks().unwrap().list(&ListTasks::default()).await.unwrap().items;
    let schedule = leasehold.schedules().unwrap().get(&nightly()).await.unwrap();
    for task in &tasks {
        let tick = Timestamp::from_micros(task.run_at.as_micros() / 1_000_000 * 1_000_000);
        assert_eq!(task.key.as_ref().unwrap().as_str(), format!("schedule nightly {tick}"));
        assert_eq!(task.run_at, schedule.run_at(tick));
    }
    assert!(tasks.iter().any(|task| !task.run_at.as_micros().is_multiple_of(1_000_000)), "{tasks:?}");
    let long = leasehold.schedule("nightly", "@daily", &say()).jitter(Duration::from_hours(25)).await;
    assert!(long.unwrap_err().to_string().contains("a jitter of 1d1h is too long"));
}
