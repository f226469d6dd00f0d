//! Cost of a lease, in blocks that the server reads: independent of the number of other tasks.

use std::collections::BTreeMap;

use leasehold::model::{
    AttemptResult, FinishedFilter, LeaseTasks, NewTask, Settle, TaskState, Timestamp, Ttl, WorkerId,
};
use leasehold::store::{ListTasks, Store};
use leasehold::testing::task_fixture;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::engines::postgres::schema::Schema;

/// TTL of the leases, in microseconds. None may expire during a test: expired leases are ended first.
const DAY: u64 = 86_400_000_000;

/// Connection that measures the cost of the store's statements.
struct CostMeter {
    schema: Schema,
    client: Client,
}

impl CostMeter {
    async fn new(schema: Schema) -> Self {
        let store = schema.store().await;
        let client = schema.client().await;
        let lease = store.lease_statement();
        client.batch_execute(&lease.planner_settings).await.unwrap();
        let prepare = format!(
            "PREPARE lease (text[], bigint[], bigint, uuid, bigint, text[], integer[], bigint[], bigint[], boolean, bigint[], uuid[],
             bigint, boolean, bigint, bigint, boolean) AS {};
             PREPARE lease_plain (text, bigint, bigint, uuid, bigint, integer, bigint, bigint, bigint, uuid, bigint, bigint, bigint) AS {};
             PREPARE expired (bigint, bigint) AS {};
             PREPARE purge (text, smallint, bigint, bigint) AS {}",
            lease.sql,
            lease.plain,
            store.expired_statement(),
            store.purge_statement()
        );
        client.batch_execute(&prepare).await.unwrap();
        Self { schema, client }
    }

    /// Inserts `count` tasks, numbered from `first` on.
    async fn fill(&self, first: u64, count: u64, priority: i32, state: u8) {
        let now = 1_700_000_000_000_000_u64;
        let (schema, last) = (&self.schema.name, first + count - 1);
        // Scheduled tasks are due in the distant future; finished tasks ended long ago.
        let (run_at, finished_at) = match state {
            0 => (9_000_000_000_000_000, "NULL"),
            4 => (now, "n"),
            _ => (now, "NULL"),
        };
        let fill = format!(
            "INSERT INTO {schema}.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
                 queue, finished_at, created_at, initial_delay, max_delay, attempts, payload)
             SELECT lpad(to_hex(n), 32, '0')::uuid, {run_at}, {now} + n, 0, 1, {now}, {priority}, 0, {state}, false, 'q',
                 {finished_at}, {now}, 1000000, 1000000, 5, 'null'
             FROM generate_series({first}, {last}) n;
             INSERT INTO {schema}.task_queues (name) VALUES ('q') ON CONFLICT DO NOTHING;
             INSERT INTO {schema}.queue_priorities (queue, priority) VALUES ('q', {priority}) ON CONFLICT DO NOTHING"
        );
        self.client.batch_execute(&fill).await.unwrap();
    }

    /// Inserts `count` finished tasks, numbered from 1 on, in turn into this number of queues. Each has ended at the
    /// microsecond of its number.
    async fn fill_queues(&self, queues: u64, count: u64) {
        let (schema, now) = (&self.schema.name, 1_700_000_000_000_000_u64);
        let fill = format!(
            "INSERT INTO {schema}.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
                 queue, finished_at, created_at, initial_delay, max_delay, attempts, payload)
             SELECT lpad(to_hex(n), 32, '0')::uuid, {now}, {now}, 0, 1, {now}, 0, 0, 4, false, 'queue-' || (n % {queues}),
                 n, {now}, 1000000, 1000000, 5, 'null'
             FROM generate_series(1, {count}) n"
        );
        self.client.batch_execute(&fill).await.unwrap();
    }

    /// Returns the blocks that a lease of ten tasks reads; `since` is the position of the store's cursor. The second of
    /// two leases counts, because the first access to a block may have to prune it.
    async fn lease(&self, since: Option<u64>) -> u64 {
        let mut blocks = 0;
        for _ in 0..2 {
            blocks = self.lease_once(since).await;
        }
        blocks
    }

    async fn lease_once(&self, since: Option<u64>) -> u64 {
        let worker = WorkerId::from_uuid(uuid::Uuid::from_u128(1));
        let cursor = since.map_or_else(
            || "'{}', '{}', '{}', '{}', true, '{}', '{}'".to_owned(),
            |since| {
                format!(
                    "'{{q}}', '{{0}}', '{{{since}}}', '{{0}}', true, '{{0}}', '{{{}}}'",
                    uuid::Uuid::nil()
                )
            },
        );
        // Position of the other cursor: the last check for expired leases.
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let expired = if since.is_some() { now } else { "0" };
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
             EXECUTE lease ('{{q}}', '{{0}}', 10, '{worker}', {DAY}, {cursor}, 1000, true, {expired}, 1048576, false, NULL)"
        );
        let plan = self.explain(&explain).await;
        // Newer servers report a fraction.
        assert_eq!(plan["Actual Rows"].as_f64(), Some(10.0), "{plan}");
        let scans = indexes(&plan);
        assert_eq!(scans.get("tasks_ready"), Some(&1), "{scans:?}");
        blocks(&plan)
    }

    /// Returns the blocks that a lease of ten plain tasks reads, like `lease`.
    async fn lease_plain(&self, since: Option<u64>) -> u64 {
        let cursor = since.map_or_else(
            || "NULL, NULL, NULL, NULL, NULL".to_owned(),
            |since| format!("0, {since}, 0, 0, '{}'", uuid::Uuid::nil()),
        );
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let expired = if since.is_some() { now } else { "0" };
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
             EXECUTE lease_plain ('q', 0, 10, '{}', {DAY}, {cursor}, 5, {expired}, 1048576, NULL)",
            uuid::Uuid::from_u128(1)
        );
        let mut plan = serde_json::Value::Null;
        for _ in 0..2 {
            plan = self.explain(&explain).await;
        }
        assert_eq!(plan["Actual Rows"].as_f64(), Some(10.0), "{plan}");
        blocks(&plan)
    }

    /// Returns the blocks that are read to find no expired lease, from a time on.
    async fn expired(&self, since: u64) -> u64 {
        let mut plan = serde_json::Value::Null;
        for _ in 0..2 {
            let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE expired ({since}, NULL)");
            plan = self.explain(&explain).await;
        }
        assert_eq!(indexes(&plan).get("tasks_running"), Some(&1), "{plan}");
        blocks(&plan)
    }

    /// Returns the blocks that a purge of tasks that ended before a time reads, and the number of tasks that it deletes.
    async fn purge(&self, queue: &str, before: u64, limit: u32) -> (u64, Option<f64>) {
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE purge ({queue}, NULL, {before}, {limit})"
        );
        let plan = self.explain(&explain).await;
        (blocks(&plan), deleted(&plan))
    }

    async fn explain(&self, explain: &str) -> serde_json::Value {
        let mut text = String::new();
        for message in self.client.simple_query(explain).await.unwrap() {
            if let SimpleQueryMessage::Row(row) = message {
                text.push_str(row.get(0).unwrap());
            }
        }
        let mut plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        plan[0]["Plan"].take()
    }
}

