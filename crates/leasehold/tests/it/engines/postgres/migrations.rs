//! Creation and migration of the tables: first start, concurrent starts, old versions, roles with few privileges.

use std::sync::Arc;

use leasehold::model::{
    Acquire, AttemptResult, FinishedFilter, HeartbeatResult, HeldTask, LeaseTasks, LockName, LockOp,
    LockRecord, Message, Outcome, Pause, Payload, Settle, Task, TaskId, TaskKey, TaskState, Timestamp, Ttl,
};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{ListEvents, LockStore, NewDocument, PutIf, Store, StoreUrl};
use leasehold::testing::Player;
use leasehold::testing::shop::{ada, cancel, info, queue, task, worker};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::schema::Schema;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_processes_can_start_at_once() {
    let Some(schema) = Schema::new() else { return };
    for _ in 0..3 {
        let mut starts = JoinSet::new();
        for _ in 0..20 {
            starts.spawn(PostgresStore::connect(schema.options("pool=1")));
        }
        for store in starts.join_all().await {
            store.unwrap();
        }
        schema.client().await.batch_execute(&format!("DROP SCHEMA {} CASCADE", schema.name)).await.unwrap();
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused() {
    let Some(schema) = Schema::new() else { return };
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
    let Some(schema) = Schema::new() else { return };
    schema.store().await;
    let role = Role::new(schema).await;
    let grants: Vec<_> = GRANTS.lines().filter(|line| line.starts_with("GRANT ")).collect();
    assert_eq!(grants.len(), 7, "{grants:?}");
    let client = role.schema.client().await;
    for grant in grants {
        let grant = grant.replace(" TO leasehold_app", &format!(" TO {}", role.name));
        let grant = grant.replace("leasehold.", &format!("{}.", role.schema.name));
        let grant = grant.replace("SCHEMA leasehold", &format!("SCHEMA {}", role.schema.name));
        client.batch_execute(&grant).await.unwrap();
    }
    let store = Arc::new(PostgresStore::connect(role.options("")).await.unwrap());
    let [one, two] = [1, 2].map(|number| Player::new(store.clone(), number, LockName::new("lock").unwrap()));
    let lease = one.takes().await;
    assert!(matches!(one.renews(&lease).await, Outcome::Renewed(_)));
    two.queues().await;
    one.releases(&lease).await;
    assert!(two.holds().await);
    assert!(matches!(two.leaves().await, Outcome::Left));
    store.sweep(10).await.unwrap();
    assert_eq!(store.history(&ListEvents::default()).await.unwrap().items.len(), 5);
    use_every_table(&store).await;
    role.end().await;
}

/// Reads and writes every table of tasks and documents.
async fn use_every_table(store: &PostgresStore) {
    let tasks = store.tasks().unwrap();
    let new = [task(1), task(2).with_key("k").with_lock("l"), task(3).with_lock("l"), task(4).after(3600)];
    tasks.enqueue(&new).await.unwrap();
    let ask = LeaseTasks::new(worker(1), vec![queue("q")], 2, Ttl::from_secs(60));
    let leased = tasks.lease(&ask).await.unwrap().tasks;
    let held = HeldTask::new(leased[0].id, leased[0].token);
    assert_eq!(
        tasks.heartbeat(&info(1), &[held], Ttl::from_secs(60)).await.unwrap(),
        [HeartbeatResult::Extended(None)]
    );
    let done = |task: &Task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) };
    tasks.settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    tasks.change(task(4).id, &cancel()).await.unwrap();
    tasks.recover(10).await.unwrap();
    tasks.leave(worker(1)).await.unwrap();
    let pause = Pause { by: ada(), reason: None, at: tasks.now().await.unwrap() };
    assert!(tasks.pause(&queue("q"), Some(pause)).await.unwrap());
    let filter =
        FinishedFilter { queue: None, state: None, before: Timestamp::from_micros(u64::MAX), limit: 2 };
    assert_eq!((tasks.archive(&filter).await.unwrap(), tasks.purge(&filter).await.unwrap()), (2, 2));
    let document = NewDocument { body: String::new(), facts: Vec::new(), keep: None };
    assert!(matches!(store.docs().unwrap().put_if("d", None, document).await.unwrap(), PutIf::Written(_)));
    assert_eq!(tasks.queues().await.unwrap()[0].counts.open(), 1);
}

