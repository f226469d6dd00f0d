//! Creation and migration of the tables: first start, concurrent starts, upgrades, roles with few privileges.

use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::model::{
    AttemptResult, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, LockName, NewTask, Outcome, Pause,
    Settle, Task, Timestamp, Ttl,
};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{ListEvents, LockStore, NewDocument, PutIf, Store, StoreUrl};
use leasehold::testing::TestClient;
use leasehold::testing::task_fixture::{ada, cancel, info, queue, task, worker};
use tokio::task::JoinSet;

use super::maintenance::{MANY, add_many_events, count_events};
use super::schema::Schema;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_processes_can_start_at_once() {
    let schema = Schema::new();
    for _ in 0..3 {
        let mut starts = JoinSet::new();
        for _ in 0..20 {
            starts.spawn(start(schema.options("pool=1")));
        }
        starts.join_all().await;
        schema.client().await.batch_execute(&format!("DROP SCHEMA {} CASCADE", schema.name)).await.unwrap();
    }
}

/// Connects again if the server was too busy to answer. Any other error is one of the migration.
async fn start(options: PostgresOptions) {
    for _ in 0..10 {
        match PostgresStore::connect(options.clone()).await {
            Err(error) if error.to_string().contains("did not answer in time") => {}
            connected => {
                connected.unwrap();
                return;
            }
        }
    }
    panic!("the server did not answer any of ten attempts in time");
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let schema = Schema::new();
    schema.store().await;
    let newer = format!("UPDATE {}.meta SET value = '99' WHERE key = 'schema_version'", schema.name);
    schema.client().await.batch_execute(&newer).await.unwrap();
    let error = PostgresStore::connect(schema.options("")).await.unwrap_err();
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().contains("version 99"), "{error}");
    assert!(error.hint().unwrap().contains("upgrade"));
}

/// Role for one test, dropped by `end`.
struct Role {
    name: String,
    schema: Schema,
}

impl Role {
    async fn new(schema: Schema) -> Self {
        let name = format!("role_{}", uuid::Uuid::now_v7().simple());
        let client = schema.client().await;
        client.batch_execute(&format!("CREATE ROLE {name} LOGIN PASSWORD 's3cr3t'")).await.unwrap();
        Self { name, schema }
    }

    /// Returns options for the test server with this role.
    fn options(&self, settings: &str) -> PostgresOptions {
        let url = self.schema.url_with(settings);
        let (_, address) = url.split_once('@').unwrap();
        PostgresOptions::from_url(
            &StoreUrl::parse(&format!("postgres://{}:s3cr3t@{address}", self.name)).unwrap(),
        )
        .unwrap()
    }

    /// Grants the privileges that the documentation lists.
    async fn grant_documented(&self) {
        let grants: Vec<_> = GRANTS.lines().filter(|line| line.starts_with("GRANT ")).collect();
        assert_eq!(grants.len(), 7, "{grants:?}");
        let client = self.schema.client().await;
        for grant in grants {
            let grant = grant.replace(" TO leasehold_app", &format!(" TO {}", self.name));
            let grant = grant.replace("leasehold.", &format!("{}.", self.schema.name));
            let grant = grant.replace("SCHEMA leasehold", &format!("SCHEMA {}", self.schema.name));
            client.batch_execute(&grant).await.unwrap();
        }
    }

    async fn end(self) {
        let client = self.schema.client().await;
        let end = format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name);
        client.batch_execute(&end).await.unwrap();
    }
}

/// Page that lists the necessary privileges.
const GRANTS: &str = include_str!("../../../../../../docs/engines/postgres.md");

#[tokio::test]
async fn the_documented_privileges_suffice_except_for_creating_tables() {
    let schema = Schema::new();
    schema.store().await;
    let role = Role::new(schema).await;
    role.grant_documented().await;
    let store = Arc::new(PostgresStore::connect(role.options("")).await.unwrap());
    let [one, two] =
        [1, 2].map(|number| TestClient::new(store.clone(), number, LockName::new("lock").unwrap()));
    let lease = one.acquire().await;
    assert!(matches!(one.renew(&lease).await, Outcome::Renewed(_)));
    two.expect_queued().await;
    one.release(&lease).await;
    assert!(two.holds().await);
    assert!(matches!(two.withdraw().await, Outcome::Withdrawn));
    store.sweep(10).await.unwrap();
    assert_eq!(store.history(&ListEvents::default()).await.unwrap().items.len(), 5);
    use_every_table(&store).await;
    role.end().await;
}