fn blocks(plan: &serde_json::Value) -> u64 {
    plan["Shared Hit Blocks"].as_u64().unwrap() + plan["Shared Read Blocks"].as_u64().unwrap()
}

/// Returns the number of tasks that a plan deletes.
fn deleted(plan: &serde_json::Value) -> Option<f64> {
    if plan["Operation"] == "Delete" && plan["Relation Name"] == "tasks" {
        return plan["Actual Rows"].as_f64();
    }
    plan["Plans"].as_array().into_iter().flatten().find_map(deleted)
}

/// Counts the uses of each index in a plan.
fn indexes(plan: &serde_json::Value) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    if let Some(index) = plan["Index Name"].as_str() {
        *found.entry(index.to_owned()).or_default() += 1;
    }
    for child in plan["Plans"].as_array().into_iter().flatten() {
        for (index, count) in indexes(child) {
            *found.entry(index).or_default() += count;
        }
    }
    found
}

#[tokio::test]
async fn the_cost_of_a_lease_does_not_depend_on_the_number_of_tasks() {
    let schema = Schema::new();
    let meter = CostMeter::new(schema).await;
    meter.fill(1, 10_000, 0, 2).await;
    let few = meter.lease(None).await;
    meter.fill(100_000, 290_000, 0, 2).await;
    let many = meter.lease(None).await;
    assert!(many * 10 <= few * 13, "{few} blocks with 10 thousand pending, {many} with 300 thousand");
    meter.fill(1_000_000, 200_000, 9, 0).await;
    meter.fill(2_000_000, 200_000, 0, 4).await;
    // The scheduled tasks have a priority of their own: one more scan, of an empty part of the index.
    let others = meter.lease(None).await;
    assert!(others * 10 <= few * 13, "{few} blocks alone, {others} beside future and finished tasks");
    // If tasks have kept their position, those are searched for, too.
    let early =
        format!("UPDATE {}.queue_priorities SET has_early = true WHERE priority = 0", meter.schema.name);
    meter.client.batch_execute(&early).await.unwrap();
    let kept = meter.lease(None).await;
    assert!(
        kept * 10 <= few * 14,
        "{few} blocks alone, {kept} with a search for tasks that kept their position"
    );
}

