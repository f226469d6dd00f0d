//! Tests of the table: created, missing, with another key, without permission; and its items.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use leasehold::StoreRemedy;
use leasehold::model::{
    Acquire, EventKind, Holder, LeaseId, LockName, LockOp, LockRecord, LockRequest, Outcome, Ttl,
};
use leasehold::store::dynamodb;
use leasehold::store::{Cursor, EventRange, ListEvents, ListLocks, Store, StoreUrl, connect, init};
use leasehold::testing::TestClient;
use serde_json::json;
use uuid::Uuid;

use super::fault_proxy::{Action, FaultProxy};
use super::support::{at, new_table, new_url, options, separate_client};
use crate::engines::process::program;

/// Returns the SDK's client, to inspect items directly.
fn raw(url: &str) -> (Client, String) {
    let options = options(url);
    let config = aws_sdk_dynamodb::Config::builder()
        .behavior_version_latest()
        .region(aws_sdk_dynamodb::config::Region::new("us-east-1"))
        .credentials_provider(aws_sdk_dynamodb::config::Credentials::new("test", "test", None, None, "test"))
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .endpoint_url(options.endpoint.unwrap());
    (Client::from_conf(config.build()), options.table)
}

async fn items(url: &str) -> Vec<HashMap<String, AttributeValue>> {
    let (client, table) = raw(url);
    client.scan().table_name(table).consistent_read(true).send().await.unwrap().items.unwrap()
}

fn player(store: &Arc<dyn Store>, number: u128, lock: &str) -> TestClient {
    let id = u128::from(fastrand::u64(..)) << 64 | number;
    TestClient::new(store.clone(), id, LockName::new(lock).unwrap())
}

async fn refused(url: &str) -> leasehold::Error {
    connect(&StoreUrl::parse(url).unwrap()).await.err().expect("the connection should have been rejected")
}

#[tokio::test]
async fn the_error_for_a_missing_table_says_how_to_create_it() {
    let at = at();
    let url = new_url(&at);
    let error = refused(&url).await;
    assert_eq!(error.code(), "STORE_MISCONFIGURED");
    assert!(error.to_string().ends_with("does not exist"), "{error}");
    assert_eq!(error.hint(), Some("create it, or check the region and the account"));
    assert_eq!(error.remedy(), Some(StoreRemedy::CreateTable));
    drop(init(&StoreUrl::parse(&url).unwrap()).await.unwrap());
    drop(connect(&StoreUrl::parse(&url).unwrap()).await.unwrap());
}

#[tokio::test]
async fn a_table_with_another_key_is_rejected_and_not_changed() {
    let at = at();
    for (keys, kind) in [
        (vec!["id"], ScalarAttributeType::S),
        (vec!["name"], ScalarAttributeType::N),
        (vec!["name", "sort"], ScalarAttributeType::S),
    ] {
        let url = new_url(&at);
        let (client, table) = raw(&url);
        let mut create = client.create_table().table_name(&table).billing_mode(BillingMode::PayPerRequest);
        for (key, role) in keys.into_iter().zip([KeyType::Hash, KeyType::Range]) {
            create = create
                .key_schema(KeySchemaElement::builder().attribute_name(key).key_type(role).build().unwrap())
                .attribute_definitions(
                    AttributeDefinition::builder()
                        .attribute_name(key)
                        .attribute_type(kind.clone())
                        .build()
                        .unwrap(),
                );
        }
        create.send().await.unwrap();
        let error = refused(&url).await;
        assert_eq!(error.code(), "STORE_MISCONFIGURED");
        assert!(error.to_string().contains("is not a table of leasehold"), "{error}");
        assert_eq!(dynamodb::create_table(&options(&url)).await.unwrap_err().code(), "STORE_MISCONFIGURED");
        assert!(items(&url).await.is_empty());
    }
}

#[tokio::test]
async fn a_client_without_describe_permission_can_use_the_table() {
    let at = at();
    let url = new_table(&at).await;
    let proxy = FaultProxy::before(&url, |operation| match operation {
        "DescribeTable" => Action::Refuse(400, "AccessDeniedException"),
        _ => Action::Pass,
    })
    .await;
    let store = separate_client(&proxy.url(&url)).await;
    player(&store, 1, "lock").acquire().await;
    assert!(
        store.check_health().await.unwrap().iter().any(|finding| finding.detail.contains("AccessDenied"))
    );
    let proxy = FaultProxy::before(&url, |_| Action::Refuse(400, "AccessDeniedException")).await;
    assert_eq!(refused(&proxy.url(&url)).await.code(), "STORE_NOT_PERMITTED");
}