/// Tables of version 1.
const VERSION_1: &str = include_str!("version_1.sql");

#[tokio::test]
async fn tables_of_version_1_are_upgraded_with_their_data() {
    let Some(schema) = Schema::new() else { return };
    let client = schema.client().await;
    client.batch_execute(&VERSION_1.replace("SCHEMA_NAME", &schema.name)).await.unwrap();
    let stores = tokio::join!(schema.store(), schema.store(), schema.store());
    let old = Player::new(stores.0.clone(), 1, LockName::new("old").unwrap());
    assert_eq!(old.record().await.token.get(), 7);
    old.takes().await;
    use_every_table(&stores.1).await;
    let sql = format!("SELECT value FROM {}.meta WHERE key = 'schema_version'", schema.name);
    assert_eq!(client.query_one(&sql, &[]).await.unwrap().get::<_, &str>(0), "7");
}

/// Tables of version 2, with two pending tasks and one that has failed.
const VERSION_2: &str = include_str!("version_2.sql");

#[tokio::test]
async fn tasks_of_version_2_are_upgraded_with_all_fields() {
    let Some(schema) = Schema::new() else { return };
    let client = schema.client().await;
    client.batch_execute(&VERSION_2.replace("SCHEMA_NAME", &schema.name)).await.unwrap();
    let stores = tokio::join!(schema.store(), schema.store(), schema.store());
    let tasks = stores.0.tasks().unwrap();
    let id = |n: u128| TaskId::from_uuid(Uuid::from_u128(0x7000_8000_0000_0000_0000 + n));
    let first = tasks.keyed(&queue("q"), &TaskKey::new("old key").unwrap()).await.unwrap().unwrap();
    assert_eq!((first.id, first.payload.as_str(), first.fingerprint.get()), (id(0x101), r#"{"a":1}"#, 77));
    assert_eq!((first.created_at.as_micros(), first.retries.attempts), (1000, 5));
    let failed = tasks.get(id(0x103)).await.unwrap().unwrap();
    assert_eq!(failed.result.as_ref().map(Payload::as_str), Some(r#"{"d":4}"#));
    assert_eq!(failed.error.as_ref().map(Message::as_str), Some("it rained again"));
    let ask = LeaseTasks::new(worker(1), vec![queue("q")], 9, Ttl::from_secs(60));
    let leased = stores.1.tasks().unwrap().lease(&ask).await.unwrap().tasks;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [id(0x101), id(0x102)]);
    assert!(leased[1].token.get() > 5);
    let done = |task: &Task| Settle { id: task.id, token: task.token, verdict: AttemptResult::Done(None) };
    tasks.settle(&leased.iter().map(done).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(tasks.get(id(0x102)).await.unwrap().unwrap().error, None);
    assert_eq!(tasks.queues().await.unwrap()[0].counts.open(), 0);
    use_every_table(&stores.2).await;
}

/// Downgrades the tables of a new store to version 6.
const BACK_TO_VERSION_6: &str = "DROP INDEX SCHEMA_NAME.tasks_ready, SCHEMA_NAME.tasks_blocked, SCHEMA_NAME.tasks_wanted;
    ALTER TABLE SCHEMA_NAME.tasks DROP COLUMN early, DROP COLUMN wanted_until;
    ALTER TABLE SCHEMA_NAME.task_levels DROP COLUMN early;
    DROP TABLE SCHEMA_NAME.task_heads;
    CREATE TABLE SCHEMA_NAME.task_heads (lock text COLLATE \"C\" PRIMARY KEY, id uuid) WITH (fillfactor = 70);
    CREATE INDEX tasks_ready ON SCHEMA_NAME.tasks (queue, priority, ready_at, run_at, id) WHERE state = 2;
    CREATE INDEX tasks_blocked ON SCHEMA_NAME.tasks (lock, (ready_at - priority * bigint '30000000'), run_at, id)
        WHERE state = 1;
    UPDATE SCHEMA_NAME.meta SET value = '6' WHERE key = 'schema_version';";

/// Version 6 had one head for all queues of a lock.
#[tokio::test]
async fn tasks_of_version_6_wait_only_for_tasks_of_their_queue() {
    let Some(schema) = Schema::new() else { return };
    let store = schema.store().await;
    let other = |number| task(number).in_queue("other").with_lock("l");
    store.tasks().unwrap().enqueue(&[task(1).with_lock("l"), other(2), other(3)]).await.unwrap();
    let client = schema.client().await;
    let back = BACK_TO_VERSION_6.to_owned()
        + "UPDATE SCHEMA_NAME.tasks SET state = 1 WHERE queue = 'other';
           INSERT INTO SCHEMA_NAME.task_counts VALUES ('other', 2, -1), ('other', 1, 1);
           INSERT INTO SCHEMA_NAME.task_heads SELECT lock, id FROM SCHEMA_NAME.tasks WHERE queue = 'q'";
    client.batch_execute(&back.replace("SCHEMA_NAME", &schema.name)).await.unwrap();
    let stores = tokio::join!(schema.store(), schema.store());
    let tasks = stores.0.tasks().unwrap();
    let lease = async |queues: &[&str]| {
        let queues = queues.iter().map(|name| queue(name)).collect();
        let ask = LeaseTasks::new(worker(1), queues, 9, Ttl::from_secs(60));
        tasks.lease(&ask).await.unwrap().tasks
    };
    let leased = lease(&["other"]).await;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [task(2).id]);
    let done = Settle { id: leased[0].id, token: leased[0].token, verdict: AttemptResult::Done(None) };
    tasks.settle(&[done]).await.unwrap();
    let leased = lease(&["q", "other"]).await;
    assert_eq!(leased.iter().map(|task| task.id).collect::<Vec<_>>(), [task(1).id, task(3).id]);
    let counts = tasks.queues().await.unwrap();
    let other = counts.iter().find(|status| status.queue == queue("other")).unwrap().counts;
    assert_eq!((other.get(TaskState::Blocked), other.get(TaskState::Pending)), (0, 0));
    assert_eq!((other.get(TaskState::Running), other.get(TaskState::Succeeded)), (1, 1));
}

/// Downgrades the tables of version 6 to version 5.
const BACK_TO_VERSION_5: &str = "
    ALTER TABLE SCHEMA_NAME.tasks DROP COLUMN ahead, DROP COLUMN expiries, DROP COLUMN check_at;
    DROP INDEX SCHEMA_NAME.tasks_due;
    CREATE INDEX tasks_running ON SCHEMA_NAME.tasks (id) WHERE state = 3;
    UPDATE SCHEMA_NAME.meta SET value = '5' WHERE key = 'schema_version';";

#[tokio::test]
async fn running_tasks_of_version_5_count_as_begun() {
    let Some(schema) = Schema::new() else { return };
    drop(schema.store().await);
    let client = schema.client().await;
    for back in [BACK_TO_VERSION_6, BACK_TO_VERSION_5] {
        client.batch_execute(&back.replace("SCHEMA_NAME", &schema.name)).await.unwrap();
    }
    let insert = format!(
        "INSERT INTO {s}.tasks (id, run_at, ready_at, token, version, updated_at, priority, attempt, state, archived, marred,
             queue, worker, leased_at, lease_expires_at, created_at, first_pause, longest_pause, attempts, payload)
         VALUES ('{id}', 1000, 1000, 1000, 2, 1000, 0, 1, 3, false, false, 'q', '{id}', 1000, 2000, 1000, 1000, 1000, 5, '1');
         INSERT INTO {s}.task_queues VALUES ('q', NULL);
         INSERT INTO {s}.task_levels VALUES ('q', 0, 0);
         INSERT INTO {s}.task_counts VALUES ('q', 3, 1)",
        s = schema.name,
        id = task(1).id
    );
    client.batch_execute(&insert).await.unwrap();
    let store = schema.store().await;
    let tasks = store.tasks().unwrap();
    let runs = tasks.get(task(1).id).await.unwrap().unwrap();
    assert_eq!((runs.begun, runs.expiries, runs.attempt), (true, 0, 1));
    assert_eq!(tasks.recover(10).await.unwrap().returned, 1);
    let runs = tasks.get(task(1).id).await.unwrap().unwrap();
    assert_eq!((runs.begun, runs.expiries, runs.attempt), (false, 1, 1));
}

/// Downgrades the tables of version 5 to version 3.
const BACK_TO_VERSION_3: &str = "DROP TABLE SCHEMA_NAME.tickets;
    ALTER TABLE SCHEMA_NAME.locks DROP COLUMN queue;
    ALTER TABLE SCHEMA_NAME.locks RESET (toast_tuple_target);
    DELETE FROM SCHEMA_NAME.meta WHERE key IN ('token_floor', 'token_floor_at');
    UPDATE SCHEMA_NAME.meta SET value = '3' WHERE key = 'schema_version'";

#[tokio::test]
async fn a_queue_of_version_3_keeps_its_order() {
    let Some(schema) = Schema::new() else { return };
    let (store, name) = (schema.store().await, LockName::new("old").unwrap());
    let [one, two, three] = [1, 2, 3].map(|number| Player::new(store.clone(), number, name.clone()));
    let now = store.now().await.unwrap();
    let mut old = LockRecord::new(name);
    for player in [&one, &two] {
        let (ask, queue) = (Arc::new(player.ask.clone()), Some(Ttl::from_secs(60)));
        old.apply(&LockOp::Acquire(Acquire { ask, queue, steal_after: None }), now);
    }
    let client = schema.client().await;
    for back in [BACK_TO_VERSION_6, BACK_TO_VERSION_5, BACK_TO_VERSION_3] {
        client.batch_execute(&back.replace("SCHEMA_NAME", &schema.name)).await.unwrap();
    }
    let insert =
        format!("INSERT INTO {}.locks (name, token, version, record) VALUES ($1, $2, $3, $4)", schema.name);
    let (token, version) = (i64::try_from(old.token.get()).unwrap(), i64::try_from(old.version).unwrap());
    let record = serde_json::to_string(&old).unwrap();
    client.execute(&insert, &[&old.name.as_str(), &token, &version, &record]).await.unwrap();

    tokio::join!(schema.store(), schema.store());
    assert_eq!(one.record().await, old);
    three.queues().await;
    assert!(matches!(one.releases(&old.holders[0]).await, Outcome::Released(_)));
    let record = three.record().await;
    assert_eq!((record.holders[0].ask.lease_id, record.waiters[0].ask.lease_id), (two.id(), three.id()));
    assert!(record.token > old.token);
}

#[tokio::test]
async fn a_role_without_privileges_is_not_permitted() {
    let Some(schema) = Schema::new() else { return };
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
    let Some(schema) = Schema::new() else { return };
    let role = Role::new(schema).await;
    let make = format!("CREATE SCHEMA {} AUTHORIZATION {}", role.schema.name, role.name);
    role.schema.client().await.batch_execute(&make).await.unwrap();
    let store = Arc::new(PostgresStore::connect(role.options("")).await.unwrap());
    Player::new(store, 1, LockName::new("lock").unwrap()).takes().await;
    role.end().await;
}