#[tokio::test]
async fn the_cost_of_a_lease_of_plain_tasks_does_not_depend_on_the_number_of_tasks() {
    let schema = Schema::new();
    let meter = CostMeter::new(schema).await;
    meter.fill(1, 10_000, 0, 2).await;
    let few = meter.lease_plain(None).await;
    meter.fill(100_000, 190_000, 0, 2).await;
    let many = meter.lease_plain(None).await;
    assert!(many * 10 <= few * 13, "{few} blocks with 10 thousand pending, {many} with 200 thousand");
    meter.fill(1_000_000, 100_000, 0, 0).await;
    meter.fill(2_000_000, 100_000, 0, 4).await;
    let others = meter.lease_plain(None).await;
    assert!(others * 10 <= few * 13, "{few} blocks alone, {others} beside future and finished tasks");
}

#[tokio::test]
async fn the_list_of_a_small_queue_does_not_read_the_tasks_of_others() {
    let meter = CostMeter::new(Schema::new()).await;
    let store = meter.schema.store().await;
    meter.fill(1, 50_000, 0, 2).await;
    let small = task_fixture::queue("it's 5\\ small");
    let mut new = task_fixture::task(1 << 64);
    new.queue = small.clone();
    store.tasks().unwrap().enqueue(&[new]).await.unwrap();
    meter.client.batch_execute(&format!("ANALYZE {}.tasks", meter.schema.name)).await.unwrap();
    for state in [Some(TaskState::Pending), None] {
        let query = ListTasks::default().queue(Some(small.clone())).state(state);
        assert_eq!(store.tasks().unwrap().list(&query).await.unwrap().items.len(), 1);
        let explain =
            format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}", store.task_list_statement(&query));
        let plan = meter.explain(&explain).await;
        assert_eq!(plan["Actual Rows"].as_f64(), Some(1.0), "{plan}");
        assert!(blocks(&plan) < 100, "{} blocks: {plan}", blocks(&plan));
    }
}

#[tokio::test]
async fn a_long_transaction_does_not_slow_down_leases() {
    let schema = Schema::new();
    let meter = CostMeter::new(schema).await;
    let store = meter.schema.store().await;
    let tasks = store.tasks().unwrap();
    let new: Vec<NewTask> = (1..=21_000).map(task_fixture::task).collect();
    let waiting = |number| NewTask {
        queue: task_fixture::queue("waiting"),
        runner_ttl: Some(Ttl::from_secs(86_400)),
        ..task_fixture::task(number)
    };
    let waiting: Vec<NewTask> = (100_001..=102_000).map(waiting).collect();
    for new in new.chunks(1000).chain(waiting.chunks(1000)) {
        tasks.enqueue(new).await.unwrap();
    }
    let before = meter.lease(None).await;
    let nothing_expired = meter.expired(0).await;
    let idle = meter.schema.client().await;
    idle.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await.unwrap();
    // The processes that will run these tasks renew their deadlines.
    let started = tasks.now().await.unwrap().as_micros();
    for deadline in (0..20).map(|renewal| started - 1_000_000 + renewal).chain([started + DAY]) {
        let renew = format!(
            "UPDATE {}.tasks SET runner_deadline = {deadline} WHERE queue = 'waiting'",
            meter.schema.name
        );
        meter.client.batch_execute(&renew).await.unwrap();
    }
    let ttl = Ttl::from_secs(2);
    let request = |max| LeaseTasks::new(task_fixture::worker(1), vec![task_fixture::queue("q")], max, ttl);
    let mut last = 0;
    for _ in 0..20 {
        let leased = tasks.lease(&request(1000)).await.unwrap().tasks;
        last = leased.last().unwrap().ready_at.as_micros();
        let done = |task: &leasehold::model::Task| Settle {
            id: task.id,
            token: task.token,
            result: AttemptResult::Done(None),
        };
        tasks.settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    }
    // Waits until these leases would have expired.
    let ends = tasks.now().await.unwrap().plus(ttl);
    while tasks.now().await.unwrap() <= ends {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for after in [meter.lease_plain(Some(last)).await, meter.lease(Some(last)).await] {
        assert!(
            after <= before * 2,
            "{before} blocks before, {after} after 20 thousand were done beside an open transaction"
        );
    }
    let now = tasks.now().await.unwrap().as_micros();
    let expired = meter.expired(now).await;
    assert!(
        expired <= nothing_expired + 10,
        "{nothing_expired} blocks before, {expired} after, for no lease"
    );
    let without_cursor = meter.expired(0).await;
    assert!(
        without_cursor > expired * 3,
        "the test proves nothing: {without_cursor} blocks without a cursor"
    );
    let without_cursor = meter.lease_once(None).await;
    assert!(without_cursor > before * 3, "the test proves nothing: {without_cursor} blocks without a cursor");
    drop(idle);
}

/// The cost of recovery and retention does not depend on the number of queues.
#[tokio::test]
async fn the_cost_of_recovery_and_purge_does_not_depend_on_the_number_of_queues() {
    let schema = Schema::new();
    let meter = CostMeter::new(schema).await;
    let store = meter.schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task_fixture::task(1), task_fixture::task(2).after(3600)]).await.unwrap();
    let scans = async || {
        // A session reports its statistics with a delay, unless it is forced to.
        meter.client.batch_execute("SELECT pg_stat_force_next_flush()").await.ok();
        let sql = format!(
            "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_indexes WHERE schemaname = '{}' AND relname = 'tasks'",
            meter.schema.name
        );
        meter.client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    let names = format!(
        "INSERT INTO {s}.task_queues (name) SELECT 'queue-' || n FROM generate_series(1, 10000) n;
         INSERT INTO {s}.queue_priorities (queue, priority) SELECT 'queue-' || n, 0 FROM generate_series(1, 10000) n",
        s = meter.schema.name
    );
    meter.client.batch_execute(&names).await.unwrap();
    let filter = FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(1), limit: 100 };
    let before = scans().await;
    tasks.recover(100).await.unwrap();
    assert_eq!(tasks.purge(&filter).await.unwrap(), 0);
    drop(store);
    let after = scans().await;
    assert!(after - before < 1000, "{} scans of indexes of tasks with 10,000 queues", after - before);
}