/// Connects in another process, because all tests of this one share its environment.
#[test]
fn missing_credentials_are_reported_before_any_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = program(&["connect", &new_url(&at())]);
    for variable in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"] {
        child.env_remove(variable);
    }
    let output = child.env("AWS_EC2_METADATA_DISABLED", "true").env("HOME", folder.path()).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let [code, error, hint] = stdout.lines().collect::<Vec<_>>()[..] else { panic!("{output:?}") };
    assert_eq!(code, "STORE_MISCONFIGURED", "{error}");
    assert!(error.contains("there are no AWS credentials"), "{error}");
    assert!(hint.contains("AWS_PROFILE"), "{hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_clients_can_create_the_table_at_once() {
    let at = at();
    let url = new_url(&at);
    let calls: Vec<_> = (0..20)
        .map(|_| {
            let options = options(&url);
            tokio::spawn(async move { dynamodb::create_table(&options).await })
        })
        .collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let (client, table) = raw(&url);
    let ttl = client.describe_time_to_live().table_name(table).send().await.unwrap();
    assert_eq!(ttl.time_to_live_description.unwrap().attribute_name.as_deref(), Some("ttl"));
}

#[tokio::test]
async fn an_item_has_readable_attributes() {
    let at = at();
    let url = new_table(&at).await;
    let store = separate_client(&url).await;
    let player = player(&store, 1, "terraform/prod")
        .meta("user", "ada@example.com")
        .meta("client_address", "192.0.2.7");
    let lease = player.acquire().await;
    let [item] = &items(&url).await[..] else { panic!("one item") };
    let text = |name: &str| item[name].as_s().unwrap().as_str();
    assert_eq!(text("name"), "terraform/prod");
    assert_eq!(text("status"), "held");
    assert_eq!(text("holder"), lease.request.holder.as_str());
    assert_eq!(text("expires_at"), lease.expires_at.to_string());
    assert_eq!(item["token"].as_n().unwrap(), &lease.token.to_string());
    let metadata = item["metadata"].as_m().unwrap();
    assert_eq!(metadata["user"].as_s().unwrap(), "ada@example.com");
    assert_eq!(metadata["client_address"].as_s().unwrap(), "192.0.2.7");
    player.release(&lease).await;
    let [item] = &items(&url).await[..] else { panic!("still one item") };
    assert_eq!(item["status"].as_s().unwrap(), "free");
    assert!(!item.contains_key("holder") && !item.contains_key("ttl"), "a lock has no TTL");
}

#[tokio::test]
async fn history_moves_out_with_a_ttl_and_stays_complete_until_then() {
    let at = at();
    let url = new_table(&at).await;
    let store = separate_client(&url).await;
    let player = player(&store, 1, "lock");
    for _ in 0..12 {
        let lease = player.acquire().await;
        player.release(&lease).await;
    }
    let all =
        ListEvents::default().lock(player.lock.clone()).span(EventRange::After(Cursor::start())).limit(1000);
    let events = store.locks().history(&all).await.unwrap().items;
    assert_eq!(events.len(), 24);
    let batches: Vec<_> =
        items(&url).await.into_iter().filter(|item| item["name"].as_s().unwrap() != "lock").collect();
    assert!(batches.len() >= 4, "{}", batches.len());
    let now = store.locks().now().await.unwrap().as_micros() / 1_000_000;
    for batch in &batches {
        let end: u64 = batch["ttl"].as_n().unwrap().parse().unwrap();
        assert!(end.abs_diff(now + 90 * 24 * 3600) < 60, "{end}");
    }
    // The service deletes the oldest batches; the rest is listed in both directions.
    let (client, table) = raw(&url);
    let mut keys: Vec<_> = batches.iter().map(|batch| batch["name"].clone()).collect();
    keys.sort_by_key(|key| key.as_s().unwrap().clone());
    for key in keys.into_iter().take(2) {
        client.delete_item().table_name(&table).key("name", key).send().await.unwrap();
    }
    assert_eq!(store.locks().history(&all).await.unwrap().items, events[6..]);
    let newest = all.span(EventRange::Newest);
    let mut backward = store.locks().history(&newest).await.unwrap().items;
    backward.reverse();
    assert_eq!(backward, events[6..]);
}

