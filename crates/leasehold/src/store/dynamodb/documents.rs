//! Documents as items of one table.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::types::{KeysAndAttributes, ReturnValuesOnConditionCheckFailure};

use super::error::{explain, malformed};
use super::item::{self, BODY, Item, ItemWrite, NAME, VERSION, text};
use super::table::Table;
use crate::Result;
use crate::store::document_store::is_listed;
use crate::store::lock_store::page_size;
use crate::store::{
    BootInstant, Capabilities, Cursor, Document, DocumentStore, HealthCheck, Hosts, NewDocument, Page, PutIf,
    RESERVED_PREFIX, Time, clock,
};

#[async_trait]
impl DocumentStore for Table {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            poll: Duration::from_millis(500),
            shared_locks: true,
            queues: true,
            ..Capabilities::new("dynamodb", Hosts::Many)
        }
    }

    fn url(&self) -> String {
        self.options.url.clone()
    }

    /// Returns a small batch size: every write is charged by the kilobytes of its item, and this
    /// many events fit into one kilobyte.
    fn batch(&self) -> u64 {
        3
    }

    async fn get(&self, key: &str) -> Result<Option<Document>> {
        let request =
            self.client.get_item().table_name(self.name()).key(NAME, text(key)).consistent_read(true);
        let response = request.send().await.map_err(|error| explain(self.name(), &error))?;
        response.item.map(|item| item::read(item).map(|(_, doc)| doc)).transpose()
    }

    async fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Document>>> {
        let mut found = HashMap::new();
        let mut wanted: Vec<Item> =
            keys.iter().map(|key| Item::from([(NAME.to_owned(), text(key))])).collect();
        while !wanted.is_empty() {
            let request = KeysAndAttributes::builder().consistent_read(true).set_keys(Some(wanted)).build();
            let request = request.map_err(malformed)?;
            let response = self.client.batch_get_item().request_items(self.name(), request).send().await;
            let response = response.map_err(|error| explain(self.name(), &error))?;
            for item in response.responses.into_iter().flatten().flat_map(|(_, items)| items) {
                let (key, doc) = item::read(item)?;
                found.insert(key, doc);
            }
            // Request the keys again that did not fit into one response.
            wanted =
                response.unprocessed_keys.into_iter().flatten().flat_map(|(_, left)| left.keys).collect();
        }
        Ok(keys.iter().map(|key| found.remove(key)).collect())
    }

    async fn put_if(&self, key: &str, expected: Option<u64>, draft: NewDocument) -> Result<PutIf> {
        let now = self.dates.estimate(BootInstant::now());
        // Not only the previous version plus one: a restored or re-created table must not reuse a
        // version that a client remembers from before.
        let version = expected.map_or(0, |version| version + 1).max(now.as_micros());
        let write_id = clock::new_lease_id().to_string();
        let item = ItemWrite { key, version, write_id: &write_id, draft, now }.into_item();
        let put = self.client.put_item().table_name(self.name()).set_item(Some(item));
        let put = match expected {
            None => put
                .condition_expression("attribute_not_exists(#name)")
                .expression_attribute_names("#name", NAME),
            Some(version) => put
                .condition_expression("#version = :expected")
                .expression_attribute_names("#version", VERSION)
                .expression_attribute_values(":expected", item::number(version)),
        };
        let put = put
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .send()
            .await;
        match put {
            Ok(_) => Ok(PutIf::Written(version)),
            Err(error) => match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => match failed.item.clone() {
                    // The request was sent twice because the first response was lost.
                    Some(item) if item::is_written_by(&item, &write_id) => Ok(PutIf::Written(version)),
                    found => Ok(PutIf::Conflict(found.map(item::read).transpose()?.map(|(_, doc)| doc))),
                },
                _ => Err(explain(self.name(), &error)),
            },
        }
    }

    /// Lists documents. The table has no order, so this scans all of it and keeps the first names.
    async fn list(
        &self,
        prefix: &str,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page<(String, Document)>> {
        let limit = page_size(limit) as usize;
        let mut first = BTreeMap::new();
        let mut from = None;
        loop {
            let scan = self
                .client
                .scan()
                .table_name(self.name())
                .consistent_read(true)
                .projection_expression("#name, #version, #body")
                .expression_attribute_names("#name", NAME)
                .expression_attribute_names("#version", VERSION)
                .expression_attribute_names("#body", BODY)
                .set_exclusive_start_key(from);
            // Internal documents are filtered out by the server.
            let scan = if prefix.is_empty() {
                scan.filter_expression("NOT begins_with(#name, :reserved)")
                    .expression_attribute_values(":reserved", text(&RESERVED_PREFIX.to_string()))
            } else {
                scan.filter_expression("begins_with(#name, :prefix)")
                    .expression_attribute_values(":prefix", text(prefix))
            };
            let page = scan.send().await.map_err(|error| explain(self.name(), &error))?;
            for found in page.items.unwrap_or_default() {
                let (key, doc) = item::read(found)?;
                if is_listed(&key, prefix) && after.as_ref().is_none_or(|after| key > after.0) {
                    first.insert(key, doc);
                    if first.len() > limit {
                        first.pop_last();
                    }
                }
            }
            from = page.last_evaluated_key.filter(|key| !key.is_empty());
            if from.is_none() {
                break;
            }
        }
        Ok(Page::of(first.into_iter().collect(), limit, |(key, _)| Cursor(key.clone())))
    }

    async fn time(&self) -> Result<Time> {
        if let Some(clock) = &self.options.clock {
            return Ok(Time::Exact(clock.now()));
        }
        Ok(self.dates.time(self.options.judge))
    }

    async fn check_health(&self) -> Result<Vec<HealthCheck>> {
        Ok(super::health::check_health(self).await)
    }
}