/// A retention of one queue reads no finished task of another, and one of all queues none that is kept.
#[tokio::test]
async fn the_cost_of_a_purge_does_not_depend_on_the_tasks_that_are_kept() {
    let meter = CostMeter::new(Schema::new()).await;
    let (empty, _) = meter.purge("'other'", 1, 100).await;
    meter.fill(1, 100_000, 0, 4).await;
    // Each has ended at the microsecond of its number.
    for (queue, before, expected) in
        [("'other'", 1_000_000, 0.0), ("NULL", 1, 0.0), ("'q'", 11, 10.0), ("NULL", 21, 10.0)]
    {
        let (blocks, deleted) = meter.purge(queue, before, 100).await;
        assert_eq!(deleted, Some(expected), "{queue} before {before}");
        assert!(blocks <= empty + 400, "{empty} blocks of an empty table, {blocks} for {queue}");
    }
}

/// A purge of many queues reads a few tasks of each, and deletes those of all queues that ended first.
#[tokio::test]
async fn the_cost_of_a_purge_does_not_depend_on_the_tasks_of_each_queue() {
    let meter = CostMeter::new(Schema::new()).await;
    meter.fill_queues(200, 100_000).await;
    let (blocks, deleted) = meter.purge("NULL", 1_000_000, 1000).await;
    assert_eq!(deleted, Some(1000.0));
    let first = format!("SELECT min(finished_at) FROM {}.tasks", meter.schema.name);
    assert_eq!(meter.client.query_one(&first, &[]).await.unwrap().get::<_, i64>(0), 1001);
    assert!(blocks < 50_000, "{blocks} blocks of 100,000 finished tasks");
}

/// One queue has half of the tasks, and each of the others very few.
#[tokio::test]
async fn a_purge_of_uneven_queues_deletes_the_tasks_that_ended_first() {
    let meter = CostMeter::new(Schema::new()).await;
    // Queue `q` has the even numbers, and each of 500 others has three odd ones.
    meter.fill_queues(1000, 3000).await;
    let move_half = format!("UPDATE {}.tasks SET queue = 'q' WHERE finished_at % 2 = 0", meter.schema.name);
    meter.client.batch_execute(&move_half).await.unwrap();
    for (limit, first) in [(500, 501), (1, 502), (1000, 1502), (5000, 0)] {
        let (_, deleted) = meter.purge("NULL", 3000, limit).await;
        let next =
            format!("SELECT min(finished_at) FROM {}.tasks WHERE finished_at < 3000", meter.schema.name);
        let next: Option<i64> = meter.client.query_one(&next, &[]).await.unwrap().get(0);
        assert_eq!(next.unwrap_or(0), first, "after {deleted:?} of at most {limit}");
    }
}