/// The events of their ends need more space than the tickets did, and more than an item may have.
#[tokio::test]
async fn a_lock_whose_many_waiters_are_gone_is_acquired() {
    let at = at();
    let url = new_table(&at).await;
    let (clock, mut settings) = (crate::engines::support::clock(), options(&url));
    settings.clock = Some(clock.clone());
    let store: Arc<dyn Store> = Arc::new(dynamodb::connect(settings).await.unwrap());
    // The item as one holder and 650 waiters leave it.
    let name = "n".repeat(255);
    let mut record = LockRecord::new(LockName::new(&name).unwrap());
    for number in 1..=651 {
        let lease_id = LeaseId::from_uuid(Uuid::from_u128(number));
        let request = LockRequest::new(lease_id, Holder::new("h".repeat(255)).unwrap(), Ttl::from_secs(10));
        let (request, queue) = (Arc::new(request), Some(Ttl::from_secs(10)));
        record.apply(&LockOp::Acquire(Acquire { request, queue, steal_after: None }), clock.now());
    }
    assert_eq!(record.waiters.len(), 650);
    let body = json!({ "record": record, "first_event": 1, "events": [], "renewals": {}, "writes": [] });
    let (client, table) = raw(&url);
    let item = client.put_item().table_name(table).item("name", AttributeValue::S(name.clone()));
    let item = item.item("version", AttributeValue::N("1".to_owned()));
    let item = item.item("write_id", AttributeValue::S("x".to_owned()));
    item.item("body", AttributeValue::S(body.to_string())).send().await.unwrap();
    clock.advance(Duration::from_mins(1));
    let player = player(&store, 1, &name);
    let lease = player.acquire().await;
    assert!(player.record().await.waiters.is_empty());
    assert!(matches!(player.release(&lease).await, Outcome::Released(_)));
    let all = ListEvents::default().lock(player.lock.clone()).limit(1000);
    let events = store.locks().history(&all).await.unwrap().items;
    let count = |kind: EventKind| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!(
        (count(EventKind::Expired), count(EventKind::Acquired), count(EventKind::Released)),
        (1, 1, 1)
    );
    assert!(count(EventKind::Withdrawn) > 400, "{}", count(EventKind::Withdrawn));
}

#[tokio::test]
async fn a_list_is_ordered_and_omits_internal_items() {
    let at = at();
    let url = new_table(&at).await;
    let store = separate_client(&url).await;
    for number in 0..30_u128 {
        let player = player(&store, number, &format!("lock-{:02}", (number * 7) % 30));
        let lease = player.acquire().await;
        if number < 3 {
            for _ in 0..5 {
                player.release(&lease).await;
                player.acquire().await;
            }
        }
    }
    let mut query = ListLocks::default().limit(8);
    let mut names = Vec::new();
    loop {
        let page = store.locks().list(&query).await.unwrap();
        names.extend(page.items.into_iter().map(|record| record.name.to_string()));
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(names, (0..30).map(|number| format!("lock-{number:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn health_checks_report_a_disabled_ttl() {
    let at = at();
    let url = new_table(&at).await;
    let findings = separate_client(&url).await.check_health().await.unwrap();
    let issues: Vec<_> = findings.iter().filter_map(|finding| finding.issue.as_ref()).collect();
    assert!(issues.is_empty(), "{issues:?}");
    let detail = |name: &str| &findings.iter().find(|finding| finding.name == name).expect(name).detail;
    assert!(detail("table").starts_with("active, on demand"), "{}", detail("table"));
    assert!(detail("lease clock").ends_with("agrees with the service's"), "{}", detail("lease clock"));
    // A table without TTL, as if created by hand.
    let (client, table) = raw(&url);
    let off =
        aws_sdk_dynamodb::types::TimeToLiveSpecification::builder().attribute_name("ttl").enabled(false);
    client
        .update_time_to_live()
        .table_name(table)
        .time_to_live_specification(off.build().unwrap())
        .send()
        .await
        .unwrap();
    let findings = separate_client(&url).await.check_health().await.unwrap();
    let codes: Vec<_> =
        findings.iter().filter_map(|finding| finding.issue.as_ref()).map(|c| c.code).collect();
    assert_eq!(codes, ["DYNAMODB_TTL_OFF"]);
}
