//! What a lease costs, in blocks that the server touches: the same however many tasks there are that it is not about.

use std::collections::BTreeMap;

use leasehold::model::{LeaseTasks, NewTask, Settle, Ttl, Verdict, WorkerId};
use leasehold::store::Store;
use leasehold::testing::shop;
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::engines::postgres::server::Schema;

/// The server as the tests talk to it, with the store's own statement for a lease.
struct Scales {
    schema: Schema,
    client: Client,
}

impl Scales {
    async fn new(schema: Schema) -> Self {
        let store = schema.store().await;
        let client = schema.client().await;
        let lease = store.lease_statement();
        client.batch_execute(lease.plans).await.unwrap();
        let prepare = format!(
            "PREPARE lease (text[], bigint[], bigint, uuid, bigint, text[], integer[], bigint[], bigint[], boolean, bigint[], uuid[],
             bigint) AS {}",
            lease.sql
        );
        client.batch_execute(&prepare).await.unwrap();
        Self { schema, client }
    }

    /// Puts `count` tasks into the table, numbered from `first` on.
    async fn fill(&self, first: u64, count: u64, priority: i32, state: u8) {
        let now = 1_700_000_000_000_000_u64;
        let (schema, last) = (&self.schema.name, first + count - 1);
        // Those that wait for their time wait long; those that are over ended long ago.
        let (run_at, finished_at) = match state {
            0 => (9_000_000_000_000_000, "NULL"),
            4 => (now, "n"),
            _ => (now, "NULL"),
        };
        let fill = format!(
            "INSERT INTO {schema}.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived,
                 marred, queue, finished_at, created_at, first_pause, longest_pause, attempts, payload)
             SELECT lpad(to_hex(n), 32, '0')::uuid, {run_at}, {now} + n, 0, 1, {now}, {priority}, 0, {state}, false, false, 'q',
                 {finished_at}, {now}, 1000000, 1000000, 5, 'null'
             FROM generate_series({first}, {last}) n;
             INSERT INTO {schema}.task_queues (name) VALUES ('q') ON CONFLICT DO NOTHING;
             INSERT INTO {schema}.task_levels (queue, priority) VALUES ('q', {priority}) ON CONFLICT DO NOTHING"
        );
        self.client.batch_execute(&fill).await.unwrap();
    }

    /// The blocks that a lease of ten touches; `since` is where the store's cursor would stand. The second of two, because
    /// the first that comes to a block may have to tidy it up.
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
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
             EXECUTE lease ('{{q}}', '{{0}}', 10, '{worker}', 30000000, {cursor}, NULL)"
        );
        let mut text = String::new();
        for message in self.client.simple_query(&explain).await.unwrap() {
            if let SimpleQueryMessage::Row(row) = message {
                text.push_str(row.get(0).unwrap());
            }
        }
        let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
        let plan = &plan[0]["Plan"];
        // Newer servers say it with a fraction.
        assert_eq!(plan["Actual Rows"].as_f64(), Some(10.0), "{text}");
        let scans = indexes(plan);
        assert_eq!(scans.get("tasks_ready"), Some(&1), "{scans:?}");
        plan["Shared Hit Blocks"].as_u64().unwrap() + plan["Shared Read Blocks"].as_u64().unwrap()
    }
}

/// How often a plan names each index.
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
async fn a_lease_costs_the_same_however_many_tasks_there_are() {
    let Some(schema) = Schema::new() else { return };
    let scales = Scales::new(schema).await;
    scales.fill(1, 10_000, 0, 2).await;
    let few = scales.lease(None).await;
    scales.fill(100_000, 290_000, 0, 2).await;
    let many = scales.lease(None).await;
    assert!(many * 10 <= few * 13, "{few} blocks with 10 thousand pending, {many} with 300 thousand");
    scales.fill(1_000_000, 200_000, 9, 0).await;
    scales.fill(2_000_000, 200_000, 0, 4).await;
    // The future tasks have a priority that nothing else has: one more look, into an empty part of the index.
    let others = scales.lease(None).await;
    assert!(others * 10 <= few * 13, "{few} blocks alone, {others} beside future and finished tasks");
}

#[tokio::test]
async fn a_transaction_that_stays_open_does_not_make_leases_dear() {
    let Some(schema) = Schema::new() else { return };
    let scales = Scales::new(schema).await;
    let store = scales.schema.store().await;
    let tasks = store.tasks().unwrap();
    let new: Vec<NewTask> = (1..=21_000).map(shop::task).collect();
    for new in new.chunks(1000) {
        tasks.enqueue(new).await.unwrap();
    }
    let before = scales.lease(None).await;
    let idle = scales.schema.client().await;
    idle.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await.unwrap();
    let ask = |max| LeaseTasks {
        worker: shop::worker(1),
        queues: vec![shop::queue("q")],
        max,
        ttl: Ttl::from_secs(60),
    };
    let mut last = 0;
    for _ in 0..20 {
        let leased = tasks.lease(&ask(1000)).await.unwrap().tasks;
        last = leased.last().unwrap().ready_at.as_micros();
        let done = |task: &leasehold::model::Task| Settle {
            id: task.id,
            token: task.token,
            verdict: Verdict::Done(None),
        };
        tasks.settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    }
    let after = scales.lease(Some(last)).await;
    assert!(
        after <= before * 2,
        "{before} blocks before, {after} after 20 thousand were done beside an open transaction"
    );
    let from_the_beginning = scales.lease_once(None).await;
    assert!(
        from_the_beginning > before * 3,
        "this would be no test: {from_the_beginning} blocks without a cursor"
    );
    drop(idle);
}