/// The role may not read the number of the last event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_with_the_documented_privileges_prunes_a_long_history() {
    let schema = Schema::new();
    add_many_events(&schema).await;
    let role = Role::new(schema).await;
    role.grant_documented().await;
    let client = role.schema.client().await;
    // The server does this itself from time to time.
    client.batch_execute(&format!("ANALYZE {}.events", role.schema.name)).await.unwrap();
    let mut options = role.options("pool=1");
    options.max_events = 20;
    let started = Instant::now();
    // Repeated, because the server may be too busy to answer a statement of the store in time.
    while count_events(&client, &role.schema).await > MANY / 2 {
        assert!(started.elapsed() < Duration::from_mins(1), "the history is not pruned");
        let _store = PostgresStore::connect(options.clone()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    role.end().await;
}

/// Reads and writes every table of tasks and documents.
async fn use_every_table(store: &PostgresStore) {
    let tasks = store.tasks().unwrap();
    let new = [task(1), task(2).with_key("k").with_lock("l"), task(3).with_lock("l"), task(4).after(3600)];
    tasks.enqueue(&new).await.unwrap();
    let request = LeaseTasks::new(worker(1), vec![queue("q")], 2, Ttl::from_secs(60));
    let leased = tasks.lease(&request).await.unwrap().tasks;
    let held = HeldTask::new(leased[0].id, leased[0].token);
    assert_eq!(
        tasks.heartbeat(&info(1), &[held], Ttl::from_secs(60)).await.unwrap(),
        [HeartbeatResult::Extended(None)]
    );
    let done = |task: &Task| Settle { id: task.id, token: task.token, result: AttemptResult::Done(None) };
    tasks.settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    tasks.change(task(4).id, &cancel()).await.unwrap();
    tasks.recover(10).await.unwrap();
    tasks.deregister(worker(1)).await.unwrap();
    let pause = Pause { by: ada(), reason: None, at: tasks.now().await.unwrap() };
    assert!(tasks.pause(&queue("q"), Some(pause)).await.unwrap());
    let filter =
        FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(u64::MAX), limit: 2 };
    assert_eq!((tasks.archive(&filter).await.unwrap(), tasks.purge(&filter).await.unwrap()), (2, 2));
    let document = NewDocument::new("");
    assert!(matches!(
        store.documents().unwrap().put_if("d", None, document).await.unwrap(),
        PutIf::Written(_)
    ));
    assert_eq!(tasks.queues().await.unwrap()[0].counts.open(), 1);
}

/// Connects a store whose release has more migrations.
async fn with_migrations(
    schema: &Schema,
    migrations: &'static [&'static str],
) -> leasehold::Result<PostgresStore> {
    let mut options = schema.options("");
    options.next_migrations = migrations;
    PostgresStore::connect(options).await
}

