//! What a lease costs, in blocks that the server touches: the same however many tasks there are that it is not about.

use std::collections::BTreeMap;

use leasehold::model::{
    AttemptResult, FinishedFilter, LeaseTasks, NewTask, Settle, Timestamp, Ttl, WorkerId,
};
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
             bigint, boolean, bigint, bigint) AS {};
             PREPARE expired (bigint, bigint) AS {}",
            lease.sql,
            store.expired_statement()
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
        // Where the other cursor would stand: at the last look for leases that have run out.
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let expired = if since.is_some() { now } else { "0" };
        let explain = format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
             EXECUTE lease ('{{q}}', '{{0}}', 10, '{worker}', 30000000, {cursor}, 1000, true, {expired}, 1048576, NULL)"
        );
        let plan = self.explain(&explain).await;
        // Newer servers say it with a fraction.
        assert_eq!(plan["Actual Rows"].as_f64(), Some(10.0), "{plan}");
        let scans = indexes(&plan);
        assert_eq!(scans.get("tasks_ready"), Some(&1), "{scans:?}");
        blocks(&plan)
    }

    /// The blocks that it takes to find no lease that has run out, from a time on.
    async fn expired(&self, since: u64) -> u64 {
        let mut plan = serde_json::Value::Null;
        for _ in 0..2 {
            let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE expired ({since}, NULL)");
            plan = self.explain(&explain).await;
        }
        assert_eq!(indexes(&plan).get("tasks_running"), Some(&2), "{plan}");
        blocks(&plan)
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
    // Where tasks have kept their place, those are looked for, too.
    let early = format!("UPDATE {}.task_levels SET early = true WHERE priority = 0", scales.schema.name);
    scales.client.batch_execute(&early).await.unwrap();
    let kept = scales.lease(None).await;
    assert!(kept * 10 <= few * 14, "{few} blocks alone, {kept} with a look for tasks that kept their place");
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
    let nothing_expired = scales.expired(0).await;
    let idle = scales.schema.client().await;
    idle.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class").await.unwrap();
    let ttl = Ttl::from_secs(2);
    let ask = |max| LeaseTasks::new(shop::worker(1), vec![shop::queue("q")], max, ttl);
    let mut last = 0;
    for _ in 0..20 {
        let leased = tasks.lease(&ask(1000)).await.unwrap().tasks;
        last = leased.last().unwrap().ready_at.as_micros();
        let done = |task: &leasehold::model::Task| Settle {
            id: task.id,
            token: task.token,
            verdict: AttemptResult::Done(None),
        };
        tasks.settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    }
    // Until it would be time to look whether these leases have run out.
    let ends = tasks.now().await.unwrap().plus(ttl);
    while tasks.now().await.unwrap() <= ends {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let after = scales.lease(Some(last)).await;
    assert!(
        after <= before * 2,
        "{before} blocks before, {after} after 20 thousand were done beside an open transaction"
    );
    let now = tasks.now().await.unwrap().as_micros();
    let expired = scales.expired(now).await;
    assert!(
        expired <= nothing_expired + 10,
        "{nothing_expired} blocks before, {expired} after, for no lease"
    );
    let from_the_beginning = scales.expired(0).await;
    assert!(from_the_beginning > expired * 3, "no test: {from_the_beginning} blocks without a cursor");
    let from_the_beginning = scales.lease_once(None).await;
    assert!(
        from_the_beginning > before * 3,
        "this would be no test: {from_the_beginning} blocks without a cursor"
    );
    drop(idle);
}

/// Recovery and retention cost the same however many queues there ever were.
#[tokio::test]
async fn a_recovery_and_a_purge_do_not_grow_with_the_queues_there_were() {
    let Some(schema) = Schema::new() else { return };
    let scales = Scales::new(schema).await;
    let store = scales.schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[shop::task(1), shop::task(2).after(3600)]).await.unwrap();
    let scans = async || {
        // What a session has counted is told with a delay, unless it is asked to.
        scales.client.batch_execute("SELECT pg_stat_force_next_flush()").await.ok();
        let sql = format!(
            "SELECT coalesce(sum(idx_scan), 0)::bigint FROM pg_stat_user_indexes WHERE schemaname = '{}' AND relname = 'tasks'",
            scales.schema.name
        );
        scales.client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0)
    };
    let names = format!(
        "INSERT INTO {s}.task_queues (name) SELECT 'queue-' || n FROM generate_series(1, 10000) n;
         INSERT INTO {s}.task_levels (queue, priority) SELECT 'queue-' || n, 0 FROM generate_series(1, 10000) n",
        s = scales.schema.name
    );
    scales.client.batch_execute(&names).await.unwrap();
    let which = FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(1), limit: 100 };
    let before = scans().await;
    tasks.recover(100).await.unwrap();
    assert_eq!(tasks.purge(&which).await.unwrap(), 0);
    drop(store);
    let after = scans().await;
    assert!(after - before < 1000, "{} looks into indexes of tasks with 10,000 queues", after - before);
}
