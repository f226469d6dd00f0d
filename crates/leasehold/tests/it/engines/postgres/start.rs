//! The first start, many starts at once, and starts by those who may do little.

use std::sync::Arc;

use leasehold::model::{LockName, Outcome};
use leasehold::store::postgres::{PostgresOptions, PostgresStore};
use leasehold::store::{ListEvents, LockStore, StoreUrl};
use leasehold::testing::Player;
use tokio::task::JoinSet;

use super::server::Schema;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_may_start_at_once() {
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

/// A role for one test, gone with it.
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

    /// The test server's URL with this role instead.
    fn options(&self, settings: &str) -> PostgresOptions {
        let url = self.schema.url_with(settings);
        let (_, place) = url.split_once('@').unwrap();
        PostgresOptions::from_url(
            &StoreUrl::parse(&format!("postgres://{}:s3cr3t@{place}", self.name)).unwrap(),
        )
        .unwrap()
    }

    async fn end(self) {
        let client = self.schema.client().await;
        let end = format!("DROP OWNED BY {0}; DROP ROLE {0}", self.name);
        client.batch_execute(&end).await.unwrap();
    }
}

/// What docs/engines/postgres.md says is enough.
const GRANTS: &str = include_str!("../../../../../../docs/engines/postgres.md");

#[tokio::test]
async fn a_role_with_the_documented_rights_can_do_everything_but_make_the_tables() {
    let Some(schema) = Schema::new() else { return };
    schema.store().await;
    let role = Role::new(schema).await;
    let grants: Vec<_> = GRANTS.lines().filter(|line| line.starts_with("GRANT ")).collect();
    assert_eq!(grants.len(), 4, "{grants:?}");
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
    role.end().await;
}

#[tokio::test]
async fn a_role_that_may_do_nothing_is_told_so() {
    let Some(schema) = Schema::new() else { return };
    let role = Role::new(schema).await;
    let error = PostgresStore::connect(role.options("")).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error:?}");
    assert!(error.hint().unwrap().contains("GRANT"));
    assert!(!format!("{error:?}").contains("s3cr3t"));
    // The tables are there now, but not for everybody.
    role.schema.store().await;
    let error = PostgresStore::connect(role.options("")).await.unwrap_err();
    assert_eq!(error.code(), "STORE_NOT_PERMITTED", "{error:?}");
    role.end().await;
}

/// It may make tables in a schema that an administrator has made for it.
#[tokio::test]
async fn an_empty_schema_that_belongs_to_the_role_is_enough() {
    let Some(schema) = Schema::new() else { return };
    let role = Role::new(schema).await;
    let make = format!("CREATE SCHEMA {} AUTHORIZATION {}", role.schema.name, role.name);
    role.schema.client().await.batch_execute(&make).await.unwrap();
    let store = Arc::new(PostgresStore::connect(role.options("")).await.unwrap());
    Player::new(store, 1, LockName::new("lock").unwrap()).takes().await;
    role.end().await;
}