async fn version(schema: &Schema) -> String {
    let sql = format!("SELECT value FROM {}.meta WHERE key = 'schema_version'", schema.name);
    schema.client().await.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Migrations to versions 4 and 5: neither can run twice, and the second needs the first.
const TWO_MIGRATIONS: &[&str] = &[
    "ALTER TABLE $s.locks ADD COLUMN first text",
    "UPDATE $s.locks SET first = 'kept'; ALTER TABLE $s.locks RENAME COLUMN first TO second",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_upgraded_once_in_order_and_with_their_data() {
    let schema = Schema::new();
    let old = TestClient::new(schema.store().await, 1, LockName::new("old").unwrap());
    old.acquire().await;
    let before = old.record().await;
    assert_eq!(version(&schema).await, "3");
    let upgrade = || with_migrations(&schema, TWO_MIGRATIONS);
    let (one, two, three) = tokio::join!(upgrade(), upgrade(), upgrade());
    assert_eq!(version(&schema).await, "5");
    let sql = format!("SELECT second FROM {}.locks", schema.name);
    assert_eq!(schema.client().await.query_one(&sql, &[]).await.unwrap().get::<_, &str>(0), "kept");
    let new = TestClient::new(Arc::new(one.unwrap()), 1, LockName::new("old").unwrap());
    assert_eq!(new.record().await, before);
    use_every_table(&two.unwrap()).await;
    three.unwrap();
    let error = PostgresStore::connect(schema.options("")).await.unwrap_err();
    assert!(error.to_string().contains("version 5"), "{error}");
}

/// Makes the tables those of version 2, which had one index of the finished tasks of all queues.
const TO_VERSION_2: &str = "DROP INDEX $s.tasks_finished;
    CREATE INDEX tasks_finished ON $s.tasks (archived, finished_at, id) WHERE finished_at IS NOT NULL;
    UPDATE $s.meta SET value = '2' WHERE key = 'schema_version'";

/// Makes the tables of version 2 those of version 1, which had no timeout of tasks.
const TO_VERSION_1: &str = "ALTER TABLE $s.tasks DROP COLUMN timeout;
    UPDATE $s.meta SET value = '1' WHERE key = 'schema_version'";

async fn downgrade(schema: &Schema, steps: &[&str]) {
    let client = schema.client().await;
    for step in steps {
        client.batch_execute(&step.replace("$s", &schema.name)).await.unwrap();
    }
}

#[tokio::test]
async fn tables_of_version_1_are_upgraded() {
    let schema = Schema::new();
    let old = schema.store().await;
    use_every_table(&old).await;
    downgrade(&schema, &[TO_VERSION_2, TO_VERSION_1]).await;
    let store = schema.store().await;
    assert_eq!(version(&schema).await, "3");
    let tasks = store.tasks().unwrap();
    let timeout = Some(Ttl::from_secs(5));
    tasks.enqueue(&[NewTask { timeout, ..task(9) }]).await.unwrap();
    assert_eq!(tasks.get(task(9).id).await.unwrap().unwrap().timeout, timeout);
    assert_eq!(tasks.get(task(4).id).await.unwrap().unwrap().timeout, None);
}

#[tokio::test]
async fn tables_of_version_2_are_upgraded() {
    let schema = Schema::new();
    let old = schema.store().await;
    let definition = format!("SELECT pg_get_indexdef('{}.tasks_finished'::regclass)", schema.name);
    let index = async || schema.client().await.query_one(&definition, &[]).await.unwrap().get::<_, String>(0);
    let newest = index().await;
    downgrade(&schema, &[TO_VERSION_2]).await;
    old.tasks().unwrap().enqueue(&[task(1)]).await.unwrap();
    old.tasks().unwrap().change(task(1).id, &cancel()).await.unwrap();
    assert_ne!(index().await, newest);
    let store = schema.store().await;
    assert_eq!((version(&schema).await, index().await), ("3".to_owned(), newest));
    let before = Timestamp::from_micros(u64::MAX);
    let filter = FinishedFilter { queue: Some(queue("q")), state: None, before, limit: 2 };
    assert_eq!(store.tasks().unwrap().purge(&filter).await.unwrap(), 1);
}

/// Migration to version 4 that needs the whole table of tasks.
const TASK_MIGRATION: &[&str] = &["ALTER TABLE $s.tasks ADD COLUMN next text"];

/// A transaction that has read a table keeps an upgrade of it waiting. Statements of running processes do not wait for
/// the upgrade until they fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_waits_stops_no_running_process() {
    let schema = Schema::new();
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    tasks.enqueue(&[task(1)]).await.unwrap();
    let request = LeaseTasks::new(worker(1), vec![queue("q")], 1, Ttl::from_secs(60));
    let leased = tasks.lease(&request).await.unwrap().tasks;
    let held = [HeldTask::new(leased[0].id, leased[0].token)];
    let mut client = schema.client().await;
    let reads = client.transaction().await.unwrap();
    let table = format!("{}.tasks", schema.name);
    reads.batch_execute(&format!("SELECT FROM {table}")).await.unwrap();
    let mut options = schema.options("");
    options.next_migrations = TASK_MIGRATION;
    let upgrade = tokio::spawn(PostgresStore::connect(options));
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = $1::text::regclass
                   AND mode = 'AccessExclusiveLock'";
    for _ in 0..2 {
        while reads.query_one(waiting, &[&table]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(!upgrade.is_finished(), "the upgrade does not wait");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let beat = tasks.heartbeat(&info(1), &held, Ttl::from_secs(60)).await;
        assert_eq!(beat.unwrap(), [HeartbeatResult::Extended(None)]);
    }
    assert_eq!(version(&schema).await, "3");
    reads.rollback().await.unwrap();
    upgrade.await.unwrap().unwrap();
    assert_eq!(version(&schema).await, "4");
}

const FAILING_MIGRATIONS: &[&str] =
    &["CREATE TABLE $s.half (id integer)", "ALTER TABLE $s.missing ADD COLUMN id integer"];

#[tokio::test]
async fn a_failed_migration_changes_nothing() {
    let schema = Schema::new();
    with_migrations(&schema, FAILING_MIGRATIONS).await.unwrap_err();
    let store = schema.store().await;
    use_every_table(&store).await;
    with_migrations(&schema, FAILING_MIGRATIONS).await.unwrap_err();
    assert_eq!(version(&schema).await, "3");
    let sql = format!("SELECT to_regclass('{}.half') IS NULL", schema.name);
    assert!(schema.client().await.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn a_role_without_privileges_is_not_permitted() {
    let schema = Schema::new();
    let role = Role::new(schema).await;
    let error = PostgresStore::connect(role.options("")).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error:?}");
    assert!(error.hint().unwrap().contains("GRANT"));
    assert!(!format!("{error:?}").contains("s3cr3t"));
    // The tables exist now, but the role has no privileges on them.
    role.schema.store().await;
    let error = PostgresStore::connect(role.options("")).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error:?}");
    role.end().await;
}

/// The role may create tables in a schema that an administrator has created for it.
#[tokio::test]
async fn an_empty_schema_that_the_role_owns_suffices() {
    let schema = Schema::new();
    let role = Role::new(schema).await;
    let make = format!("CREATE SCHEMA {} AUTHORIZATION {}", role.schema.name, role.name);
    role.schema.client().await.batch_execute(&make).await.unwrap();
    let store = Arc::new(PostgresStore::connect(role.options("")).await.unwrap());
    TestClient::new(store, 1, LockName::new("lock").unwrap()).acquire().await;
    role.end().await;
}
