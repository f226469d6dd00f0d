//! The table, its creation and its check.

use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::create_table::CreateTableError;
use aws_sdk_dynamodb::operation::describe_table::DescribeTableError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
    TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
};

use super::error::{explain, is_denied, malformed};
use super::item::{NAME, TTL, text};
use super::options::DynamoDbOptions;
use crate::error::{Error, Result, StoreErrorKind};
use crate::store::server_clock::ServerClock;
use crate::store::{BootInstant, RESERVED_PREFIX};

const CREATE_TIMEOUT: Duration = Duration::from_mins(2);

#[derive(Debug)]
pub(super) struct Table {
    pub(super) client: Client,
    pub(super) options: DynamoDbOptions,
    pub(super) dates: ServerClock,
}

impl Table {
    pub(super) fn name(&self) -> &str {
        &self.options.table
    }
}

pub(super) async fn check(table: &Table) -> Result<()> {
    match table.client.describe_table().table_name(table.name()).send().await {
        Ok(response) => response.table.map_or(Ok(()), |found| check_description(table.name(), &found)),
        // Credentials may permit use of the table without permitting its description: a read then
        // shows whether it can be used.
        Err(error) if is_denied(&error) => {
            let probe = table.client.get_item().table_name(table.name());
            let probe = probe.key(NAME, text(&format!("{RESERVED_PREFIX}probe"))).consistent_read(true);
            probe.send().await.map(drop).map_err(|error| explain(table.name(), &error))
        }
        Err(error) => Err(explain(table.name(), &error)),
    }
}

pub(super) async fn create(table: &Table) -> Result<()> {
    let key = KeySchemaElement::builder()
        .attribute_name(NAME)
        .key_type(KeyType::Hash)
        .build()
        .map_err(malformed)?;
    let name = AttributeDefinition::builder().attribute_name(NAME).attribute_type(ScalarAttributeType::S);
    let create = table
        .client
        .create_table()
        .table_name(table.name())
        .key_schema(key)
        .attribute_definitions(name.build().map_err(malformed)?)
        .billing_mode(BillingMode::PayPerRequest);
    let deadline = BootInstant::now().plus(CREATE_TIMEOUT);
    loop {
        match create.clone().send().await {
            Ok(_) => break,
            Err(error) => match error.as_service_error() {
                Some(CreateTableError::ResourceInUseException(_)) => break, // Already created.
                // The number of tables that may be changed at once is limited.
                Some(CreateTableError::LimitExceededException(_)) if BootInstant::now() < deadline => {
                    retry_pause().await;
                }
                _ => return Err(explain(table.name(), &error)),
            },
        }
    }
    wait_until_active(table, deadline).await?;
    enable_ttl(table, deadline).await
}

async fn wait_until_active(table: &Table, deadline: BootInstant) -> Result<()> {
    loop {
        let found = table.client.describe_table().table_name(table.name()).send().await;
        let error = match found {
            Ok(response) => match response.table.map(|found| check_description(table.name(), &found)) {
                Some(Err(error)) if error.is_retryable() => error,
                Some(result) => return result,
                None => return Ok(()),
            },
            // A new table may not be visible everywhere yet.
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(DescribeTableError::is_resource_not_found_exception) =>
            {
                explain(table.name(), &error)
            }
            Err(error) => return Err(explain(table.name(), &error)),
        };
        if deadline <= BootInstant::now() {
            return Err(error);
        }
        retry_pause().await;
    }
}

/// Enables deletion of expired items by the service: batches of old events.
async fn enable_ttl(table: &Table, deadline: BootInstant) -> Result<()> {
    let ttl =
        TimeToLiveSpecification::builder().attribute_name(TTL).enabled(true).build().map_err(malformed)?;
    let enable = table.client.update_time_to_live().table_name(table.name()).time_to_live_specification(ttl);
    loop {
        if ttl_attribute(table).await?.is_some_and(|attribute| attribute == TTL) {
            return Ok(());
        }
        match enable.clone().send().await {
            Ok(_) => return Ok(()),
            // Another client may be enabling it, or the table is being changed.
            Err(error) if deadline <= BootInstant::now() || is_denied(&error) => {
                return Err(explain(table.name(), &error));
            }
            Err(_) => retry_pause().await,
        }
    }
}

/// Returns the attribute with the time when an item may be deleted, if TTL is enabled.
pub(super) async fn ttl_attribute(table: &Table) -> Result<Option<String>> {
    let request = table.client.describe_time_to_live().table_name(table.name());
    let response = request.send().await.map_err(|error| explain(table.name(), &error))?;
    Ok(response.time_to_live_description.and_then(|ttl| match ttl.time_to_live_status {
        Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling) => ttl.attribute_name,
        _ => None,
    }))
}

/// Checks that leasehold can use this table now.
fn check_description(name: &str, table: &TableDescription) -> Result<()> {
    let is_ours = match table.key_schema() {
        [key] => {
            let is_text = |attribute: &AttributeDefinition| {
                attribute.attribute_name == NAME && attribute.attribute_type == ScalarAttributeType::S
            };
            key.attribute_name == NAME && table.attribute_definitions().iter().any(is_text)
        }
        _ => false,
    };
    if !is_ours {
        return Err(Error::store(
            StoreErrorKind::Misconfigured,
            format!(
                "the DynamoDB table '{name}' is not a table of leasehold: its only key must be the string '{NAME}'"
            ),
            "use a separate table for leasehold",
        ));
    }
    match table.table_status() {
        None | Some(TableStatus::Active | TableStatus::Updating) => Ok(()),
        Some(status) => Err(Error::store(
            StoreErrorKind::Unavailable,
            format!("the DynamoDB table '{name}' cannot be used: it is {}", status.as_str().to_lowercase()),
            "try again in a minute",
        )),
    }
}

async fn retry_pause() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(100..500))).await;
}
